import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from annotated_s4.hippo import hippo_legs
from annotated_s4.layers import SSM


def by_hand(layer, u):
    """The recurrence of every feature, step by step in float64."""
    A, B, C, D, log_step = (np.asarray(v[...], np.float64) for v in (layer.A, layer.B, layer.C, layer.D, layer.log_step))
    y = np.zeros(u.shape)
    for h, step in enumerate(np.exp(log_step)):
        left = np.eye(len(A)) - step / 2 * A
        Ab, Bb = np.linalg.solve(left, np.eye(len(A)) + step / 2 * A), np.linalg.solve(left, step * B[h])
        for b in range(len(u)):
            x = np.zeros(len(A))
            for k in range(u.shape[1]):
                x = Ab @ x + Bb * u[b, k, h]
                y[b, k, h] = C[h] @ x + D[h] * u[b, k, h]
    return y


@pytest.mark.parametrize("length", [1, 17, 24])
def test_layer_is_the_recurrence_of_each_feature(length):
    layer = SSM(3, 8, 24, rngs=nnx.Rngs(0))
    u = np.random.default_rng(0).normal(size=(2, length, 3))
    expected = by_hand(layer, u)
    y = layer(jnp.asarray(u, jnp.float32))
    assert np.abs(y - expected).max() < 1e-5 * np.abs(expected).max()


def test_layer_in_double_precision(float64):
    layer = SSM(3, 8, 24, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
    u = np.random.default_rng(0).normal(size=(2, 24, 3))
    expected = by_hand(layer, u)
    assert np.abs(layer(jnp.asarray(u)) - expected).max() < 1e-12 * np.abs(expected).max()


def test_what_is_trained():
    layer = SSM(3, 8, 24, rngs=nnx.Rngs(0))
    assert set(nnx.state(layer, nnx.Param)) == {"B", "C", "D", "log_step"}
    np.testing.assert_array_equal(layer.A[...], hippo_legs(8)[0])


def test_every_parameter_has_a_gradient():
    layer = SSM(3, 8, 24, rngs=nnx.Rngs(0))
    u = jnp.asarray(np.random.default_rng(0).normal(size=(2, 24, 3)), jnp.float32)
    gradient = nnx.grad(lambda layer: jnp.sum(layer(u) ** 2))(layer)
    for name, value in nnx.to_pure_dict(gradient).items():
        assert np.all(np.isfinite(value)) and np.all(np.abs(value).reshape(3, -1).max(1) > 0), name


def test_initial_values_have_the_stated_spread():
    layer = SSM(4000, 4, 8, rngs=nnx.Rngs(0), step_range=(0.01, 0.1))
    assert np.mean(np.asarray(layer.C[...]) ** 2) == pytest.approx(1, abs=0.05)
    step = np.exp(np.asarray(layer.log_step[...]))
    assert 0.01 <= step.min() < 0.0101 and 0.099 < step.max() <= 0.1
    assert np.mean(layer.log_step[...]) == pytest.approx(np.log(0.01 * 0.1) / 2, abs=0.05)


def test_no_batch_of_systems_is_solved_at_once():
    """Two such solves at the same time dead-lock jaxlib 0.10.1 on two cores: each LU takes one matrix."""

    graph, params, rest = nnx.split(SSM(3, 8, 24, rngs=nnx.Rngs(0)), nnx.Param, ...)
    loss = lambda params: jnp.sum(nnx.merge(graph, params, rest, copy=True)(jnp.ones((2, 24, 3))))
    solved = re.findall(r"(\S+) \S+ \S+ = lu\b", str(jax.make_jaxpr(jax.grad(loss))(params)))
    assert solved and all(result.endswith(":f32[8,8]") for result in solved)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SSM(0, 8, 24, rngs=nnx.Rngs(0)), "d_model.*0"),
        (lambda: SSM(3, 0, 24, rngs=nnx.Rngs(0)), "ssm_n.*0"),
        (lambda: SSM(3, 8, 0, rngs=nnx.Rngs(0)), "l_max.*0"),
        (lambda: SSM(3, 8, 24, rngs=nnx.Rngs(0), step_range=(0.1, 0.01)), r"step_range.*\(0.1, 0.01\)"),
        (lambda: SSM(3, 8, 24, rngs=nnx.Rngs(0))(jnp.ones((2, 25, 3))), r"1 to 24 steps, 3 features.*\(2, 25, 3\)"),
        (lambda: SSM(3, 8, 24, rngs=nnx.Rngs(0))(jnp.ones((2, 24, 4))), r"3 features.*\(2, 24, 4\)"),
        (lambda: SSM(3, 8, 24, rngs=nnx.Rngs(0))(jnp.ones((24, 3))), r"\(24, 3\)"),
    ],
)
def test_bad_input_is_named(without_shape_checks, call, message):
    with pytest.raises(ValueError, match=message):
        call()
