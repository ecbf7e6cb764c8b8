"""Diagonal plus low rank: S4's kernel, and its recurrence that needs no inverse.

The system is A = diag(Lambda) - P Q*, with Q* the conjugate transpose, and one of each conjugate pair is given: the full
state has as many modes again, the conjugates, so that the system is real.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from annotated_s4.blocks import BLOCK, fits_in_a_block, map_systems
from annotated_s4.cauchy import cauchy_textbook, pair_sum, pair_sum_real
from annotated_s4.generating import roots_of_unity
from annotated_s4.ssm import broadcast_modes, require_one_of

Method = Literal["auto", "dense", "blocked", "textbook"]


def kernel_dplr(
    Lambda: Complex[Array, "*#leading modes"],
    P: Complex[Array, "*#leading modes"],
    Q: Complex[Array, "*#leading modes"],
    B: Complex[Array, "*#leading modes"],
    C_tilde: Complex[Array, "*#leading modes"],
    step: Float[Array, "*#leading"] | float,
    L: int,
    method: Method = "auto",
) -> Float[Array, "*leading {L}"]:
    """K_l = C Ab^l Bb, l < L, of the bilinear discretisation of A = diag(Lambda) - P Q*, from C_tilde = C (I - Ab^L).

    With theta = 2 pi j / L, s = sin(theta/2), c = cos(theta/2), d_n = 2 i s - step c Lambda_n, kappa(a, b) = sum_n a_n b_n / d_n
    over the full state:

        K_hat(theta) = step e^{i theta/2} [ kappa(C~, B) - step c kappa(C~, P) kappa(Q*, B) / (1 + step c kappa(Q*, P)) ]

    and K is its inverse FFT. Re Lambda must be negative, so that no d_n is zero, and A stable: the first implies the second if
    Q = P, and not otherwise. `"dense"` evaluates this at half of the frequencies, since K is real. `"blocked"` does so for
    a few systems at a time, with memory that does not grow with the state, and its own way back. `"textbook"` is the form of
    2022, with its pole at z = -1, over the full state and all roots. `"auto"` is `"dense"` for what fits in one block, else
    `"blocked"`.

    Args:
        Lambda, P, Q, B, C_tilde: one of each conjugate pair; the imaginary part of Lambda may have either sign.
        step: the time between two samples, in the time unit of Lambda.
        L: the length of the kernel, the same that C_tilde was made for.

    Raises:
        ValueError: the modes do not fit each other, L is below 1, the step is not positive, the method is unknown.

    Source: Gu, Goel, Re (2022), lemmas C.2 to C.4 and algorithm 1; the form without a pole is derived in chapters 6 and 7.
    """
    require_one_of("method", method, Method)
    if L < 1:
        raise ValueError(f"L is the length of the kernel and must be at least 1, but it is {L}")
    step, *system = broadcast_modes(step, Lambda=Lambda, P=P, Q=Q, B=B, C_tilde=C_tilde)
    if method == "auto":
        method = "dense" if fits_in_a_block(step.size, system[0].shape[-1] * (L // 2 + 1)) else "blocked"
    return {"dense": _kernel_dense, "blocked": _kernel_blocked, "textbook": _kernel_textbook}[method](*system, step, L)


def _kernel_dense(Lambda, P, Q, B, C_tilde, step, L):
    """Half-angle form, half the state, half the frequencies, in one piece."""
    theta = 2 * jnp.pi * jnp.arange(L // 2 + 1, dtype=step.dtype) / L
    kappa = lambda a, b: pair_sum(a * b, Lambda, step, theta)
    along = lambda x: jnp.broadcast_to(x, (*step.shape, theta.shape[0]))
    step_c = step[..., None] * along(jnp.cos(theta / 2))
    low_rank = step_c * kappa(C_tilde, P) * kappa(Q.conj(), B) / (1 + step_c * kappa(Q.conj(), P))
    K_hat = step[..., None] * along(jnp.exp(0.5j * theta)) * (kappa(C_tilde, B) - low_rank)
    return jnp.fft.irfft(K_hat, n=L)


def _kernel_blocked(Lambda, P, Q, B, C_tilde, step, L):
    """The same form in real arithmetic, a block of systems at a time."""
    modes, leading = Lambda.shape[-1], step.shape
    flat = [x.reshape(-1, modes) for x in (Lambda, P, Q, B, C_tilde)]
    plain, ruled = (partial(_block, L, rule) for rule in (False, True))
    return map_systems(plain, ruled, modes * (L // 2 + 1), *flat, step.reshape(-1)).reshape(*leading, L)


def _block(L, ruled, Lambda, P, Q, B, C_tilde, step):
    """The kernels of a block of systems, from all four sums to the inverse FFT."""
    theta = jnp.asarray(2 * np.pi * np.arange(L // 2 + 1) / L, step.dtype)
    products = jnp.stack([C_tilde * B, C_tilde * P, Q.conj() * B, Q.conj() * P], axis=1)  # systems 4 modes
    scaled = step[:, None] * Lambda
    kappa = _in_chunks(lambda part: pair_sum_real(products, scaled, part, ruled), theta, -(-Lambda.size * theta.size // (2 * BLOCK)))
    step_c = step[:, None] * jnp.cos(theta / 2)[None]
    low_rank = step_c * kappa[:, 1] * kappa[:, 2] / (1 + step_c * kappa[:, 3])
    return jnp.fft.irfft(step[:, None] * jnp.exp(0.5j * theta)[None] * (kappa[:, 0] - low_rank), n=L)


def _in_chunks(sums, theta, chunks):
    """sums(theta) (..., frequencies) in chunks of the frequencies: where those of a single system fill a block by themselves."""
    if chunks == 1:
        return sums(theta)
    size = -(-theta.size // chunks)
    padded = jnp.concatenate([theta, jnp.broadcast_to(theta[-1:], (size * chunks - theta.size,))]).reshape(chunks, size)
    found = jnp.moveaxis(jax.lax.map(jax.checkpoint(sums), padded), 0, -2)
    return found.reshape(*found.shape[:-2], -1)[..., : theta.size]


def _kernel_textbook(Lambda, P, Q, B, C_tilde, step, L):
    """The usual form: omega = 2/step (1 - z)/(1 + z), four Cauchy sums over the full state at all roots.

    The order of operations is part of the baseline: the same formula in another order plans for another amount of memory.
    """
    if step.ndim:
        return jax.vmap(partial(_kernel_textbook, L=L))(Lambda, P, Q, B, C_tilde, step)
    Lambda, P, Q, B, C_tilde = (jnp.concatenate([x, x.conj()]) for x in (Lambda, P, Q, B, C_tilde))
    z = roots_of_unity(L).astype(Lambda.dtype)
    omega = 2 / step * (1 - z) / (1 + z)
    kappa = lambda a, b: cauchy_textbook(a * b, omega, Lambda)
    K_hat = 2 / (1 + z) * (kappa(C_tilde, B) - kappa(C_tilde, P) * (1 / (1 + kappa(Q.conj(), P))) * kappa(Q.conj(), B))
    return jnp.fft.ifft(K_hat).real


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiscreteDPLR:
    """x_k = Ab x_{k-1} + Bb u_k for one of each conjugate pair, in O(modes) a step and without a solve.

    Ab = (2/step - A)^-1 (2/step + A) = I + (2/step - A)^-1 2 A and Bb = (2/step - A)^-1 2 B, so the state changes by

        Ab x + Bb u - x = (2/step - A)^-1 2 (A x + B u),

    where Woodbury's identity gives

        (2/step - A)^-1 v = R v - R P (1 + Q* R P)^-1 Q* R v,    R = (2/step - Lambda)^-1, a diagonal.

    The change is small where the step is, and its rounding with it: written as Ab x + Bb u, float32 loses digits in proportion
    to 1/step (chapter 9).
    """

    Lambda: Complex[Array, "*leading modes"]
    R: Complex[Array, "*leading modes"]
    P: Complex[Array, "*leading modes"]
    Q: Complex[Array, "*leading modes"]
    B: Complex[Array, "*leading modes"]
    correction: Float[Array, "*leading"]  # (1 + Q* R P)^-1, real: the sum runs over conjugate pairs

    def step(self, x: Complex[Array, "*leading modes"], u: Float[Array, "*leading"]) -> Complex[Array, "*leading modes"]:
        """Ab x + Bb u = x + (2/step - A)^-1 2 (A x + B u). Leading axes of x and u are those of the parameters; `jax.vmap` adds others."""
        slope = self.Lambda * x - self.P * _project(self.Q, x)[..., None] + self.B * u[..., None]
        v = self.R * (2 * slope)
        return x + v - self.R * self.P * (self.correction * _project(self.Q, v))[..., None]


def discretize_dplr(
    Lambda: Complex[Array, "*#leading modes"],
    P: Complex[Array, "*#leading modes"],
    Q: Complex[Array, "*#leading modes"],
    B: Complex[Array, "*#leading modes"],
    step: Float[Array, "*#leading"] | float,
) -> DiscreteDPLR:
    """The bilinear recurrence of A = diag(Lambda) - P Q*, as a pytree whose `.step(x, u)` applies Ab and Bb.

    Args:
        Lambda, P, Q, B: one of each conjugate pair.
        step: the time between two samples, in the time unit of Lambda.

    Raises:
        ValueError: the modes do not fit each other, or the step is not positive.

    Source: Gu, Goel, Re (2022), appendix C.2; chapter 9.
    """
    step, Lambda, P, Q, B = broadcast_modes(step, Lambda=Lambda, P=P, Q=Q, B=B)
    rate = 2 / step[..., None]
    R = 1 / (rate - Lambda)
    correction = 1 / (1 + _project(Q, R * P))
    return DiscreteDPLR(Lambda, R, P, Q, B, correction)


def _project(Q, x):
    """Q* x over the full state: each mode and its partner are conjugates of each other, so the sum is real."""
    return 2 * (Q.conj() * x).sum(-1).real
