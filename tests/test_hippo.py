import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial import legendre

from annotated_s4.hippo import dplr_legs, hippo_legs, legs_basis, nplr_legs, project_legs, s4d_inv, s4d_legs, s4d_lin
from tests.systems import dense_A, full


@pytest.fixture(autouse=True)
def double_precision(float64):
    """All of this file in float64."""


def test_the_exact_four_by_four_table():
    root3, root5, root7, root15, root21, root35 = np.sqrt([3, 5, 7, 15, 21, 35])
    A, B = hippo_legs(4)
    expected = -np.array([[1, 0, 0, 0], [root3, 2, 0, 0], [root5, root15, 3, 0], [root7, root21, root35, 4]])
    np.testing.assert_allclose(A, expected, rtol=1e-15)
    np.testing.assert_allclose(B, [1, root3, root5, root7], rtol=1e-15)


def test_the_minus_sign_makes_it_stable():
    A, _ = hippo_legs(16)
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(np.asarray(A)).real), -np.arange(16.0, 0, -1), rtol=0, atol=1e-6)


def test_basis_is_orthonormal():
    nodes, weights = legendre.leggauss(20)  # exact up to degree 39
    P = np.asarray(legs_basis(20, (nodes + 1) / 2))
    np.testing.assert_allclose((P * weights[:, None] / 2).T @ P, np.eye(20), rtol=0, atol=1e-13)
    np.testing.assert_allclose(legs_basis(3, np.array([1.0, 0.0])), [[1, np.sqrt(3), np.sqrt(5)], [1, -np.sqrt(3), np.sqrt(5)]])


def test_basis_at_one_point():
    np.testing.assert_allclose(legs_basis(3, 1.0), np.sqrt([1, 3, 5]))


def test_the_state_is_the_projection_of_the_past():
    """Oracle: the integral of the held signal against each polynomial, by Gauss's rule on each sample."""
    u = np.random.default_rng(0).normal(size=40)
    x = project_legs(jnp.asarray(u), 12)
    nodes, weights = legendre.leggauss(8)
    for k in (0, 1, 7, 39):
        r = (np.arange(k + 1)[:, None] + (nodes + 1) / 2) / (k + 1)
        expected = np.einsum("i,p,ipn->n", u[: k + 1], weights / 2 / (k + 1), np.asarray(legs_basis(12, r)))
        np.testing.assert_allclose(x[k], expected, rtol=0, atol=1e-13)


def test_the_differential_equation_is_what_project_legs_solves():
    """Oracle: a Runge-Kutta solution of x' = (A x + B u)/t between two samples."""
    from scipy.integrate import solve_ivp

    u = np.array([0.5, -1.0, 2.0])
    x = np.asarray(project_legs(jnp.asarray(u), 6))
    A, B = (np.asarray(M) for M in hippo_legs(6))
    for k in (1, 2):
        solution = solve_ivp(lambda t, x: (A @ x + B * u[k]) / t, (k, k + 1), x[k - 1], rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(x[k], solution.y[:, -1], rtol=0, atol=1e-8)


def test_hippo_is_normal_plus_rank_one():
    """S + S^T = -I: what is left without its -1/2 I is skew, so it is normal."""
    A, B, P = (np.asarray(x) for x in nplr_legs(16))
    np.testing.assert_allclose(P, np.sqrt(np.arange(16) + 0.5), rtol=1e-15)
    S = A + np.outer(P, P)
    np.testing.assert_allclose(S + S.T, -np.eye(16), rtol=0, atol=1e-13)
    np.testing.assert_array_equal((A, B)[1], hippo_legs(16)[1])


@pytest.mark.parametrize("N", [2, 4, 8, 32, 64])
def test_the_diagonalised_form_is_hippo(N):
    Lambda, P, B, V = (np.asarray(x) for x in dplr_legs(N))
    A, B_real = (np.asarray(x) for x in hippo_legs(N))
    U = np.concatenate([V, V.conj()], axis=1)
    assert Lambda.shape == P.shape == B.shape == (N // 2,) and V.shape == (N, N // 2)
    assert np.all(Lambda.real == -0.5) and np.all(Lambda.imag > 0)
    np.testing.assert_allclose(U.conj().T @ U, np.eye(N), rtol=0, atol=2e-13)
    np.testing.assert_allclose(U @ dense_A(Lambda, P, P) @ U.conj().T, A, rtol=0, atol=1e-13 * np.abs(A).max())
    np.testing.assert_allclose(U @ full(B), B_real, rtol=0, atol=1e-12)
    assert np.all(P.imag == 0) and np.all(P.real > 0), "the phase that makes the answer unique"


def test_the_diagonal_initialisations_by_hand():
    np.testing.assert_allclose(s4d_lin(6), -0.5 + 1j * np.pi * np.array([0, 1, 2]), rtol=1e-15)
    np.testing.assert_allclose(s4d_inv(6), -0.5 + 6j / np.pi * np.array([5, 1, 0.2]), rtol=1e-15)
    np.testing.assert_array_equal(s4d_legs(6), dplr_legs(6)[0])


@pytest.mark.parametrize("N", [64, 256, 1024])
def test_inv_follows_legs(N):
    """Sorted, its frequencies are 10 to 23 % below those of LegS, but for the slowest and the fastest."""
    inv, legs = (np.sort(np.asarray(start(N).imag)) for start in (s4d_inv, s4d_legs))
    ratio = (inv / legs)[N // 8 : -N // 16]
    assert 0.77 < ratio.min() and ratio.max() < 0.91


@pytest.mark.parametrize("start", [dplr_legs, s4d_lin, s4d_inv, s4d_legs])
@pytest.mark.parametrize("N", [1, 3, 63])
def test_an_odd_size_is_refused(N, start):
    with pytest.raises(ValueError, match=f"N must be even.*{N}"):
        start(N)


@pytest.mark.parametrize("call", [lambda: dplr_legs(0), lambda: s4d_lin(0), lambda: s4d_inv(0), lambda: s4d_legs(0), lambda: nplr_legs(0), lambda: hippo_legs(0), lambda: legs_basis(0, np.ones(1)), lambda: project_legs(jnp.ones(3), 0)])
def test_a_size_below_one_is_named(call):
    with pytest.raises(ValueError, match="at least 1.*0"):
        call()


def test_an_empty_signal_is_named():
    with pytest.raises(ValueError, match=r"at least one sample.*\(0,\)"):
        project_legs(jnp.ones(0), 4)
