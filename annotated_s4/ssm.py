"""State space models: from a differential equation to a recurrence, and from the recurrence to a convolution.

x'(t) = A x(t) + B u(t),  y(t) = C x(t)        becomes        x_k = Ab x_{k-1} + Bb u_k,  y_k = C x_k,  x_{-1} = 0.

Leading axes are free where a shape says `...`: they broadcast against each other.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import expm
from jaxtyping import Array, Complex, Float, Inexact

Method = Literal["bilinear", "zoh", "euler", "backward_euler"]


def discretize(
    A: Inexact[Array, "N N"],
    B: Inexact[Array, " N"],
    step: Float[Array, ""] | float,
    method: Method = "bilinear",
) -> tuple[Inexact[Array, "N N"], Inexact[Array, " N"]]:
    """Ab and Bb of x_k = Ab x_{k-1} + Bb u_k, which stands for x'(t) = A x(t) + B u(t) over one step.

        euler            Ab = I + step A                              Bb = step B
        backward_euler   Ab = (I - step A)^-1                         Bb = (I - step A)^-1 step B
        bilinear         Ab = (I - step/2 A)^-1 (I + step/2 A)        Bb = (I - step/2 A)^-1 step B
        zoh              Ab = exp(step A)                             Bb = integral_0^step exp(t A) dt B

    Args:
        A, B: the continuous system.
        step: the time between two samples, in the time unit of A (A is "per time unit").
        method: how the integral over one step is taken; zero-order hold is exact for an input that is held.

    Raises:
        ValueError: A is not square, B does not fit it, the step is not positive, the method is unknown.

    Source: Gu, Goel, Re (2022), equation 3, for the bilinear form; chapter 1 derives all four.
    """
    _require_system(A, B)
    require_one_of("method", method, Method)
    # Inside jit the step has no value yet, and this cannot be asked.
    if not isinstance(step, jax.core.Tracer) and not step > 0:
        raise ValueError(f"step is a time and must be positive, but it is {step}")
    N = A.shape[-1]
    identity = jnp.eye(N, dtype=A.dtype)
    match method:
        case "euler":
            return identity + step * A, step * B
        case "backward_euler":
            left, right = identity - step * A, identity
        case "bilinear":
            left, right = identity - step / 2 * A, identity + step / 2 * A
        case "zoh":
            # The exponential of [[A, B], [0, 0]] step holds both answers and needs no inverse of A.
            block = jnp.zeros((N + 1, N + 1), A.dtype).at[:N, :N].set(A).at[:N, N].set(B)
            power = expm(step * block)
            return power[:N, :N], power[:N, N]
    both = jnp.linalg.solve(left, jnp.column_stack([right, step * B]))
    return both[:, :N], both[:, N]


def scan_ssm(
    Ab: Inexact[Array, "N N"],
    Bb: Inexact[Array, " N"],
    C: Inexact[Array, " N"],
    u: Inexact[Array, " L"],
    x0: Inexact[Array, " N"] | None = None,
) -> tuple[Inexact[Array, " N"], Inexact[Array, " L"]]:
    """x_k = Ab x_{k-1} + Bb u_k,  y_k = C x_k, step by step: the last state and all outputs.

    Args:
        Ab, Bb, C: the discrete system.
        u: one input for each step.
        x0: the state before the first input, zero if not given: pass the state of an earlier call to go on from there.

    Raises:
        ValueError: Ab is not square, Bb, C or x0 does not fit it, u has no sample.

    Source: Gu, Goel, Re (2022), equation 3.
    """
    _require_system(Ab, Bb, C)
    if u.ndim != 1 or u.shape[0] == 0:
        raise ValueError(f"u is one sequence of at least one sample, shape (L,), but it has shape {u.shape}")
    x0 = jnp.zeros_like(Bb) if x0 is None else x0
    if x0.shape != Bb.shape:
        raise ValueError(f"x0 is a state of shape {Bb.shape}, like Bb, but it has shape {x0.shape}")

    def advance(x, u_k):
        x = _product(Ab, x) + Bb * u_k
        return x, _product(C, x)

    state_type = jnp.result_type(Ab, Bb, u, x0)
    return jax.lax.scan(advance, x0.astype(state_type), u)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiscreteSSM:
    """x_k = Ab x_{k-1} + Bb u_k with a full matrix, written as the change of the state: x + (Ab - I) x + Bb u.

    Ab - I is as small as the step is, and its rounding with it (chapter 9).
    """

    change: Float[Array, "*leading N N"]  # Ab - I
    Bb: Float[Array, "*leading N"]

    def step(self, x: Float[Array, "*leading N"], u: Float[Array, "*leading"]) -> Float[Array, "*leading N"]:
        """Ab x + Bb u. Leading axes of x and u are those of the parameters; `jax.vmap` adds others."""
        return x + (jnp.einsum("...nm,...m->...n", self.change, x, precision="highest") + self.Bb * u[..., None])


def kernel_by_powers(
    Ab: Inexact[Array, "*#leading N N"],
    Bb: Inexact[Array, "*#leading N"],
    C: Inexact[Array, "*#leading N"],
    L: int,
) -> Inexact[Array, "*leading {L}"]:
    """K_l = C Ab^l Bb for l = 0 ... L - 1: what the system answers to a single one.

    One scan multiplies by Ab again and again, so compile time does not depend on L. It costs L N^2 and
    keeps nothing but one vector; Part II is about a better way.

    Raises:
        ValueError: Ab is not square, Bb or C does not fit it, L is below 1.

    Source: Gu, Goel, Re (2022), equation 5.
    """
    _require_system(Ab, Bb, C)
    if L < 1:
        raise ValueError(f"L is the length of the kernel and must be at least 1, but it is {L}")
    leading = jnp.broadcast_shapes(Ab.shape[:-2], Bb.shape[:-1], C.shape[:-1])
    N = Ab.shape[-1]
    x = jnp.broadcast_to(Bb, (*leading, N)).astype(jnp.result_type(Ab, Bb))
    C = jnp.broadcast_to(C, (*leading, N))

    def advance(x, _):
        return jnp.einsum("...nm,...m->...n", Ab, x, precision="highest"), jnp.einsum("...n,...n->...", C, x, precision="highest")

    return jnp.moveaxis(jax.lax.scan(advance, x, None, length=L)[1], 0, -1)


def causal_convolution(
    u: Float[Array, "*#leading L"],
    K: Float[Array, "*#leading L"],
) -> Float[Array, "*leading L"]:
    """y_k = sum_{l=0}^{k} K_l u_{k-l}, through the FFT. Time is the last axis, what stands before it broadcasts.

    A product of FFTs is a *circular* convolution: what runs over the end comes back at the start. With as
    many zeros behind u as u is long, only zeros come back. The error is absolute: outputs far below
    the largest one carry no correct digit.

    Raises:
        ValueError: u and K have no sample or are not equally long.
    """
    L = u.shape[-1]
    if L == 0 or K.shape[-1] != L:
        raise ValueError(f"u and K end in the same number of time steps, at least one, but they have shapes {u.shape} and {K.shape}")
    leading = jnp.broadcast_shapes(u.shape[:-1], K.shape[:-1])
    u, K = jnp.broadcast_to(u, (*leading, L)), jnp.broadcast_to(K, (*leading, L))
    return jnp.fft.irfft(jnp.fft.rfft(u, n=2 * L) * jnp.fft.rfft(K, n=2 * L), n=2 * L)[..., :L]


def two_sided_convolution(
    u: Float[Array, "*#leading L"],
    K: Float[Array, "*#leading L"],
    K_reverse: Float[Array, "*#leading L"],
) -> Float[Array, "*leading L"]:
    """y_k = sum_{j<=k} K_{k-j} u_j + sum_{j>k} K_reverse_{j-k-1} u_j: one kernel for the past, another for the future.

    The sample u_k itself belongs to the past and is counted once. One FFT of length 2L does both: K_reverse_m is the answer
    to the sample m + 1 steps ahead, so it stands m + 1 places before the start of the circle, that is at 2L - 1 - m.

    Raises:
        ValueError: u and the kernels have no sample or are not equally long.
    """
    L = u.shape[-1]
    if L == 0 or K.shape[-1] != L or K_reverse.shape[-1] != L:
        raise ValueError(
            "u and both kernels end in the same number of time steps, at least one, but they have shapes "
            f"{u.shape}, {K.shape} and {K_reverse.shape}"
        )
    leading = jnp.broadcast_shapes(u.shape[:-1], K.shape[:-1], K_reverse.shape[:-1])
    u, K, K_reverse = (jnp.broadcast_to(x, (*leading, L)) for x in (u, K, K_reverse))
    circle = jnp.concatenate([K, K_reverse[..., ::-1]], axis=-1)
    return jnp.fft.irfft(jnp.fft.rfft(u, n=2 * L) * jnp.fft.rfft(circle), n=2 * L)[..., :L]


def broadcast_modes(
    step: Float[Array, "..."] | float, **parameters: Complex[Array, "..."]
) -> tuple[Inexact[Array, "..."], ...]:
    """The step of each system and its parameters, one number for each mode on their last axis, broadcast to common leading axes.

    Raises:
        ValueError: the parameters do not have the same number of modes, or a step is not positive.
    """
    shapes = {name: x.shape for name, x in parameters.items()}
    if len({shape[-1:] for shape in shapes.values()}) != 1 or () in shapes.values():
        raise ValueError(f"each parameter has one number for each mode on its last axis, but the shapes are {shapes}")
    if not isinstance(step, jax.core.Tracer) and not np.all(np.asarray(step) > 0):
        raise ValueError(f"step is a time and must be positive, but it is {step}")
    step = jnp.asarray(step, next(iter(parameters.values())).real.dtype)
    leading = jnp.broadcast_shapes(step.shape, *(shape[:-1] for shape in shapes.values()))
    return jnp.broadcast_to(step, leading), *(jnp.broadcast_to(x, (*leading, x.shape[-1])) for x in parameters.values())


def require_one_of(name: str, value: str, choices: object) -> None:
    """Refuse what is not among the choices, a `Literal`.

    Raises:
        ValueError: names the choices and what was given.
    """
    if value not in get_args(choices):
        raise ValueError(f"{name} is one of {', '.join(get_args(choices))}, but {value!r} was given")


def _product(a, b):
    """a @ b in full precision: recent GPUs otherwise round the factors of a float32 product to ten bits."""
    return jnp.matmul(a, b, precision="highest")


def _require_system(A, *vectors) -> None:
    """A is square, and each vector is as long as A is wide."""
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ValueError(f"A is a square matrix, shape (..., N, N), but it has shape {A.shape}")
    for vector in vectors:
        if vector.ndim < 1 or vector.shape[-1] != A.shape[-1]:
            raise ValueError(f"B and C have one number for each of the N = {A.shape[-1]} states of A, but one has shape {vector.shape}")
