import jax
import jax.numpy as jnp
import numpy as np
import pytest

from annotated_s4.generating import (
    from_tilde,
    generating_function,
    kernel_from_values,
    roots_of_unity,
    to_tilde,
)
from tests.systems import dense_discretization, dense_kernel, full, random_dplr


@pytest.fixture(autouse=True)
def double_precision(float64):
    """All of this file in float64."""


@pytest.mark.parametrize("L", [1, 2, 7, 16])
def test_roots_of_unity_turn_clockwise(L):
    z = roots_of_unity(L)
    np.testing.assert_allclose(z, np.cos(2 * np.pi * np.arange(L) / L) - 1j * np.sin(2 * np.pi * np.arange(L) / L), rtol=0, atol=1e-15)


@pytest.mark.parametrize("L", [1, 2, 9, 32])
def test_generating_function_is_the_polynomial_and_the_way_back_is_the_kernel(L):
    Lambda, P, Q, B, C = random_dplr(6, 0)
    Ab, Bb = dense_discretization(Lambda, P, Q, B, 0.1)
    K = dense_kernel(Lambda, P, Q, B, C, 0.1, L)
    C_tilde = full(C) @ (np.eye(6) - np.linalg.matrix_power(Ab, L))
    z = roots_of_unity(L)
    values = generating_function(jnp.asarray(Ab), jnp.asarray(Bb), jnp.asarray(C_tilde), z)
    np.testing.assert_allclose(values, [np.sum(K * w ** np.arange(L)) for w in np.asarray(z)], rtol=0, atol=1e-12 * np.abs(K).sum())
    np.testing.assert_allclose(kernel_from_values(values), K, rtol=0, atol=1e-12 * np.abs(K).max())


@pytest.mark.parametrize("L", [1, 2, 33, 256])
@pytest.mark.parametrize("tied", [True, False])
def test_c_tilde_is_its_definition_and_comes_back(L, tied):
    Lambda, P, Q, B, C = random_dplr(8, 1, tied=tied)
    Ab, _ = dense_discretization(Lambda, P, Q, B, 0.05)
    expected = (full(C) @ (np.eye(8) - np.linalg.matrix_power(Ab, L)))[:4]
    C_tilde = to_tilde(*map(jnp.asarray, (C, Lambda, P, Q)), jnp.asarray(0.05), L)
    np.testing.assert_allclose(C_tilde, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(from_tilde(C_tilde, *map(jnp.asarray, (Lambda, P, Q)), jnp.asarray(0.05), L), C, rtol=0, atol=1e-10)


def test_leading_axes_broadcast():
    systems = [random_dplr(6, seed) for seed in range(3)]
    Lambda, P, Q, _, C = (jnp.asarray(np.stack(parts)) for parts in zip(*systems, strict=True))
    step = jnp.asarray([0.01, 0.1, 0.03])
    together = to_tilde(C, Lambda, P, Q, step, 12)
    one_by_one = [to_tilde(C[i], Lambda[i], P[i], Q[i], step[i], 12) for i in range(3)]
    np.testing.assert_allclose(together, one_by_one, rtol=0, atol=1e-14)
    shared = to_tilde(C, Lambda[0], P[0], Q[0], step, 12)
    np.testing.assert_allclose(shared[2], to_tilde(C[2], Lambda[0], P[0], Q[0], step[2], 12), rtol=0, atol=1e-14)


def test_the_power_is_taken_by_squaring():
    """The program does not grow with L: 2 log2(L) products, not L."""
    arguments = [jnp.asarray(x) for x in random_dplr(4, 0)]
    Lambda, P, Q, _, C = arguments
    programs = [str(jax.make_jaxpr(lambda C: to_tilde(C, Lambda, P, Q, 0.1, L))(C)) for L in (16, 1 << 14)]
    assert [program.count("dot_general") for program in programs] < [40, 40]


EYE, ONES = jnp.eye(3), jnp.ones(3)
MODES = jnp.ones(2, complex)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: roots_of_unity(0), "L.*at least 1.*0"),
        (lambda: generating_function(jnp.ones((3, 2)), ONES, ONES, roots_of_unity(4)), r"\(3, 2\)"),
        (lambda: generating_function(EYE, ONES, jnp.ones(2), roots_of_unity(4)), r"\(2,\)"),
        (lambda: to_tilde(MODES, MODES, MODES, MODES, 0.1, 0), "L.*at least 1.*0"),
        (lambda: from_tilde(MODES, MODES, MODES, jnp.ones(3, complex), 0.1, 4), r"\(3,\)"),
    ],
)
def test_bad_input_is_named(without_shape_checks, call, message):
    with pytest.raises(ValueError, match=message):
        call()
