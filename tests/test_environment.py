import importlib.metadata

import jax
import jax.numpy as jnp
import pytest

from annotated_s4 import environment


@pytest.fixture
def precision_restored():
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


def test_one_line_says_what_computes(capsys, precision_restored):
    environment.start("float64")
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    for name in ("jax", "jaxlib", "flax", "optax"):
        assert f"{name} {importlib.metadata.version(name)}" in line
    assert jax.devices()[0].device_kind in line
    assert jnp.ones(1).dtype == jnp.float64


def test_float32_is_what_it_says(precision_restored):
    environment.start("float32")
    assert jnp.ones(1).dtype == jnp.float32


@pytest.mark.parametrize(
    ("canary", "function", "faulty", "complaint"),
    [
        # jaxlib 0.10.2: the last row gets the sum of an earlier one.
        ("sums_over_rows", "jit", lambda f: lambda r: jax.vmap(lambda row: jnp.sum(row**2))(r).at[-1].set(841.0), "1 of 32769"),
        ("operations_outside_jit", "ones", lambda n: jnp.full(n, 512.0), "513"),
    ],
)
def test_a_wrong_result_stops_the_notebook(monkeypatch, canary, function, faulty, complaint):
    monkeypatch.setattr(environment.jax if function == "jit" else environment.jnp, function, faulty)
    with pytest.raises(environment.BrokenRelease, match=complaint) as error:
        environment.check()
    assert importlib.metadata.version("jaxlib") in str(error.value) and "pip install" in str(error.value)


def test_quadratic_time_stops_the_notebook(monkeypatch):
    # jaxlib 0.11.1: each call of the clock is 64 times later for the long scan than for the short one.
    readings = iter([0.0, 0.01] * 2 + [0.0, 0.64] * 2)
    monkeypatch.setattr(environment.time, "perf_counter", lambda: next(readings))
    with pytest.raises(environment.BrokenRelease, match="64 times as long"):
        environment.check()


def test_a_slow_machine_is_not_a_faulty_release(monkeypatch):
    readings = iter([0.0, 1.0] * 2 + [0.0, 8.0] * 2)  # slow, but linear
    monkeypatch.setattr(environment.time, "perf_counter", lambda: next(readings))
    environment.check()
