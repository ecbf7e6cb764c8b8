from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_s4.diagonal import discretize_diagonal, exprel, kernel_diagonal, kernel_dss
from tests.systems import diagonal_discretization, full, kernel_of, random_dplr

kernel_diagonal_compiled = jax.jit(kernel_diagonal, static_argnums=(4, 5, 6))
GOLDEN = np.load(Path(__file__).parent / "data" / "peer_kernels.npz")
DISCRETIZATIONS, METHODS = ("zoh", "bilinear"), ("dense", "two_level", "textbook")


def random_diagonal(N, seed):
    """Lambda, B, C with N/2 modes, all stable."""
    Lambda, _, _, B, C = random_dplr(N, seed)
    return Lambda, B, C


def oracle(Lambda, B, C, step, L, discretization):
    return kernel_of(*diagonal_discretization(Lambda, B, step, discretization), full(C), L)


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize("L", [1, 2, 3, 33, 256, 1023])
def test_both_forms_are_the_recurrence(float64, L, discretization):
    for N, step in ((2, 0.1), (8, 1 / L), (64, 0.03)):
        system = random_diagonal(N, L + N)
        expected = oracle(*system, step, L, discretization)
        for method in METHODS:
            K = kernel_diagonal_compiled(*map(jnp.asarray, system), step, L, discretization, method)
            scale = max(np.abs(expected).max(), 0.1 * step * np.abs(system[1] * system[2]).sum())
            assert np.abs(K - expected).max() < 1e-12 * scale, (N, method)


@given(N=st.integers(1, 16), L=st.integers(1, 80), step=st.floats(1e-4, 1.0), seed=st.integers(0, 500), which=st.sampled_from(DISCRETIZATIONS))
@settings(max_examples=25, deadline=None)
def test_any_shape(N, L, step, seed, which):
    with jax.enable_x64(True):
        system = random_diagonal(2 * N, seed)
        expected = oracle(*system, step, L, which)
        scale = max(np.abs(expected).max(), 0.1 * step * np.abs(system[1] * system[2]).sum())
        assert np.abs(kernel_diagonal_compiled(*map(jnp.asarray, system), step, L, which, "auto") - expected).max() < 1e-12 * scale


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
@pytest.mark.parametrize("L", [16, 1024, 16384])
def test_single_precision(L, discretization):
    """Kernel and recurrence, rounded parameters given, below 1e-5 of the largest value, at a step of 1/L."""
    system = [np.asarray(part, np.complex64) for part in random_diagonal(64, 3)]
    step = jnp.float32(1 / L)
    double = [np.asarray(part, np.complex128) for part in system]
    Ab, Bb = diagonal_discretization(*double[:2], np.float64(step), discretization)
    expected = (full(double[2] * Bb[:32]) @ np.diag(Ab)[:, None] ** np.arange(L)).real
    for method in ("dense", "two_level"):
        K = kernel_diagonal(*map(jnp.asarray, system), step, L, discretization, method)
        assert K.dtype == jnp.float32
        assert np.abs(K - expected).max() < 1e-5 * np.abs(expected).max(), method
    steps = run_steps(system, step, L, discretization)
    assert np.abs(steps - expected).max() < 1e-5 * np.abs(expected).max()


def run_steps(system, step, L, discretization):
    Lambda, B, C = map(jnp.asarray, system)
    recurrence = discretize_diagonal(Lambda, B, step, discretization)

    def advance(x, u_k):
        x = recurrence.step(x, u_k)
        return x, 2 * jnp.sum(C * x).real

    return jax.lax.scan(advance, jnp.zeros_like(B), jnp.zeros(L, Lambda.real.dtype).at[0].set(1))[1]


@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
def test_kernel_and_recurrence_agree(float64, discretization):
    system = random_diagonal(32, 7)
    K = kernel_diagonal(*map(jnp.asarray, system), 0.02, 300, discretization)
    assert np.abs(K - run_steps(system, 0.02, 300, discretization)).max() < 1e-12 * np.abs(K).max()


@pytest.mark.parametrize("L", [1, 2, 33, 400])
@pytest.mark.parametrize("method", METHODS)
def test_dss_is_s4d_with_w_tied_to_the_length(float64, L, method):
    Lambda, B, C = map(jnp.asarray, random_diagonal(16, L))
    W = C * B * (jnp.exp(L * 0.05 * Lambda) - 1)
    s4d = kernel_diagonal(Lambda, B, C, 0.05, L)
    assert np.abs(kernel_dss(Lambda, W, 0.05, L, method) - s4d).max() < 1e-12 * np.abs(s4d).max()


def test_dss_is_its_softmax(float64):
    Lambda, W, _ = random_diagonal(8, 0)
    powers = np.exp(0.05 * full(Lambda)[:, None] * np.arange(20))
    expected = (full(W / Lambda) @ (powers / powers.sum(1, keepdims=True))).real
    np.testing.assert_allclose(kernel_dss(jnp.asarray(Lambda), jnp.asarray(W), 0.05, 20), expected, rtol=0, atol=1e-13)


def test_w_belongs_to_one_length(float64):
    Lambda, W, _ = map(jnp.asarray, random_diagonal(8, 0))
    short, long = kernel_dss(Lambda, W, 0.05, 20), kernel_dss(Lambda, W, 0.05, 40)
    assert np.abs(short - long[:20]).max() > 0.03 * np.abs(short).max()
    Lambda, B, C = map(jnp.asarray, random_diagonal(8, 0))
    np.testing.assert_array_equal(kernel_diagonal(Lambda, B, C, 0.05, 20), kernel_diagonal(Lambda, B, C, 0.05, 40)[:20])


@pytest.mark.parametrize("size", ["small", "odd"])
@pytest.mark.parametrize("discretization", DISCRETIZATIONS)
def test_the_peers_golden_kernels(size, discretization):
    """Outputs of the PyTorch state-spaces repository, run once, and a dense recurrence in float64."""
    part = {name: GOLDEN[f"diag_{discretization}_{size}_{name}"] for name in ("A", "B", "C", "dt", "K", "K_dense")}
    L, scale = part["K"].shape[-1], np.abs(part["K_dense"]).max()
    with jax.enable_x64(True):
        K = kernel_diagonal(*(jnp.asarray(part[n], complex) for n in "ABC"), jnp.asarray(part["dt"], float), L, discretization)
        for expected in (part["K"], part["K_dense"]):
            assert np.abs(K - expected).max() < 1e-12 * scale
    K = kernel_diagonal(*(jnp.asarray(part[n], jnp.complex64) for n in "ABC"), jnp.asarray(part["dt"]), L, discretization)
    assert np.abs(K - part["K"]).max() < 2e-5 * scale


@pytest.mark.parametrize("size", ["small", "odd"])
def test_the_peers_golden_dss(size):
    """Theirs is the plain real part: half of ours, with W = C B."""
    A, B, C = (jnp.asarray(GOLDEN[f"diag_dss_{size}_{name}"], jnp.complex64) for name in "ABC")
    expected = GOLDEN[f"diag_dss_{size}_K"]
    K = kernel_dss(A, C * B, jnp.asarray(GOLDEN[f"diag_dss_{size}_dt"]), expected.shape[-1])
    assert np.abs(K / 2 - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_those_of_finite_differences(float64, method):
    """Each real and imaginary part and the step, along a random direction."""
    weights = jnp.asarray(np.random.default_rng(0).normal(size=9))
    Lambda, B, C = random_diagonal(6, 2)
    kernels = {
        "zoh": lambda step, z: kernel_diagonal(*z, step, 9, "zoh", method),
        "bilinear": lambda step, z: kernel_diagonal(*z, step, 9, "bilinear", method),
        "dss": lambda step, z: kernel_dss(*z[:2], step, 9, method),
    }
    values = [0.1, *(part for z in (Lambda, B, C) for part in (z.real, z.imag))]
    rng = np.random.default_rng(1)
    for name, kernel in kernels.items():
        loss = lambda values: jnp.sum(weights * kernel(values[0], [values[i] + 1j * values[i + 1] for i in (1, 3, 5)]))
        gradient = jax.grad(loss)([jnp.asarray(value) for value in values])
        for i, value in enumerate(values):
            direction = rng.normal(size=np.shape(value))
            moved = lambda eps: loss([jnp.asarray(v + eps * direction if i == j else v) for j, v in enumerate(values)])
            expected = (moved(1e-6) - moved(-1e-6)) / 2e-6
            assert abs(jnp.sum(gradient[i] * direction) - expected) < 1e-8, (name, i)


def test_leading_axes_broadcast(float64):
    systems = [random_diagonal(6, seed) for seed in range(3)]
    stacked = [jnp.asarray(np.stack(part)) for part in zip(*systems, strict=True)]
    step = jnp.asarray([0.01, 0.1, 0.03])
    for method in METHODS:
        together = kernel_diagonal(*stacked, step, 12, "zoh", method)
        dss = kernel_dss(*stacked[:2], step, 12, method)
        assert together.shape == dss.shape == (3, 12)
        shared = kernel_diagonal(*(part[0] for part in stacked), step, 12, "zoh", method)
        for i in range(3):
            one = [part[i] for part in stacked]
            np.testing.assert_allclose(together[i], kernel_diagonal(*one, step[i], 12, "zoh", method), rtol=0, atol=1e-14)
            np.testing.assert_allclose(dss[i], kernel_dss(*one[:2], step[i], 12, method), rtol=0, atol=1e-13)
            first = [part[0] for part in stacked]
            np.testing.assert_allclose(shared[i], kernel_diagonal(*first, step[i], 12, "zoh", method), rtol=0, atol=1e-14)


def test_exprel_keeps_its_digits_and_its_gradient():
    """At 1e-6, (exp(v) - 1)/v as written is 5 % off in float32 and right is 1.0000005; the derivative at 0 is 1/2."""
    v = jnp.float32(1e-6)
    assert abs((jnp.exp(v) - 1) / v - 1) > 0.04
    assert exprel(v) == np.float32(1.0000005)
    assert jax.grad(exprel)(0.0) == 0.5
    assert jax.grad(exprel)(v) == pytest.approx(0.5, rel=1e-5)
    assert jax.grad(lambda v: exprel(jax.lax.complex(v, 0.0)).real)(0.0) == 0.5


def test_exprel_is_scipys(float64):
    v = np.concatenate([np.linspace(-8, 3, 500), [0.5, -0.5, 0.4999999]])
    np.testing.assert_allclose(exprel(jnp.asarray(v)), scipy.special.exprel(v), rtol=1e-14, atol=0)
    v = np.exp(np.random.default_rng(0).uniform(-20, 2, 300)) * np.exp(2j * np.pi * np.random.default_rng(1).uniform(size=300))
    series = sum(v**n / scipy.special.factorial(n + 1) for n in range(60))
    np.testing.assert_allclose(exprel(jnp.asarray(v)), series, rtol=2e-14 * np.exp(7), atol=0)
    derivative = jax.vmap(jax.grad(exprel))(jnp.asarray([-3.0, -0.5, -1e-9, 0.0, 1e-5, 0.51]))
    expected = [sum(n * w ** (n - 1) / scipy.special.factorial(n + 1) for n in range(1, 60)) for w in (-3, -0.5, -1e-9, 0, 1e-5, 0.51)]
    np.testing.assert_allclose(derivative, expected, rtol=1e-13, atol=0)


def test_a_step_without_a_memory_of_the_step_before(float64):
    """Bilinear with step Lambda = -2 has g = 0: K_0 is C Bb and nothing follows; value and gradient are finite."""
    one = jnp.ones(1, complex)
    kernel = lambda decay: kernel_diagonal(-decay * one, one, one, 1.0, 4, "bilinear")
    np.testing.assert_allclose(kernel(2.0), [1, 0, 0, 0], rtol=0, atol=1e-7)
    assert np.all(np.isfinite(jax.jacobian(kernel)(2.0)))


def test_inside_jit_a_step_may_be_a_plain_number():
    one = jnp.ones(1, jnp.complex64)
    assert jax.jit(lambda x: kernel_diagonal(-x, x, x, 0.1, 4))(one).shape == (4,)
    assert jax.jit(lambda x: kernel_dss(-x, x, 0.1, 4))(one).shape == (4,)


MODES = -jnp.ones(2, jnp.complex64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernel_diagonal(MODES, MODES, MODES, 0.1, 0), "L.*at least 1.*0"),
        (lambda: kernel_diagonal(MODES, MODES, MODES, 0.0, 4), "step.*positive.*0.0"),
        (lambda: kernel_diagonal(MODES, MODES, MODES, 0.1, 4, "euler"), "zoh, bilinear.*'euler'"),
        (lambda: kernel_diagonal(MODES, MODES, MODES, 0.1, 4, method="fast"), "auto, dense, two_level, textbook.*'fast'"),
        (lambda: kernel_diagonal(MODES, MODES, MODES[:1], 0.1, 4), r"'C': \(1,\)"),
        (lambda: kernel_dss(MODES, MODES, 0.1, 0), "L.*at least 1.*0"),
        (lambda: kernel_dss(MODES, MODES[:1], 0.1, 4), r"'W': \(1,\)"),
        (lambda: kernel_dss(MODES, MODES, 0.1, 4, method="fast"), "auto, dense, two_level, textbook.*'fast'"),
        (lambda: discretize_diagonal(MODES, MODES, -1.0), "step.*positive.*-1.0"),
    ],
)
def test_bad_input_is_named(without_shape_checks, call, message):
    with pytest.raises(ValueError, match=message):
        call()
