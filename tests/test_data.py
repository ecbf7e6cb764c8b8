import numpy as np
import pytest
from sklearn.datasets import load_digits

from annotated_s4.data import load


def test_digits_are_three_sets_without_a_common_sample():
    splits = load("digits-classification")
    assert [part.x.shape for part in splits] == [(1200, 64, 1), (200, 64, 1), (397, 64, 1)]
    rows = np.concatenate([np.c_[part.y, part.x[:, :, 0] * 16] for part in splits])
    digits = load_digits()
    original = np.c_[digits.target, digits.data]
    # The same samples, each as often as in the original: nothing is used twice, nothing is lost.
    np.testing.assert_array_equal(rows[np.lexsort(rows.T)], original[np.lexsort(original.T)])


def test_digits_have_equal_shares_of_each_class():
    for part in load("digits-classification"):
        counts = np.bincount(part.y, minlength=10)
        assert counts.max() - counts.min() <= 0.06 * len(part.y) / 10 + 1
        assert part.x.dtype == np.float32 and part.y.dtype == np.int32 and 0 <= part.x.min() and part.x.max() == 1


def test_the_split_follows_the_seed():
    first, again, other = load("digits-classification", 0), load("digits-classification", 0), load("digits-classification", 1)
    np.testing.assert_array_equal(first.test.x, again.test.x)
    assert np.any(first.test.x != other.test.x)


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="digits-classification.*'mnist'"):
        load("mnist")
