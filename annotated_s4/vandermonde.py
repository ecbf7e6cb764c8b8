"""The Vandermonde product: sums over the modes of a state, sum_n a_n exp(l v_n), for l = 0, 1, ..., L - 1 at once."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from annotated_s4.blocks import map_systems


def vandermonde_textbook(numerators: Complex[Array, " N"], exponents: Complex[Array, " N"], L: int) -> Complex[Array, " {L}"]:
    """sum_n a_n exp(l v_n), a_n the numerators and v_n the exponents, over the full state: one map over l.

    The form of 2022. Nothing is done about memory: a compiler that does not fuse the exponential with the sum writes down all
    L x N powers. It is the baseline of every later ratio.

    Raises:
        ValueError: L is below 1, or numerators and exponents do not have the same number of modes.

    Source: Gu, Gupta, Goel, Re (2022), section 3.2.
    """
    _require_product(numerators, exponents, L)
    return jax.vmap(lambda l: jnp.sum(numerators * jnp.exp(l * exponents)))(jnp.arange(L))


def vandermonde_pairs(
    numerators: Complex[Array, "*leading modes"], exponents: Complex[Array, "*leading modes"], L: int
) -> Float[Array, "*leading {L}"]:
    """2 Re sum_n a_n exp(l v_n): the sum over the full state, from one mode of each conjugate pair.

    In time a mode and its partner are conjugates of each other, so the pair is twice a real part. (In frequency it is not:
    `annotated_s4.cauchy.pair_sum`.) All L x modes powers are written down, for every system.

    Raises:
        ValueError: L is below 1, or numerators and exponents do not have the same number of modes.

    Source: Gu, Gupta, Goel, Re (2022), section 3.2; chapter 11.
    """
    _require_product(numerators, exponents, L)
    l = jnp.arange(L, dtype=exponents.real.dtype).reshape((1,) * (exponents.ndim - 1) + (L, 1))  # ... L 1
    return 2 * (numerators[..., None, :] * jnp.exp(l * exponents[..., None, :])).sum(-1).real


def vandermonde_two_level(
    numerators: Complex[Array, "*leading modes"], exponents: Complex[Array, "*leading modes"], L: int
) -> Float[Array, "*leading {L}"]:
    """2 Re sum_n a_n exp(l v_n), with l = T i + j split into a coarse and a fine part, exp(l v) = exp(T i v) exp(j v):

        K_{Ti+j} = 2 Re sum_n (a_n exp(T i v_n)) exp(j v_n),

    a product of two thin matrices, L/T x modes and modes x T. With T about the root of L that takes 2 sqrt(L) exponentials for each mode
    and not L, and a few systems at a time, so that temporaries do not grow with the number of systems or modes.

    Raises:
        ValueError: L is below 1, or numerators and exponents do not have the same number of modes.

    Source: chapter 15.
    """
    _require_product(numerators, exponents, L)
    modes, block = exponents.shape[-1], partial(two_level_block, L)
    K = map_systems(block, block, two_level_numbers(L, modes), numerators.reshape(-1, modes), exponents.reshape(-1, modes))
    return K.reshape(*exponents.shape[:-1], L)


def two_level_block(
    L: int, numerators: Complex[Array, "systems modes"], exponents: Complex[Array, "systems modes"]
) -> Float[Array, "systems {L}"]:
    """`vandermonde_two_level` of the systems of one block."""
    powers = lambda l: jnp.exp(l.astype(exponents.real.dtype)[None, :, None] * exponents[:, None])  # systems l modes
    T = _fine(L)
    coarse, fine = numerators[:, None] * powers(jnp.arange(0, L, T)), powers(jnp.arange(T))
    # Re (a b) = Re a Re b - Im a Im b, as one real product over twice the modes.
    coarse, fine = jnp.concatenate([coarse.real, -coarse.imag], -1), jnp.concatenate([fine.real, fine.imag], -1)
    K = 2 * jnp.einsum("hin,hjn->hij", coarse, fine, precision="highest")
    return K.reshape(K.shape[0], -1)[:, :L]


def two_level_numbers(L: int, modes: int) -> int:
    """How many powers the two matrices of one system hold."""
    return modes * (_fine(L) + -(-L // _fine(L)))


def _fine(L: int) -> int:
    """T, the power of two at or above the root of L."""
    return 2 ** math.ceil(math.log2(L) / 2)


def _require_product(numerators, exponents, L) -> None:
    if L < 1:
        raise ValueError(f"L is the number of powers and must be at least 1, but it is {L}")
    if numerators.shape[-1] != exponents.shape[-1]:
        raise ValueError(
            f"numerators and exponents have one number for each mode, but they have shapes {numerators.shape} and {exponents.shape}"
        )
