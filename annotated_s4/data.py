"""Named data sets, each split into train, validation and test."""

from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class Part(NamedTuple):
    """Sequences x (samples, length, d_input), float32, and one label for each, y (samples,), int32."""

    x: np.ndarray
    y: np.ndarray


class Splits(NamedTuple):
    """Three sets that share no sample: fit on the first, choose by the second, report the third once."""

    train: Part
    validation: Part
    test: Part


def load(name: str, seed: int = 0) -> Splits:
    """A data set by its name. "digits-classification" is the only one so far.

    Args:
        name: which data set.
        seed: which split, where the data set comes in one piece.

    Raises:
        ValueError: there is no data set of that name.
    """
    if name not in DATASETS:
        raise ValueError(f"name is one of {', '.join(DATASETS)}, but {name!r} was given")
    return DATASETS[name](seed)


def _digits_classification(seed: int) -> Splits:
    """1797 handwritten digits of 8 by 8 pixels, read row by row as 64 steps of one grey value between 0 and 1.

    1200, 200 and 397 samples, each with the ten digits in equal shares. They are in the scikit-learn package, so
    nothing is downloaded.
    """
    digits = load_digits()
    x, y = (digits.data / 16).astype(np.float32)[:, :, None], digits.target.astype(np.int32)
    train_x, x, train_y, y = train_test_split(x, y, train_size=1200, stratify=y, random_state=seed)
    validation_x, test_x, validation_y, test_y = train_test_split(x, y, train_size=200, stratify=y, random_state=seed)
    return Splits(Part(train_x, train_y), Part(validation_x, validation_y), Part(test_x, test_y))


DATASETS = {"digits-classification": _digits_classification}
