"""Does HiPPO matter? The first network with three systems, three learning rates and three seeds on the 8x8 digits.

    python -m benchmarks.first_network

writes results/first_network.json, from which chapter 4 draws. Every system has the spectral abscissa of HiPPO (-1)
and its norm of B (N). The learning rate of a system is the one with the best mean validation accuracy; the test set
is read once, by the networks of that learning rate.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from datetime import date
from functools import cache, partial
from importlib import metadata
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx

from annotated_s4 import environment, train
from annotated_s4.data import Splits, load
from annotated_s4.hippo import hippo_legs
from annotated_s4.layers import SSM
from annotated_s4.model import SequenceModel

RECORD = Path(__file__).resolve().parent.parent / "results" / "first_network.json"
SETTINGS = {"d_model": 32, "n_layers": 2, "ssm_n": 32, "dropout": 0.0, "epochs": 20, "batch_size": 50}
LEARNING_RATES = (3e-3, 1e-2, 3e-2)
SEEDS = (0, 1, 2)


def random_stable(N: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A = G - (1 + max Re lambda(G)) I with G[n, m] ~ N(0, 1), so max Re lambda(A) = -1; B ~ N(0, I), scaled to |B| = N."""
    draw = np.random.default_rng(seed)
    G, B = draw.normal(size=(N, N)), draw.normal(size=N)
    return G - (1 + np.linalg.eigvals(G).real.max()) * np.eye(N), B * N / np.linalg.norm(B)


def real_diagonal(N: int) -> tuple[np.ndarray, np.ndarray]:
    """A = -diag(1, ..., N), B[n] = sqrt(2n+1): the eigenvalues of HiPPO and its B, without what couples the states."""
    return -np.diag(np.arange(N) + 1.0), np.sqrt(2 * np.arange(N) + 1)


SYSTEMS: dict[str, Callable[[int], Callable]] = {
    "hippo": lambda seed: hippo_legs,
    "random": lambda seed: partial(random_stable, seed=seed),
    "diagonal": lambda seed: real_diagonal,
}


@cache
def adam(rate: float) -> optax.GradientTransformation:
    """One object for each rate, so that the epoch is compiled once for all seeds."""
    return optax.adam(rate)


def run(system: str, rate: float, seed: int, splits: Splits) -> tuple[dict, SequenceModel]:
    """Train one network: what happened after each epoch, and the network."""
    sizes = {name: SETTINGS[name] for name in ("d_model", "n_layers", "ssm_n", "dropout")}
    layer = partial(SSM, system=SYSTEMS[system](seed))
    model = SequenceModel(layer, d_input=1, d_output=10, l_max=64, rngs=nnx.Rngs(seed), **sizes)
    loss, validation, begin = [], [], time.perf_counter()
    options = {"epochs": SETTINGS["epochs"], "batch_size": SETTINGS["batch_size"], "optimizer": adam(rate), "seed": seed}
    for mean_loss in train.fit(model, splits.train, **options):
        loss.append(round(mean_loss, 4))
        validation.append(round(train.accuracy(model, splits.validation), 4))
        model.train()
    seconds = round(time.perf_counter() - begin, 1)
    curves = {"train_loss": loss, "validation_accuracy": validation}
    return {"system": system, "learning_rate": rate, "seed": seed, "seconds": seconds, **curves}, model


def best_rate(runs: list[dict], system: str) -> float:
    """The learning rate with the best validation accuracy at the end, in the mean over the seeds."""

    def mean(rate: float) -> float:
        return float(np.mean([r["validation_accuracy"][-1] for r in runs if (r["system"], r["learning_rate"]) == (system, rate)]))

    return max(LEARNING_RATES, key=mean)


def hardware() -> str:
    """What this ran on, in general words."""
    if jax.default_backend() == "cpu":
        return f"{os.cpu_count()} cores of an {platform.machine()} CPU"
    return f"{jax.device_count()} x {jax.devices()[0].device_kind}"


def measure(splits: Splits) -> dict:
    """All runs, the learning rate chosen for each system, and the test accuracy at that rate."""
    runs, models = [], {}
    for system in SYSTEMS:
        for rate in LEARNING_RATES:
            for seed in SEEDS:
                result, models[system, rate, seed] = run(system, rate, seed, splits)
                runs.append(result)
                print(f"{system:9}{rate:8}  seed {seed}  validation {result['validation_accuracy'][-1]:.3f}", flush=True)
    chosen = {system: best_rate(runs, system) for system in SYSTEMS}
    test = {s: [round(train.accuracy(models[s, chosen[s], seed], splits.test), 4) for seed in SEEDS] for s in SYSTEMS}
    return {"chosen_learning_rate": chosen, "test_accuracy": test, "runs": runs}


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description="Train the first network with three systems and write results/first_network.json.")
    parser.add_argument("--remark", default="", help="what a reader of the record should know, for example: other programs ran beside it")
    remark = parser.parse_args().remark
    environment.check()
    result = measure(load("digits-classification"))
    record = {
        "command": "python -m benchmarks.first_network",
        "date": date.today().isoformat(),
        "hardware": hardware(),
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn")},
        "remark": remark,
        "settings": {**SETTINGS, "learning_rates": LEARNING_RATES, "seeds": SEEDS, "data": "digits-classification, split 0"},
        **result,
    }
    heads = {name: value for name, value in record.items() if name != "runs"}
    runs = ",\n  ".join(json.dumps(r) for r in record["runs"])
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(heads, indent=1)[:-2] + f',\n "runs": [\n  {runs}\n ]\n}}\n')


if __name__ == "__main__":
    main()
