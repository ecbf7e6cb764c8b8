import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_s4.cauchy import cauchy_textbook, pair_sum
from tests.systems import full, random_dplr


@pytest.fixture(autouse=True)
def double_precision(float64):
    """All of this file in float64."""


def test_textbook_is_the_sum():
    rng = np.random.default_rng(0)
    v, Lambda = rng.normal(size=(2, 5)) + 1j * rng.normal(size=(2, 5))
    omega = rng.normal(size=9) + 3
    expected = [sum(v[n] / (w - Lambda[n]) for n in range(5)) for w in omega]
    np.testing.assert_allclose(cauchy_textbook(jnp.asarray(v), jnp.asarray(omega + 0j), jnp.asarray(Lambda)), expected, rtol=0, atol=1e-13)


@given(N=st.integers(1, 16), step=st.floats(1e-3, 1), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_pair_sum_is_the_sum_over_the_full_state(N, step, seed):
    Lambda, v, *_ = random_dplr(2 * N, seed)
    theta = np.linspace(0, np.pi, 11)
    ours = pair_sum(jnp.asarray(v), jnp.asarray(Lambda), jnp.asarray(step), jnp.asarray(theta))
    s, c = np.sin(theta / 2), np.cos(theta / 2)
    expected = [np.sum(full(v) / (2j * s[j] - step * c[j] * full(Lambda))) for j in range(11)]
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


def test_at_the_pole_of_the_usual_form_the_pair_sum_is_finite():
    Lambda, v, *_ = random_dplr(6, 0)
    at_pi = pair_sum(jnp.asarray(v), jnp.asarray(Lambda), jnp.asarray(0.1), jnp.asarray([np.pi]))
    np.testing.assert_allclose(at_pi[0], full(v).sum() / 2j, rtol=1e-12)


def test_either_member_of_a_pair_may_be_given():
    Lambda, v, *_ = random_dplr(6, 0)
    swap = np.array([1, 0, 1], bool)
    other = lambda x: jnp.asarray(np.where(swap, x.conj(), x))
    theta = jnp.linspace(0, np.pi, 5)
    np.testing.assert_allclose(
        pair_sum(other(v), other(Lambda), jnp.asarray(0.1), theta),
        pair_sum(jnp.asarray(v), jnp.asarray(Lambda), jnp.asarray(0.1), theta),
        rtol=0, atol=1e-13,
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: cauchy_textbook(jnp.ones(3, complex), jnp.ones(4, complex), jnp.ones(2, complex)),
        lambda: pair_sum(jnp.ones(3, complex), jnp.ones(2, complex), jnp.asarray(0.1), jnp.ones(4)),
    ],
)
def test_bad_input_is_named(without_shape_checks, call):
    with pytest.raises(ValueError, match=r"\(3,\) and \(2,\)"):
        call()
