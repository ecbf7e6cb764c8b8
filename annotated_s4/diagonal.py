"""Diagonal systems: the kernels of S4D and DSS, and their recurrence.

The system is A = diag(Lambda), and one of each conjugate pair is given: the full state has as many modes again, the
conjugates, so that the system is real.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact

from annotated_s4.blocks import fits_in_a_block, map_systems
from annotated_s4.ssm import broadcast_modes, require_one_of
from annotated_s4.vandermonde import two_level_block, two_level_numbers, vandermonde_pairs, vandermonde_textbook

Discretization = Literal["zoh", "bilinear"]
Method = Literal["auto", "dense", "two_level", "textbook"]


def kernel_diagonal(
    Lambda: Complex[Array, "*#leading modes"],
    B: Complex[Array, "*#leading modes"],
    C: Complex[Array, "*#leading modes"],
    step: Float[Array, "*#leading"] | float,
    L: int,
    discretization: Discretization = "zoh",
    method: Method = "auto",
) -> Float[Array, "*leading {L}"]:
    """K_l = C Ab^l Bb = 2 Re sum_n C_n Bb_n g_n^l, l < L, of A = diag(Lambda), with

        zoh         g = exp(step Lambda)                                    Bb = B (exp(step Lambda) - 1) / Lambda
        bilinear    g = (1 + step/2 Lambda) / (1 - step/2 Lambda)           Bb = B step / (1 - step/2 Lambda)

    `"dense"` writes down all powers of half of the state. `"two_level"` makes them of two thin matrices, with memory that does not
    grow with the state. `"textbook"` is the form of 2022 over the full state. `"auto"` is `"dense"` for what fits in
    one block of numbers, else `"two_level"`.

    Args:
        Lambda, B, C: one of each conjugate pair; Re Lambda is negative.
        step: the time between two samples, in the time unit of Lambda.
        L: the length of the kernel; a longer kernel begins with the shorter one.
        discretization: zero-order hold is exact for an input that is held.

    Raises:
        ValueError: the modes do not fit each other, L is below 1, the step is not positive, the discretisation or the method
            is unknown.

    Source: Gu, Gupta, Goel, Re (2022), section 3; chapter 11.
    """
    require_one_of("method", method, Method)
    step, Lambda, B, C = broadcast_modes(step, Lambda=Lambda, B=B, C=C)

    def modes(C, B, Lambda, step):
        return C * discretize_diagonal(Lambda, B, step, discretization).Bb, _exponents(step[..., None] * Lambda, discretization)

    if method == "textbook":
        return _of_each_system(lambda a, v: vandermonde_textbook(a, v, L).real, *modes(C, B, Lambda, step))
    return _product(modes, (C, B, Lambda, step), L, method)


def kernel_dss(
    Lambda: Complex[Array, "*#leading modes"],
    W: Complex[Array, "*#leading modes"],
    step: Float[Array, "*#leading"] | float,
    L: int,
    method: Method = "auto",
) -> Float[Array, "*leading {L}"]:
    """K_l = 2 Re sum_n W_n / Lambda_n softmax_l(step Lambda_n l), l < L; the softmax runs over the L steps.

    Written out, softmax_l(v l) = exp(v l) (exp(v) - 1) / (exp(L v) - 1). So this is S4D's kernel with zero-order hold and

        W = C B (exp(L step Lambda) - 1):

    like S4's C_tilde, W belongs to one L, and the same W at another length is another filter. `"dense"` and `"two_level"`
    evaluate the product; `"textbook"` is the form of 2022, an explicit (N, L) matrix whose rows are divided by their sums.

    Args:
        Lambda, W: one of each conjugate pair; Re Lambda is negative.
        step: the time between two samples, in the time unit of Lambda.
        L: the length of the kernel, the same that W was made for.

    Raises:
        ValueError: the modes do not fit each other, L is below 1, the step is not positive, the method is unknown.

    Source: Gupta, Gu, Berant (2022), proposition 1; chapter 11.
    """
    require_one_of("method", method, Method)
    if L < 1:
        raise ValueError(f"L is the length of the kernel and must be at least 1, but it is {L}")
    step, Lambda, W = broadcast_modes(step, Lambda=Lambda, W=W)
    exponents = step[..., None] * Lambda
    if method == "textbook":
        return _of_each_system(lambda *system: _dss_textbook(*system, L), W, Lambda, exponents)
    modes = lambda W, Lambda, v: (W / Lambda * exprel(v) / (L * exprel(L * v)), v)
    return _product(modes, (W, Lambda, exponents), L, method)


def _dss_textbook(W, Lambda, exponents, L):
    """(W / Lambda) S, the rows of S = exp(exponents l) divided by their sums: an explicit (N, L) matrix."""
    S = jnp.exp(exponents[:, None] * jnp.arange(L)[None])
    return ((W / Lambda) @ (S / S.sum(1, keepdims=True))).real


def exprel(v: Inexact[Array, "*shape"]) -> Inexact[Array, "*shape"]:
    """(exp(v) - 1) / v, and 1 at 0.

    As written it loses every digit near 0, where exp(v) is 1 and a little, and so does its derivative, which is 1/2
    there. Below |v| = 1/2 its Taylor series sum_n v^n / (n+1)! takes over.
    """
    small = jnp.abs(v) < 0.5
    near, far = jnp.where(small, v, 0), jnp.where(small, 1, v)  # each branch sees only what it is made for
    series = jnp.ones_like(v)
    for n in range(15, 1, -1):
        series = 1 + near / n * series
    return jnp.where(small, series, jnp.expm1(far) / far)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiscreteDiagonal:
    """x_k = Ab x_{k-1} + Bb u_k for one of each conjugate pair, Ab diagonal, written as the change of the state:

        Ab x + Bb u = x + (Ab - 1) x + Bb u.

    Ab - 1 is as small as the step is, and its rounding with it (chapter 9).
    """

    change: Complex[Array, "*leading modes"]  # Ab - 1
    Bb: Complex[Array, "*leading modes"]

    def step(self, x: Complex[Array, "*leading modes"], u: Float[Array, "*leading"]) -> Complex[Array, "*leading modes"]:
        """Ab x + Bb u. Leading axes of x and u are those of the parameters; `jax.vmap` adds others."""
        return x + (self.change * x + self.Bb * u[..., None])


def discretize_diagonal(
    Lambda: Complex[Array, "*#leading modes"],
    B: Complex[Array, "*#leading modes"],
    step: Float[Array, "*#leading"] | float,
    discretization: Discretization = "zoh",
) -> DiscreteDiagonal:
    """The recurrence of A = diag(Lambda), as a pytree whose `.step(x, u)` applies Ab and Bb: see `kernel_diagonal`.

        zoh         Ab - 1 = exp(step Lambda) - 1                       Bb = B (exp(step Lambda) - 1) / Lambda
        bilinear    Ab - 1 = step Lambda / (1 - step/2 Lambda)          Bb = B step / (1 - step/2 Lambda)

    Raises:
        ValueError: the modes do not fit each other, the step is not positive, the discretisation is unknown.

    Source: Gu, Gupta, Goel, Re (2022), section 3.1; chapter 11.
    """
    require_one_of("discretization", discretization, Discretization)
    step, Lambda, B = broadcast_modes(step, Lambda=Lambda, B=B)
    scaled = step[..., None] * Lambda
    # Both are step Lambda and step B times a factor that is 1 for short steps, so nothing is divided by Lambda.
    factor = exprel(scaled) if discretization == "zoh" else 1 / (1 - scaled / 2)
    return DiscreteDiagonal(scaled * factor, step[..., None] * B * factor)


def _exponents(scaled, discretization):
    """log g, so that g^l = exp(l log g); scaled is v = step Lambda.

    For bilinear, |g|^2 = 1 + 2 Re v / |1 - v/2|^2 and g has the angle of (1 + v/2)(1 - conj(v)/2) = 1 - |v|^2/4 + i Im v. A
    logarithm taken of the rounded g would lose digits in proportion to 1/step.
    """
    if discretization == "zoh":
        return scaled
    squared = lambda z: z.real**2 + z.imag**2
    change = 2 * scaled.real / squared(1 - scaled / 2)
    across = 1 - squared(scaled) / 4
    # v = -2 gives g = 0, which has no angle and no logarithm.
    angle = jnp.arctan2(scaled.imag, jnp.where((scaled.imag == 0) & (across == 0), 1, across))
    return jax.lax.complex(jnp.log1p(jnp.maximum(change, jnp.finfo(change.dtype).eps - 1)) / 2, angle)


def _product(modes, parameters, L, method):
    """The Vandermonde product of modes(*parameters), which are its numerators and exponents.

    In blocks of systems these are made within the block, so that nothing of them is kept; `"auto"` is `"dense"` for what fits in one.
    """
    leading, size = parameters[0].shape[:-1], parameters[0].shape[-1]
    if method == "dense" or (method == "auto" and fits_in_a_block(parameters[0].size, L)):
        return vandermonde_pairs(*modes(*parameters), L)
    block = lambda *system: two_level_block(L, *modes(*system))
    flat = [part.reshape(-1, *part.shape[len(leading) :]) for part in parameters]
    return map_systems(block, block, two_level_numbers(L, size), *flat).reshape(*leading, L)


def _of_each_system(kernel, *parameters):
    """kernel(...) of the full state of each system: leading axes are mapped over, and each parameter's pairs completed."""
    if parameters[0].ndim > 1:
        return jax.vmap(lambda *one: _of_each_system(kernel, *one))(*parameters)
    return kernel(*(jnp.concatenate([part, part.conj()]) for part in parameters))
