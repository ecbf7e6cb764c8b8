"""The Cauchy product: sums over the modes of a state, sum_n a_n / (omega - Lambda_n), for many omega at once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float


def cauchy_textbook(
    numerators: Complex[Array, " N"], omega: Complex[Array, " roots"], Lambda: Complex[Array, " N"]
) -> Complex[Array, " roots"]:
    """sum_n a_n / (omega_j - Lambda_n), a_n the numerators, for each omega_j, over the full state: one map over omega.

    The form of 2022, the summand written as a product with 1 / (omega - Lambda). Nothing is done about memory: a compiler that does not fuse the division with the sum writes down all
    roots x N quotients. It is the baseline of every later ratio.

    Raises:
        ValueError: numerators and Lambda do not have the same number of modes.

    Source: Gu, Goel, Re (2022), appendix C.3.
    """
    _require_modes(numerators, Lambda)
    return jax.vmap(lambda omega_j: jnp.sum(numerators * (1 / (omega_j - Lambda))))(omega)


def pair_sum(
    numerators: Complex[Array, "*leading modes"],
    Lambda: Complex[Array, "*leading modes"],
    step: Float[Array, "*leading"],
    theta: Float[Array, " frequencies"],
) -> Complex[Array, "*leading frequencies"]:
    """sum_n a_n / d_n + conj(a_n) / d'_n,   d_n = 2 i s - step c Lambda_n,   d'_n = 2 i s - step c conj(Lambda_n).

    a_n are the numerators, s = sin(theta/2) and c = cos(theta/2). One mode of each conjugate pair is given; its partner is added here and
    nowhere else. The partner has the same 2 i s, so the sum is complex, and twice a real part would be wrong.
    For Re Lambda < 0 no theta is a pole: the real part of d_n is -step c Re Lambda_n, and where c = 0, d_n is 2 i.

    Raises:
        ValueError: numerators and Lambda do not have the same number of modes.

    Source: chapter 6; the sum over the full state is in Gu, Goel, Re (2022), appendix C.3.
    """
    _require_modes(numerators, Lambda)
    along_frequencies = lambda x: x.reshape((1,) * step.ndim + (-1, 1))  # ... frequencies 1
    s, c = along_frequencies(jnp.sin(theta / 2)), along_frequencies(jnp.cos(theta / 2))
    numerators, Lambda, step = numerators[..., None, :], Lambda[..., None, :], step[..., None, None]
    modes = numerators / (2j * s - step * c * Lambda)
    partners = numerators.conj() / (2j * s - step * c * Lambda.conj())
    return (modes + partners).sum(-1)


def _require_modes(numerators, Lambda) -> None:
    if numerators.shape[-1] != Lambda.shape[-1]:
        raise ValueError(
            f"numerators and Lambda have one number for each mode, but they have shapes {numerators.shape} and {Lambda.shape}"
        )
