"""State space layers as Flax NNX modules. All have one interface: (batch, length, features) in and out.

Each feature has a state space model of its own: H features are H systems of N states that share nothing.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from annotated_s4.hippo import hippo_legs
from annotated_s4.ssm import causal_convolution, discretize, kernel_by_powers


class Constant(nnx.Variable):
    """An array that belongs to a layer and is not trained."""


class SSM(nnx.Module):
    """y = K * u + D u for each feature, with the kernel K_l = C Ab^l Bb computed by powers of a full matrix.

    The first layer of the book: nothing in it is clever. The step (as its logarithm, so that it stays
    positive), B, C and D are trained; A is not, and one A serves all features.

    Args:
        d_model: H, the number of features.
        ssm_n: N, the size of each feature's state.
        l_max: the longest input.
        rngs: where the initial steps and C are drawn from.
        system: N -> A (N, N), B (N,), the memory to start with.
        step_range: the steps of the features are drawn between these two, in the time unit of A, evenly on a logarithmic scale.
        param_dtype: the type of all parameters.

    Raises:
        ValueError: a size is below 1, or the step range is not two positive, rising numbers.

    Source: Gu, Goel, Re (2022), section 2; chapter 4 builds it.
    """

    def __init__(
        self,
        d_model: int,
        ssm_n: int,
        l_max: int,
        *,
        rngs: nnx.Rngs,
        system: Callable[[int], tuple[Array, Array]] = hippo_legs,
        step_range: tuple[float, float] = (1e-3, 1e-1),
        param_dtype: DTypeLike = jnp.float32,
    ):
        for name, size in (("d_model", d_model), ("ssm_n", ssm_n), ("l_max", l_max)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, but it is {size}")
        low, high = step_range
        if not 0 < low < high:
            raise ValueError(f"step_range is two positive, rising numbers, but it is {step_range}")
        A, B = system(ssm_n)
        self.l_max = l_max
        self.A = Constant(jnp.asarray(A, param_dtype))
        self.B = nnx.Param(jnp.broadcast_to(jnp.asarray(B, param_dtype), (d_model, ssm_n)))
        self.C = nnx.Param(jax.random.normal(rngs.params(), (d_model, ssm_n), param_dtype))
        self.D = nnx.Param(jnp.ones(d_model, param_dtype))
        self.log_step = nnx.Param(jax.random.uniform(rngs.params(), (d_model,), param_dtype, math.log(low), math.log(high)))

    def kernel(self, L: int) -> Float[Array, "features {L}"]:
        """K_l = C Ab^l Bb of each feature, for its own step."""
        # One feature after the other, not all as a batch: on a CPU with two cores jaxlib 0.10.1 waits for ever
        # when two layers solve a batch of systems each at the same time.
        A = self.A[...]
        Ab, Bb = jax.lax.map(lambda feature: discretize(A, *feature), (self.B[...], jnp.exp(self.log_step[...])))
        return kernel_by_powers(Ab, Bb, self.C[...], L)

    def __call__(self, u: Float[Array, "batch length features"]) -> Float[Array, "batch length features"]:
        """y = K * u + D u.

        Raises:
            ValueError: u is not (batch, length, features), or longer than l_max.
        """
        features = self.D.shape[0]
        if u.ndim != 3 or u.shape[-1] != features or not 1 <= u.shape[1] <= self.l_max:
            raise ValueError(f"u has shape (batch, 1 to {self.l_max} steps, {features} features), but {u.shape} was given")
        u = jnp.moveaxis(u, 1, -1)  # batch features length
        y = causal_convolution(u, self.kernel(u.shape[-1])[None]) + self.D[...][None, :, None] * u
        return jnp.moveaxis(y, -1, 1)
