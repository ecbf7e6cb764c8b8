"""The truncated generating function of a kernel, K_hat(z) = sum_{l<L} K_l z^l, and the way back.

With C_tilde = C (I - Ab^L) the sum is one resolvent: K_hat(z) = C_tilde (I - z Ab)^-1 Bb at every z with z^L = 1, if Ab is
stable: an eigenvalue on the unit circle could be one of these z. C_tilde belongs to that L: at another length the same
numbers are another filter.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact

from annotated_s4.ssm import broadcast_modes, discretize


def roots_of_unity(L: int) -> Complex[Array, " {L}"]:
    """z_j = exp(-2 pi i j / L): the L points at which the FFT evaluates a polynomial.

    Raises:
        ValueError: L is below 1.
    """
    if L < 1:
        raise ValueError(f"L is the number of roots and must be at least 1, but it is {L}")
    return jnp.exp(-2j * jnp.pi * jnp.arange(L) / L)


def generating_function(
    Ab: Inexact[Array, "N N"], Bb: Inexact[Array, " N"], C_tilde: Inexact[Array, " N"], z: Complex[Array, " points"]
) -> Complex[Array, " points"]:
    """K_hat(z) = C_tilde (I - z Ab)^-1 Bb, one dense solve for each z: slow, and plainly what the formula says.

    Raises:
        ValueError: Ab is not square, or Bb or C_tilde does not fit it.

    Source: Gu, Goel, Re (2022), definition 2, appendix C.3.
    """
    _require_square(Ab, Bb, C_tilde)
    identity = jnp.eye(Ab.shape[-1], dtype=Ab.dtype)
    return jax.lax.map(lambda z_j: C_tilde @ jnp.linalg.solve(identity - z_j * Ab, Bb.astype(z.dtype)), z)


def kernel_from_values(values: Complex[Array, "*leading roots"]) -> Complex[Array, "*leading roots"]:
    """K_l = 1/L sum_j K_hat(z_j) conj(z_j)^l: the kernel from its generating function at all roots of unity.

    Source: Gu, Goel, Re (2022), lemma C.2.
    """
    return jnp.fft.ifft(values)


def to_tilde(
    C: Complex[Array, "*#leading modes"],
    Lambda: Complex[Array, "*#leading modes"],
    P: Complex[Array, "*#leading modes"],
    Q: Complex[Array, "*#leading modes"],
    step: Float[Array, "*#leading"] | float,
    L: int,
) -> Complex[Array, "*leading modes"]:
    """C_tilde = C (I - Ab^L) for the bilinear Ab of A = diag(Lambda) - P Q*, one of each conjugate pair in and out.

    Ab^L takes about 2 log2(L) products of matrices. In float32 it loses digits (chapter 9): convert in float64.

    Raises:
        ValueError: L is below 1, or the modes do not fit each other.

    Source: Gu, Goel, Re (2022), lemma C.3 (there with a conjugate, since their C is not a row).
    """
    return _convert(C, Lambda, P, Q, step, L, lambda C, factor: C @ factor)


def from_tilde(
    C_tilde: Complex[Array, "*#leading modes"],
    Lambda: Complex[Array, "*#leading modes"],
    P: Complex[Array, "*#leading modes"],
    Q: Complex[Array, "*#leading modes"],
    step: Float[Array, "*#leading"] | float,
    L: int,
) -> Complex[Array, "*leading modes"]:
    """C = C_tilde (I - Ab^L)^-1: the row that the recurrence needs, from the one that was trained for length L.

    Raises:
        ValueError: L is below 1, or the modes do not fit each other.

    Source: the inverse of `to_tilde`.
    """
    return _convert(C_tilde, Lambda, P, Q, step, L, lambda C_tilde, factor: jnp.linalg.solve(factor.T, C_tilde))


def _convert(row, Lambda, P, Q, step, L, apply):
    """apply(row, I - Ab^L) for each system, one after the other, in real numbers.

    With x = a + ib for one of each pair, y = 2 Re C x = 2 (Re C, -Im C) (a, b), and A x = Lambda x - P 2 Re sum conj(Q) x is a real
    matrix for (a, b): a quarter of the work that the complex matrix of the full state takes.
    """
    if L < 1:
        raise ValueError(f"L is the length that C_tilde belongs to and must be at least 1, but it is {L}")
    step, Lambda, P, Q, row = broadcast_modes(step, Lambda=Lambda, P=P, Q=Q, C=row)
    modes = row.shape[-1]

    def one(system):
        row, Lambda, P, Q, step = system
        real, imaginary = jnp.diag(Lambda.real), jnp.diag(Lambda.imag)
        p, q = (jnp.concatenate([x.real, x.imag]) for x in (P, Q))
        A = jnp.block([[real, -imaginary], [imaginary, real]]) - 2 * jnp.outer(p, q)
        Ab, _ = discretize(A, p, step)
        identity = jnp.eye(2 * modes, dtype=A.dtype)
        result = apply(jnp.concatenate([row.real, -row.imag]), identity - jnp.linalg.matrix_power(Ab, L))
        return jax.lax.complex(result[:modes], -result[modes:])

    flat = [x.reshape(-1, modes) for x in (row, Lambda, P, Q)]
    return jax.lax.map(one, (*flat, step.reshape(-1))).reshape(row.shape)


def _require_square(Ab, *vectors) -> None:
    if Ab.ndim != 2 or Ab.shape[0] != Ab.shape[1] or any(vector.shape != Ab.shape[:1] for vector in vectors):
        raise ValueError(f"Ab is (N, N), Bb and C_tilde are (N,), but they have shapes {[x.shape for x in (Ab, *vectors)]}")
