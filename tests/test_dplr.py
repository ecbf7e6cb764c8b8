from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_s4.dplr import discretize_dplr, kernel_dplr
from annotated_s4.generating import to_tilde
from annotated_s4.hippo import dplr_legs
from tests.systems import dense_discretization, dense_kernel, full, random_dplr

GOLDEN = np.load(Path(__file__).parent / "data" / "peer_kernels.npz")
METHODS = ("dense", "blocked", "textbook")


@partial(jax.jit, static_argnums=(2, 3))
def kernel(system, step, L, method):
    """From C, as the oracle takes it, through C_tilde."""
    Lambda, P, Q, B, C = (jnp.asarray(x) for x in system)
    return kernel_dplr(Lambda, P, Q, B, to_tilde(C, Lambda, P, Q, step, L), step, L, method=method)


@pytest.mark.parametrize("L", [1, 2, 3, 16, 33, 256, 1009, 1023, 1024])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_both_forms_are_the_recurrence(float64, L, tied):
    """Random complex and real P, Q and C, N from 2 to 64, step between min(1/L, 0.1) and 0.1."""
    for N, step, real in ((2, 0.1, False), (8, min(1 / L, 0.1), True), (64, (min(1 / L, 0.1) + 0.1) / 2, False)):
        system = random_dplr(N, seed=L + N, tied=tied, real=real)
        expected = dense_kernel(*system, step, L)
        for method in METHODS:
            error = np.abs(kernel(system, step, L, method) - expected).max()
            # Where the one number of L = 1 is a sum that cancels, the size of its terms is the scale.
            scale = max(np.abs(expected).max(), 0.1 * step * np.abs(system[3] * system[4]).sum())
            assert error < 1e-12 * scale, (method, N, step, error / scale)


@given(N=st.integers(1, 16), L=st.integers(1, 80), position=st.floats(0, 1), seed=st.integers(0, 500), tied=st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_shape(N, L, position, seed, tied):
    jax.config.update("jax_enable_x64", True)
    try:
        low = min(1 / L, 0.1)
        step = low + position * (0.1 - low)
        system = random_dplr(2 * N, seed, tied=tied)
        expected = dense_kernel(*system, step, L)
        scale = max(np.abs(expected).max(), 0.1 * step * np.abs(system[3] * system[4]).sum())
        assert np.abs(kernel(system, step, L, "dense") - expected).max() < 1e-12 * scale
    finally:
        jax.config.update("jax_enable_x64", False)


def legs_in_double_precision(N):
    """Lambda, P and B of HiPPO-LegS for the oracle of a test that itself runs in single precision."""
    jax.config.update("jax_enable_x64", True)
    try:
        return [np.asarray(x) for x in dplr_legs(N)[:3]]
    finally:
        jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("L", [16, 256, 1023, 1024, 4096])
@pytest.mark.parametrize("N", [4, 64])
def test_single_precision(L, N):
    """Given C_tilde, below 1e-5 of the largest value (the conversion from C is another matter: chapter 9)."""
    for system in (random_dplr(N, L), None):
        if system is None:
            Lambda, P, B = legs_in_double_precision(N)
            system = (Lambda, P, P, B, np.random.default_rng(L).normal(size=N // 2) + 0j)
        step = 1 / L
        expected = dense_kernel(*system, step, L)
        Ab, _ = dense_discretization(*system[:4], step)
        C_tilde = (full(system[4]) @ (np.eye(N) - np.linalg.matrix_power(Ab, L)))[: N // 2]
        single = [jnp.asarray(x, jnp.complex64) for x in (*system[:4], C_tilde)]
        for method in ("dense", "blocked"):
            K = kernel_dplr(*single, step, L, method=method)
            assert K.dtype == jnp.float32
            assert np.abs(K - expected).max() < 1e-5 * np.abs(expected).max(), method


def dense_kernel_in_jax(Lambda, P, Q, B, C_tilde, step, L):
    """The recurrence again, in float64 JAX, so that it can be differentiated."""
    pairs = lambda x: jnp.concatenate([x, x.conj()])
    A = jnp.diag(pairs(Lambda)) - jnp.outer(pairs(P), pairs(Q).conj())
    identity = jnp.eye(A.shape[0])
    left = identity - step / 2 * A
    Ab, x = jnp.linalg.solve(left, identity + step / 2 * A), jnp.linalg.solve(left, step * pairs(B))
    C = jnp.linalg.solve((identity - jnp.linalg.matrix_power(Ab, L)).T, pairs(C_tilde))
    K = []
    for _ in range(L):
        K.append(C @ x)
        x = Ab @ x
    return jnp.stack(K).real


@pytest.mark.parametrize("L", [2, 7, 16])
@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_those_of_the_recurrence(float64, L, method):
    Lambda, P, Q, B, C = (jnp.asarray(x) for x in random_dplr(6, 3))
    arguments = (Lambda, P, Q, B, to_tilde(C, Lambda, P, Q, 0.1, L), jnp.asarray(0.1))
    weights = jnp.asarray(np.random.default_rng(0).normal(size=L))
    loss = lambda f: jax.grad(lambda *a: jnp.sum(weights * f(*a)), argnums=tuple(range(6)))(*arguments)
    ours = loss(lambda *a: kernel_dplr(*a, L, method=method))
    oracle = loss(lambda *a: dense_kernel_in_jax(*a, L))
    for name, found, expected in zip(("Lambda", "P", "Q", "B", "C_tilde", "step"), ours, oracle, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("L", [2, 4, 64, 1000, 1024])
def test_gradients_are_finite_at_every_even_length(L):
    system = [jnp.asarray(x, jnp.complex64) for x in random_dplr(8, L)]
    for method in ("dense", "blocked"):
        loss = lambda *a: jnp.sum(kernel_dplr(*a, L, method=method) ** 2)
        for gradient in jax.grad(loss, argnums=tuple(range(6)))(*system, jnp.float32(0.01)):
            assert np.all(np.isfinite(gradient)), method


def test_the_value_at_the_pole(float64):
    """At theta = pi the generating function is step/2 times the sum over the full state of C_tilde B."""
    Lambda, P, Q, B, C_tilde = (jnp.asarray(x) for x in random_dplr(8, 0))
    K = kernel_dplr(Lambda, P, Q, B, C_tilde, 0.1, 16)
    alternating = np.sum(np.asarray(K) * (-1.0) ** np.arange(16))
    assert alternating == pytest.approx(0.1 / 2 * full(np.asarray(C_tilde * B)).sum().real, rel=1e-12)


def test_leading_axes_broadcast(float64):
    systems = [random_dplr(6, seed) for seed in range(3)]
    stacked = [jnp.asarray(np.stack(parts)) for parts in zip(*systems, strict=True)]
    step = jnp.asarray([0.01, 0.1, 0.03])
    for method in METHODS:
        together = kernel_dplr(*stacked, step, 12, method=method)
        assert together.shape == (3, 12)
        for i in range(3):
            alone = kernel_dplr(*(x[i] for x in stacked), step[i], 12, method=method)
            np.testing.assert_allclose(together[i], alone, rtol=0, atol=1e-14)
            shared = kernel_dplr(*(x[0] for x in stacked), step, 12, method=method)
            np.testing.assert_allclose(shared[i], kernel_dplr(*(x[0] for x in stacked), step[i], 12, method=method), rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", ["small", "odd"])
def test_the_peers_golden_kernels(size, float64):
    """Outputs of the PyTorch state-spaces repository, run once, and a dense recurrence in float64."""
    part = {name: GOLDEN[f"dplr_{size}_{name}"] for name in ("A", "P", "B", "C", "dt", "K", "K_dense")}
    L = part["K"].shape[-1]
    double = [jnp.asarray(part[name], jnp.complex128) for name in ("A", "P", "P", "B", "C")]
    step = jnp.asarray(part["dt"], jnp.float64)
    C_tilde = to_tilde(double[4], *double[:3], step, L)
    K = kernel_dplr(*double[:4], C_tilde, step, L)
    assert np.abs(K - part["K_dense"]).max() < 1e-12 * np.abs(part["K_dense"]).max()
    single = [jnp.asarray(x, jnp.complex64) for x in (*double[:4], C_tilde)]
    K = kernel_dplr(*single, jnp.asarray(part["dt"]), L)
    assert np.abs(K - part["K"]).max() < 2e-5 * np.abs(part["K"]).max()


def test_textbook_is_the_fair_baseline_of_2022():
    """Value and gradient at (L, N, H) = (1024, 64, 256) plan for the memory that was measured: 1170 MB within a tenth."""
    pair = jax.ShapeDtypeStruct((256, 32, 2), jnp.float32)

    def loss(pairs, step):
        parameters = [pair[..., 0] + 1j * pair[..., 1] for pair in pairs]
        return jnp.sum(kernel_dplr(*parameters, step, 1024, method="textbook") ** 2)

    step = jax.ShapeDtypeStruct((256,), jnp.float32)
    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower([pair] * 5, step).compile()
    assert compiled.memory_analysis().temp_size_in_bytes == pytest.approx(1170e6, rel=0.1)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("N", [2, 8, 64])
def test_a_step_is_the_dense_step(float64, N, tied):
    Lambda, P, Q, B, x = random_dplr(N, 5, tied=tied)
    Ab, Bb = dense_discretization(Lambda, P, Q, B, 0.07)
    ours = discretize_dplr(*map(jnp.asarray, (Lambda, P, Q, B)), 0.07).step(jnp.asarray(x), jnp.asarray(0.3))
    np.testing.assert_allclose(ours, (Ab @ full(x) + 0.3 * Bb)[: N // 2], rtol=0, atol=1e-12 * np.abs(x).max())


def run_steps(system, step, L, precision):
    Lambda, P, Q, B, C = (jnp.asarray(x, precision) for x in system)
    recurrence = discretize_dplr(Lambda, P, Q, B, step)
    impulse = jnp.zeros(L, Lambda.real.dtype).at[0].set(1)

    def advance(x, u_k):
        x = recurrence.step(x, u_k)
        return x, 2 * jnp.sum(C * x).real

    return jax.lax.scan(advance, jnp.zeros_like(B), impulse)[1]


@pytest.mark.parametrize("tied", [True, False])
def test_kernel_and_recurrence_agree(float64, tied):
    system = random_dplr(32, 7, tied=tied)
    K = kernel(system, 0.02, 300, "dense")
    steps = run_steps(system, 0.02, 300, jnp.complex128)
    assert np.abs(K - steps).max() < 1e-12 * np.abs(K).max()


def test_kernel_and_recurrence_agree_in_single_precision():
    """Chapter 9's table: the recurrence of HiPPO-LegS stays below 1e-5 at L = 1024, and so does the kernel."""
    system = random_dplr(32, 7, tied=True)
    expected = dense_kernel(*system, 0.02, 300)
    steps = run_steps(system, 0.02, 300, jnp.complex64)
    assert np.abs(steps - expected).max() < 1e-5 * np.abs(expected).max()


def test_a_short_step_keeps_its_digits_in_single_precision():
    """HiPPO-LegS over 16384 steps of 1/16384: below 1e-5, where Ab x + Bb u, rounded, is above."""
    Lambda, P, B = legs_in_double_precision(16)
    L = 16384
    system = (Lambda, P, P, B, np.random.default_rng(0).normal(size=8) + 0j)
    expected = dense_kernel(*system, 1 / L, L)
    steps = run_steps(system, 1 / L, L, jnp.complex64)
    assert np.abs(steps - expected).max() < 1e-5 * np.abs(expected).max()


def test_a_step_contains_no_solve():
    Lambda, P, Q, B, x = (jnp.asarray(x, jnp.complex64) for x in random_dplr(8, 0))
    program = str(jax.make_jaxpr(discretize_dplr(Lambda, P, Q, B, 0.1).step)(x, jnp.float32(1)))
    for forbidden in ("triangular_solve", "lu", "custom_linear_solve", "inv", "dot_general"):
        assert f" {forbidden}" not in program
    assert "8,8" not in program and "4,4" not in program, "a matrix of the state's size"


def test_inside_jit_a_step_may_be_a_plain_number():
    one = jnp.ones(1, jnp.complex64)
    assert jax.jit(lambda x: kernel_dplr(-x, x, x, x, x, 0.1, 4))(one).shape == (4,)


def test_c_tilde_belongs_to_one_length(float64):
    """N = 8, LegS, step 1/64, C_tilde = e_0: the same numbers at L = 128 are another filter, 26.9 % of the largest value away."""
    Lambda, P, B, V = dplr_legs(8)
    C_tilde = V[0]  # e_0 in the coordinates of the modes: a row, so e_0 V
    short, long = (kernel_dplr(Lambda, P, P, B, C_tilde, 1 / 64, L) for L in (64, 128))
    assert np.abs(short - long[:64]).max() / np.abs(short).max() == pytest.approx(0.269, abs=0.001)


MODES = jnp.ones(2, jnp.complex64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernel_dplr(MODES, MODES, MODES, MODES, MODES, 0.1, 0), "L.*at least 1.*0"),
        (lambda: kernel_dplr(MODES, MODES, MODES, MODES, MODES, 0.0, 4), "step.*positive.*0.0"),
        (lambda: kernel_dplr(MODES, MODES, MODES, MODES, MODES, 0.1, 4, method="fast"), "auto, dense, blocked, textbook.*'fast'"),
        (lambda: kernel_dplr(MODES, MODES, jnp.ones(3, jnp.complex64), MODES, MODES, 0.1, 4), r"'Q': \(3,\)"),
        (lambda: discretize_dplr(MODES, MODES, MODES, jnp.ones(3, jnp.complex64), 0.1), r"'B': \(3,\)"),
        (lambda: discretize_dplr(MODES, MODES, MODES, MODES, -1.0), "step.*positive.*-1.0"),
    ],
)
def test_bad_input_is_named(without_shape_checks, call, message):
    with pytest.raises(ValueError, match=message):
        call()
