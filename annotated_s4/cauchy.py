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


def pair_sum_real(
    products: Complex[Array, "systems rows modes"],
    scaled: Complex[Array, "systems modes"],
    theta: Float[Array, " frequencies"],
    ruled: bool,
) -> Complex[Array, "systems rows frequencies"]:
    """`pair_sum` of several rows of numerators a at once, in real arithmetic; scaled is v = step Lambda.

    A mode and its partner have one common denominator, real but for one term:

        d d' = (2 i s - c v)(2 i s - c conj(v)) = c^2 |v|^2 - 4 s^2 - 4 i s c Re v = p - i q,
        a/d + conj(a)/d' = (a d' + conj(a) d) / (d d') = (4 i s Re a - 2 c Re(a conj(v))) (p + i q) / (p^2 + q^2).

    So all sums are products of two real matrices, (rows, modes) and (modes, frequencies), with p/(p^2 + q^2) and q/(p^2 + q^2).
    `ruled` takes the way back through a rule written by hand (chapter 15).
    """
    s, c = jnp.sin(theta / 2), jnp.cos(theta / 2)
    rows = jnp.concatenate([products.real, (products * scaled.conj()[:, None]).real], axis=1)
    over_p, over_q = (_ruled_sums if ruled else _sums)(rows, scaled.real**2 + scaled.imag**2, scaled.real, s, c)
    (a_p, b_p), (a_q, b_q) = jnp.split(over_p, 2, axis=1), jnp.split(over_q, 2, axis=1)
    s, c = s[None, None], c[None, None]
    return jax.lax.complex(-4 * s * a_q - 2 * c * b_p, 4 * s * a_p - 2 * c * b_q)


def _fractions(squared, decay, s, c):
    """p/(p^2 + q^2) and q/(p^2 + q^2), p = c^2 |v|^2 - 4 s^2, q = 4 s c Re v."""
    p = squared[..., None] * (c * c)[None, None] - (4 * s * s)[None, None]
    q = decay[..., None] * (4 * s * c)[None, None]
    # |v| below 1e-9 would underflow: a memory of a thousand million steps comes out too weak, but it comes out.
    inverse = 1 / jnp.maximum(p * p + q * q, jnp.finfo(p.dtype).tiny)
    return p * inverse, q * inverse


def _product(form, a, b):
    return jnp.einsum(form, a, b, precision="highest")


def _sums(rows, squared, decay, s, c):
    return tuple(_product("hkm,hmf->hkf", rows, fraction) for fraction in _fractions(squared, decay, s, c))


@jax.custom_vjp
def _ruled_sums(rows, squared, decay, s, c):
    return _sums(rows, squared, decay, s, c)


def _ruled_forward(rows, squared, decay, s, c):
    P, Q = _fractions(squared, decay, s, c)
    return (_product("hkm,hmf->hkf", rows, P), _product("hkm,hmf->hkf", rows, Q)), (rows, P, Q, s, c)


def _ruled_backward(kept, cotangents):
    """With Z = P + i Q = 1/(p - i q), dZ = -Z^2 (dp - i dq): both gradients from P and Q alone."""
    rows, P, Q, s, c = kept
    to_P, to_Q = (_product("hkm,hkf->hmf", rows, cotangent) for cotangent in cotangents)
    to_rows = sum(_product("hkf,hmf->hkm", cotangent, part) for cotangent, part in zip(cotangents, (P, Q), strict=True))
    square, twice = P * P - Q * Q, 2 * P * Q
    to_squared = _product("hmf,f->hm", -(square * to_P + twice * to_Q), c * c)
    to_decay = _product("hmf,f->hm", square * to_Q - twice * to_P, 4 * s * c)
    return to_rows, to_squared, to_decay, jnp.zeros_like(s), jnp.zeros_like(c)


_ruled_sums.defvjp(_ruled_forward, _ruled_backward)


def _require_modes(numerators, Lambda) -> None:
    if numerators.shape[-1] != Lambda.shape[-1]:
        raise ValueError(
            f"numerators and Lambda have one number for each mode, but they have shapes {numerators.shape} and {Lambda.shape}"
        )
