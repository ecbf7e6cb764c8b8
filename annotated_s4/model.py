"""From a layer to a model: the residual block and the stack of them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from annotated_s4.layers import SSM

LAYERS = {"ssm": SSM}


class ResidualBlock(nnx.Module):
    """x + dropout(gate(gelu(layer(norm(x))))),  gate(v) = (W v + b) sigmoid(W' v + b').

    The layer moves along time, each feature by itself; the gate mixes the features, each time step by itself.
    The norm stands in front, so that the sum of all blocks runs through the model untouched.
    """

    def __init__(self, layer: nnx.Module, d_model: int, dropout: float, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32):
        self.norm = nnx.LayerNorm(d_model, rngs=rngs, param_dtype=param_dtype)
        self.layer = layer
        self.gate = nnx.Linear(d_model, 2 * d_model, rngs=rngs, param_dtype=param_dtype)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x: Float[Array, "batch length features"]) -> Float[Array, "batch length features"]:
        """One block; the shape stays."""
        y = jax.nn.gelu(self.layer(self.norm(x)))
        value, gate = jnp.split(self.gate(y), 2, axis=-1)
        return x + self.dropout(value * jax.nn.sigmoid(gate))


class SequenceModel(nnx.Module):
    """Encode each time step, let blocks mix them, decode: one answer for a sequence or one for each step.

    Args:
        layer: "ssm", or a function with the layers' arguments (d_model, ssm_n, l_max, rngs, param_dtype) that makes one.
        d_input, d_output: the features of the input and of the answer.
        d_model, n_layers: the width of the stack and the number of its blocks.
        ssm_n, l_max: the size of each state, and the longest input.
        pooling: True for one answer for a sequence (the mean over time is decoded), False for one at each step.
        dropout: the share of a block's output that is left out while training (`model.train()`; `model.eval()` switches it off).
        rngs: where the initial parameters and the dropout masks are drawn from.
        param_dtype: the type of all parameters.

    Raises:
        ValueError: the layer is unknown, or a size does not fit.

    Source: Gu, Goel, Re (2022), section 3.4; chapter 4 builds it.
    """

    def __init__(
        self,
        layer: str | Callable[..., nnx.Module] = "ssm",
        *,
        d_input: int,
        d_output: int,
        d_model: int,
        n_layers: int,
        ssm_n: int,
        l_max: int,
        pooling: bool = True,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ):
        if isinstance(layer, str) and layer not in LAYERS:
            raise ValueError(f"layer is one of {', '.join(LAYERS)}, or a function that makes one, but {layer!r} was given")
        if n_layers < 1:
            raise ValueError(f"n_layers must be at least 1, but it is {n_layers}")
        make = LAYERS[layer] if isinstance(layer, str) else layer
        options = {"rngs": rngs, "param_dtype": param_dtype}
        self.pooling = pooling
        self.encoder = nnx.Linear(d_input, d_model, **options)
        self.blocks = nnx.List(
            [ResidualBlock(make(d_model, ssm_n, l_max, **options), d_model, dropout, **options) for _ in range(n_layers)]
        )
        self.norm = nnx.LayerNorm(d_model, **options)
        self.decoder = nnx.Linear(d_model, d_output, **options)

    def __call__(self, x: Float[Array, "batch length inputs"]) -> Float[Array, "batch *length outputs"]:
        """(batch, length, d_input) -> (batch, d_output) with pooling, (batch, length, d_output) without."""
        x = self.encoder(x)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.decoder(x.mean(axis=1) if self.pooling else x)
