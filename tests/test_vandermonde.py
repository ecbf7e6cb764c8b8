import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from annotated_s4.vandermonde import vandermonde_pairs, vandermonde_textbook, vandermonde_two_level
from tests.systems import full


def draw(*shape):
    rng = np.random.default_rng(0)
    complex_normal = lambda: rng.normal(size=shape) + 1j * rng.normal(size=shape)
    return complex_normal(), -0.1 * np.abs(rng.normal(size=shape)) + 1j * rng.normal(size=shape)


@pytest.mark.parametrize("L", [1, 2, 33])
@pytest.mark.parametrize("modes", [1, 5])
def test_both_forms_are_the_explicit_matrix(float64, L, modes):
    numerators, exponents = draw(modes)
    matrix = np.exp(full(exponents)[:, None]) ** np.arange(L)
    expected = full(numerators) @ matrix
    assert np.abs(expected.imag).max() < 1e-12
    textbook = vandermonde_textbook(jnp.asarray(full(numerators)), jnp.asarray(full(exponents)), L)
    pairs = vandermonde_pairs(jnp.asarray(numerators), jnp.asarray(exponents), L)
    two_level = vandermonde_two_level(jnp.asarray(numerators), jnp.asarray(exponents), L)
    for found in (textbook, pairs, two_level):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * np.abs(expected).max() * L)
    assert not jnp.iscomplexobj(pairs)


def test_leading_axes(float64):
    numerators, exponents = map(jnp.asarray, draw(2, 3, 4))
    for form in (vandermonde_pairs, vandermonde_two_level):
        together = form(numerators, exponents, 7)
        assert together.shape == (2, 3, 7)
        np.testing.assert_allclose(together[1, 2], form(numerators[1, 2], exponents[1, 2], 7), rtol=0, atol=1e-14)


def test_gradients_are_those_of_finite_differences(float64):
    numerators, exponents = map(jnp.asarray, draw(3))
    weights = jnp.asarray(np.random.default_rng(1).normal(size=9))
    parts = (numerators.real, numerators.imag, exponents.real, exponents.imag)
    loss = lambda a, b, c, d: jnp.sum(weights * vandermonde_pairs(jax.lax.complex(a, b), jax.lax.complex(c, d), 9))
    check_grads(loss, parts, order=1, modes=("rev",), atol=1e-7, rtol=1e-7)


MODES = jnp.ones(2, jnp.complex64)


@pytest.mark.parametrize("form", [vandermonde_textbook, vandermonde_pairs, vandermonde_two_level])
def test_bad_input_is_named(without_shape_checks, form):
    with pytest.raises(ValueError, match="L.*at least 1.*0"):
        form(MODES, MODES, 0)
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        form(MODES, jnp.ones(3, jnp.complex64), 4)
