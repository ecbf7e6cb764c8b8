"""Oracles: NumPy loops and SciPy in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import scipy.linalg
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_s4.ssm import DiscreteSSM, causal_convolution, discretize, kernel_by_powers, scan_ssm, two_sided_convolution

METHODS = {"bilinear": "bilinear", "zoh": "zoh", "euler": "euler", "backward_euler": "backward_diff"}


@pytest.fixture(autouse=True)
def double_precision(float64):
    """All of this file in float64 but where a test says otherwise."""


def random_system(N, seed, complex_=False):
    """A stable system with spectral abscissa -1/4, as NumPy arrays."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape) + (1j * rng.normal(size=shape) if complex_ else 0)
    A = draw(N, N) / np.sqrt(N)
    A -= (np.linalg.eigvals(A).real.max() + 0.25) * np.eye(N)
    return A, draw(N), draw(N)


def run_by_hand(Ab, Bb, C, u, x=None):
    x, y = np.zeros(len(Bb), Ab.dtype) if x is None else x, []
    for u_k in u:
        x = Ab @ x + Bb * u_k
        y.append(C @ x)
    return x, np.array(y)


@pytest.mark.parametrize("method", METHODS)
@given(N=st.integers(1, 12), step=st.floats(1e-3, 1.0), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_discretize_is_scipys(method, N, step, seed):
    A, B, C = random_system(N, seed)
    Ab, Bb = discretize(jnp.asarray(A), jnp.asarray(B), step, method)
    theirs_A, theirs_B, *_ = scipy.signal.cont2discrete((A, B[:, None], C[None], [[0.0]]), step, METHODS[method])
    np.testing.assert_allclose(Ab, theirs_A, rtol=0, atol=1e-12)
    # scipy's backward difference and bilinear form put part of B's work into the output equation: for them
    # the oracle is the definition, solved by hand.
    half = {"bilinear": 0.5, "backward_euler": 1.0}.get(method)
    expected = theirs_B[:, 0] if half is None else np.linalg.solve(np.eye(N) - half * step * A, step * B)
    np.testing.assert_allclose(Bb, expected, rtol=0, atol=1e-12)


def test_zero_order_hold_needs_no_inverse_of_A():
    # An integrator: A = 0. Holding 1 for half a time unit moves the state by a half.
    Ab, Bb = discretize(jnp.zeros((1, 1)), jnp.ones(1), 0.5, "zoh")
    assert (float(Ab[0, 0]), float(Bb[0])) == (1.0, 0.5)


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("backward_euler", 1), ("bilinear", 2)])
def test_order_for_a_held_input(method, order):
    """Orders 1, 1, 2 against the exact solution, over one time unit with the input held."""
    A, B, _ = random_system(4, 0)
    block = scipy.linalg.expm(np.block([[A, B[:, None]], [np.zeros((1, 5))]]))
    error = []
    for steps in (64, 128):
        Ab, Bb = discretize(jnp.asarray(A), jnp.asarray(B), 1 / steps, method)
        x, _ = scan_ssm(Ab, Bb, jnp.ones(4), jnp.ones(steps))
        error.append(np.abs(x - block[:4, 4]).max())
    assert np.log2(error[0] / error[1]) == pytest.approx(order, abs=0.1)


def test_zero_order_hold_is_exact_for_a_held_input():
    A, B, _ = random_system(4, 0)
    block = scipy.linalg.expm(np.block([[A, B[:, None]], [np.zeros((1, 5))]]))
    Ab, Bb = discretize(jnp.asarray(A), jnp.asarray(B), 1 / 3, "zoh")
    x, _ = scan_ssm(Ab, Bb, jnp.ones(4), jnp.ones(3))
    np.testing.assert_allclose(x, block[:4, 4], rtol=0, atol=1e-14)


@pytest.mark.parametrize("complex_", [False, True])
@given(N=st.integers(1, 16), L=st.integers(1, 70), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_recurrence_kernel_and_convolution_agree(complex_, N, L, seed):
    A, B, C = random_system(N, seed, complex_)
    Ab, Bb = (np.asarray(M) for M in discretize(jnp.asarray(A), jnp.asarray(B), 0.1))
    u = np.random.default_rng(seed + 1).normal(size=L)
    x, y = run_by_hand(Ab, Bb, C, u)
    scanned_x, scanned_y = scan_ssm(jnp.asarray(Ab), jnp.asarray(Bb), jnp.asarray(C), jnp.asarray(u))
    scale = np.abs(y).max()
    np.testing.assert_allclose(scanned_y, y, atol=1e-12 * scale, rtol=0)
    np.testing.assert_allclose(scanned_x, x, atol=1e-12 * np.abs(x).max(), rtol=0)
    K = kernel_by_powers(jnp.asarray(Ab), jnp.asarray(Bb), jnp.asarray(C), L)
    powers = np.array([C @ np.linalg.matrix_power(Ab, l) @ Bb for l in range(L)])
    np.testing.assert_allclose(K, powers, atol=1e-12 * np.abs(powers).max(), rtol=0)
    convolved = causal_convolution(jnp.asarray(u), K.real) + 1j * causal_convolution(jnp.asarray(u), K.imag)
    np.testing.assert_allclose(convolved, y, atol=1e-12 * scale, rtol=0)


@pytest.mark.parametrize("complex_", [False, True])
def test_single_precision_agrees_to_1e5(complex_):
    A, B, C = random_system(32, 0, complex_)
    type_ = np.complex64 if complex_ else np.float32
    Ab, Bb = (np.asarray(M) for M in discretize(jnp.asarray(A), jnp.asarray(B), 0.05))
    u = np.random.default_rng(1).normal(size=512)
    _, y = run_by_hand(Ab, Bb, C, u)
    small = [jnp.asarray(M, type_) for M in (Ab, Bb, C)]
    u = jnp.asarray(u, jnp.float32)
    _, scanned = scan_ssm(*small, u)
    K = kernel_by_powers(*small, 512)
    convolved = causal_convolution(u, K.real) + 1j * causal_convolution(u, K.imag)
    assert scanned.dtype == K.dtype == type_
    for result in (scanned, convolved):
        assert np.abs(result - y).max() < 1e-5 * np.abs(y).max()


def test_scipys_simulation_is_ours_one_step_later():
    A, B, C = random_system(3, 0)
    Ab, Bb = (np.asarray(M) for M in discretize(jnp.asarray(A), jnp.asarray(B), 0.1))
    u = np.random.default_rng(1).normal(size=20)
    _, theirs, _ = scipy.signal.dlsim((Ab, Bb[:, None], C[None], [[0.0]], 0.1), np.append(u, 0))
    _, ours = scan_ssm(jnp.asarray(Ab), jnp.asarray(Bb), jnp.asarray(C), jnp.asarray(u))
    np.testing.assert_allclose(ours, theirs[1:, 0], rtol=0, atol=1e-12)


def test_a_sequence_in_two_halves():
    A, B, C = (jnp.asarray(M) for M in random_system(5, 0))
    Ab, Bb = discretize(A, B, 0.1)
    u = jnp.asarray(np.random.default_rng(1).normal(size=30))
    x, y = scan_ssm(Ab, Bb, C, u)
    half, first = scan_ssm(Ab, Bb, C, u[:13])
    end, second = scan_ssm(Ab, Bb, C, u[13:], half)
    np.testing.assert_allclose(jnp.concatenate([first, second]), y, rtol=0, atol=1e-13)
    np.testing.assert_allclose(end, x, rtol=0, atol=1e-13)


@given(L=st.integers(1, 40), data=st.data())
@settings(max_examples=20, deadline=None)
def test_causality(L, data):
    changed = data.draw(st.integers(0, L - 1))
    rng = np.random.default_rng(L)
    u, K = rng.normal(size=L), rng.normal(size=L)
    other = u.copy()
    other[changed] += 1
    difference = causal_convolution(jnp.asarray(u), jnp.asarray(K)) - causal_convolution(jnp.asarray(other), jnp.asarray(K))
    assert np.abs(difference[:changed]).max(initial=0) < 1e-13
    assert abs(difference[changed] + K[0]) < 1e-13


def test_convolution_broadcasts_and_is_numpys():
    rng = np.random.default_rng(0)
    u, K = rng.normal(size=(4, 1, 33)), rng.normal(size=(1, 3, 33))
    y = causal_convolution(jnp.asarray(u), jnp.asarray(K))
    expected = [[np.convolve(a, b)[:33] for b in K[0]] for a in u[:, 0]]
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("L", [1, 2, 9])
def test_both_directions_are_the_two_sums(float64, L):
    """The past with one kernel, the future with the other; the present sample is counted once, with K_0."""
    rng = np.random.default_rng(L)
    u, K, K_reverse = rng.normal(size=(3, 1, L)), rng.normal(size=(4, L)), rng.normal(size=(4, L))
    expected = np.zeros((3, 4, L))
    for k in range(L):
        for j in range(L):
            expected[..., k] += u[..., j] * (K[:, k - j] if j <= k else K_reverse[:, j - k - 1])
    y = two_sided_convolution(jnp.asarray(u), jnp.asarray(K)[None], jnp.asarray(K_reverse)[None])
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-13)
    past = two_sided_convolution(jnp.asarray(u), jnp.asarray(K)[None], jnp.zeros((1, 4, L)))
    np.testing.assert_allclose(past, causal_convolution(jnp.asarray(u), jnp.asarray(K)[None]), rtol=0, atol=1e-13)


def test_a_step_of_the_change_is_the_step(float64):
    rng = np.random.default_rng(0)
    Ab, Bb, x, u = rng.normal(size=(2, 5, 5)), rng.normal(size=(2, 5)), rng.normal(size=(2, 5)), rng.normal(size=2)
    ours = DiscreteSSM(jnp.asarray(Ab - np.eye(5)), jnp.asarray(Bb)).step(jnp.asarray(x), jnp.asarray(u))
    np.testing.assert_allclose(ours, np.einsum("inm,im->in", Ab, x) + Bb * u[:, None], rtol=0, atol=1e-13)


def test_kernel_broadcasts():
    systems = [random_system(4, seed) for seed in range(3)]
    A, B, C = (np.stack(parts) for parts in zip(*systems, strict=True))
    Ab = np.eye(4) + 0.1 * A
    K = kernel_by_powers(jnp.asarray(Ab)[:, None], jnp.asarray(B)[:, None], jnp.asarray(C)[None], 7)
    assert K.shape == (3, 3, 7)
    for i in range(3):
        for j in range(3):
            np.testing.assert_allclose(K[i, j, 6], C[j] @ np.linalg.matrix_power(Ab[i], 6) @ B[i], rtol=0, atol=1e-12)


def test_compile_time_of_the_kernel_does_not_depend_on_the_length():
    """The program has the same number of operations for 32 steps and for 4096."""
    system = (jnp.eye(3), jnp.ones(3), jnp.ones(3))
    lines = [jax.jit(partial(kernel_by_powers, L=L)).lower(*system).as_text().count("\n") for L in (32, 4096)]
    assert lines[0] == lines[1]


def test_products_ask_for_full_precision():
    """Recent GPUs round the factors of a float32 product to ten bits unless the program asks for all of them."""
    system = (jnp.eye(3), jnp.ones(3), jnp.ones(3))
    for f in (partial(kernel_by_powers, L=4), lambda *s: scan_ssm(*s, jnp.ones(4))):
        products = [line for line in jax.jit(f).lower(*system).as_text().splitlines() if "dot_general" in line]
        assert products and all("HIGHEST" in line for line in products)


EYE, ONES = jnp.eye(3), jnp.ones(3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: two_sided_convolution(jnp.ones(3), jnp.ones(3), jnp.ones(4)), r"\(3,\), \(3,\) and \(4,\)"),
        (lambda: two_sided_convolution(jnp.ones(0), jnp.ones(0), jnp.ones(0)), "at least one"),
        (lambda: discretize(jnp.ones((3, 2)), ONES, 0.1), r"A is a square matrix.*\(3, 2\)"),
        (lambda: discretize(EYE, jnp.ones(2), 0.1), r"N = 3 states.*\(2,\)"),
        (lambda: discretize(EYE, ONES, 0.0), "step.*positive.*0.0"),
        (lambda: discretize(EYE, ONES, -0.1), "step.*positive.*-0.1"),
        (lambda: discretize(EYE, ONES, float("nan")), "step.*positive.*nan"),
        (lambda: discretize(EYE, ONES, 0.1, "tustin"), "bilinear, zoh, euler, backward_euler.*'tustin'"),
        (lambda: scan_ssm(jnp.ones((3, 2)), ONES, ONES, ONES), r"square.*\(3, 2\)"),
        (lambda: scan_ssm(EYE, ONES, jnp.ones(4), ONES), r"N = 3 states.*\(4,\)"),
        (lambda: scan_ssm(EYE, ONES, ONES, jnp.ones(0)), r"at least one sample.*\(0,\)"),
        (lambda: scan_ssm(EYE, ONES, ONES, ONES, jnp.ones(2)), r"x0.*\(3,\).*\(2,\)"),
        (lambda: kernel_by_powers(EYE, jnp.ones(1), ONES, 4), r"N = 3 states.*\(1,\)"),
        (lambda: kernel_by_powers(EYE, ONES, ONES, 0), "L.*at least 1.*0"),
        (lambda: causal_convolution(jnp.ones(0), jnp.ones(0)), r"at least one.*\(0,\)"),
        (lambda: causal_convolution(jnp.ones(4), jnp.ones(5)), r"\(4,\) and \(5,\)"),
    ],
)
def test_bad_input_is_named(without_shape_checks, call, message):
    """As users meet it: without the shape checker of the tests."""
    with pytest.raises(ValueError, match=message):
        call()


def test_the_shape_checker_is_on_in_the_tests():
    with pytest.raises(jaxtyping.TypeCheckError):
        discretize(EYE, jnp.ones(2), 0.1)


def test_rank_promotion_is_an_error_in_the_tests():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones((2, 3)) + jnp.ones(3)
