"""HiPPO: the matrices of a memory that keeps the best polynomial approximation of everything it has heard."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import expm
from jaxtyping import Array, Complex, Float
from numpy.polynomial import legendre


def hippo_legs(N: int) -> tuple[Float[Array, "{N} {N}"], Float[Array, " {N}"]]:
    """A and B of HiPPO-LegS, with the minus sign that makes A stable:

        A[n, m] = -sqrt((2n+1)(2m+1))  for n > m,    -(n+1)  for n = m,    0  for n < m
        B[n]    =  sqrt(2n+1)

    The coefficients of the past follow x'(t) = (A x + B u) / t; S4 drops the 1/t (chapter 3 derives both and says what changes).

    Raises:
        ValueError: N is below 1.

    Source: Gu, Dao, Ermon, Rudra, Re (2020), theorem 2, there without the minus sign.
    """
    _require_size(N)
    root = np.sqrt(2 * np.arange(N) + 1)
    A = -np.tril(np.outer(root, root), -1) - np.diag(np.arange(N) + 1.0)
    return jnp.asarray(A, jnp.result_type(float)), jnp.asarray(root, jnp.result_type(float))


def legs_basis(N: int, r: Float[np.ndarray | Array, "*points"] | float) -> Float[Array, "*points {N}"]:
    """p_n(r) = sqrt(2n+1) P_n(2r - 1) for n < N: Legendre's polynomials, orthonormal on [0, 1].

    The same polynomials read both memories: the past is sum_n x_n p_n(r). r = 1 is the present. For what came in
    tau ago, r = 1 - tau/t in the system with the 1/t at time t, and r = exp(-tau) in the time-invariant system.

    Raises:
        ValueError: N is below 1.
    """
    _require_size(N)
    values = legendre.legvander(2 * np.asarray(r) - 1, N - 1) * np.sqrt(2 * np.arange(N) + 1)
    return jnp.asarray(values.reshape(*np.shape(r), N), jnp.result_type(float))


def project_legs(u: Float[Array, " L"], N: int) -> Float[Array, "L {N}"]:
    """HiPPO-LegS with its 1/t: the state x_k at time k + 1, after k + 1 samples that were each held for one unit.

    x'(t) = (A x + B u) / t is solved exactly for a held input. Since A e_0 = -B, a constant u is remembered
    as u e_0 for ever, and what differs from it decays by a power of time:

        x_k = (k / (k+1))^(-A) (x_{k-1} - u_k e_0) + u_k e_0,    x_0 = u_0 e_0.

    Raises:
        ValueError: N is below 1, or u has no sample.

    Source: Gu, Dao, Ermon, Rudra, Re (2020), theorem 2, with the exact step in place of its approximations.
    """
    A, _ = hippo_legs(N)
    if u.ndim != 1 or u.shape[0] == 0:
        raise ValueError(f"u is one sequence of at least one sample, shape (L,), but it has shape {u.shape}")
    u = u.astype(A.dtype)
    e_0 = jnp.zeros(N, A.dtype).at[0].set(1)

    def advance(x, sample):
        k, u_k = sample
        power = expm(A * jnp.log((k + 1) / k))
        x = jnp.matmul(power, x - u_k * e_0, precision="highest") + u_k * e_0
        return x, x

    times = jnp.arange(1, u.shape[0], dtype=A.dtype)
    x = jax.lax.scan(advance, u[0] * e_0, (times, u[1:]))[1]
    return jnp.concatenate([(u[0] * e_0)[None], x])


def nplr_legs(N: int) -> tuple[Float[Array, "{N} {N}"], Float[Array, " {N}"], Float[Array, " {N}"]]:
    """A, B and P of HiPPO-LegS, with P_n = sqrt(n + 1/2), so that A + P P^T = -1/2 I + S with S = -S^T: normal.

    Raises:
        ValueError: N is below 1.

    Source: Gu, Goel, Re (2022), appendix C.1.
    """
    A, B = hippo_legs(N)
    return A, B, B / jnp.sqrt(jnp.asarray(2, B.dtype))


def dplr_legs(
    N: int,
) -> tuple[Complex[Array, " modes"], Complex[Array, " modes"], Complex[Array, " modes"], Complex[Array, "{N} modes"]]:
    """Lambda, P, B (one of each conjugate pair, Im Lambda > 0) and V, their eigenvectors, of HiPPO-LegS:

        A = U (diag(Lambda, conj Lambda) - p p*) U*,   U = [V, conj V] unitary,   p = (P, conj P).

    The skew part S of A + P P^T is i times a Hermitian matrix, which `eigh` takes apart accurately; its -1/2 I is
    left out before and added after, so Re Lambda is -1/2 exactly. An eigenvector may be turned by any phase; it is
    chosen so that P is real and positive.

    Raises:
        ValueError: N is below 1, or odd: one mode would have no partner.

    Source: Gu, Goel, Re (2022), theorem 1 and appendix C.1; chapter 8.
    """
    _require_pairs(N)
    root = np.sqrt(np.arange(N) + 0.5)
    S = np.triu(np.outer(root, root), 1) - np.tril(np.outer(root, root), -1)
    frequency, V = np.linalg.eigh(-1j * S)
    frequency, V = frequency[N // 2 :], V[:, N // 2 :]
    P = V.conj().T @ root
    V = V * (P / np.abs(P))
    P = np.abs(P).astype(complex)
    type_ = jnp.result_type(complex)
    return tuple(jnp.asarray(x, type_) for x in (-0.5 + 1j * frequency, P, np.sqrt(2) * P, V))


def s4d_lin(N: int) -> Complex[Array, " modes"]:
    """Lambda_n = -1/2 + i pi n, n < N/2: a Fourier series that fades, one mode of each conjugate pair.

    n = 0 is its own partner, so the real system has this mode twice.

    Raises:
        ValueError: N is below 1, or odd.

    Source: Gu, Gupta, Goel, Re (2022), section 4.3; chapter 11.
    """
    _require_pairs(N)
    return jnp.asarray(-0.5 + 1j * np.pi * np.arange(N // 2), jnp.result_type(complex))


def s4d_inv(N: int) -> Complex[Array, " modes"]:
    """Lambda_n = -1/2 + i N/pi (N/(2n+1) - 1), n < N/2: the spectrum of `s4d_legs` in closed form, within a quarter of it.

    N is the full size; the imaginary parts fall with n, from about N^2/pi: many slow modes, few fast ones.

    Raises:
        ValueError: N is below 1, or odd.

    Source: Gu, Gupta, Goel, Re (2022), section 4.3; chapter 11.
    """
    _require_pairs(N)
    frequency = N / np.pi * (N / (2 * np.arange(N // 2) + 1) - 1)
    return jnp.asarray(-0.5 + 1j * frequency, jnp.result_type(complex))


def s4d_legs(N: int) -> Complex[Array, " modes"]:
    """The Lambda of `dplr_legs`: HiPPO-LegS without its rank-one part, which is normal and so can be made diagonal.

    Raises:
        ValueError: N is below 1, or odd.

    Source: Gupta, Gu, Berant (2022), section 3.4; Gu, Gupta, Goel, Re (2022), theorem 3; chapter 11.
    """
    return dplr_legs(N)[0]


def _require_pairs(N: int) -> None:
    _require_size(N)
    if N % 2:
        raise ValueError(f"N must be even, since modes come in conjugate pairs and one of each is kept, but it is {N}")


def _require_size(N: int) -> None:
    if N < 1:
        raise ValueError(f"N is the number of coefficients and must be at least 1, but it is {N}")
