"""From a layer to a model: the residual block and the stack of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Inexact, Int, PyTree

from annotated_s4.layers import DSS, S4, S4D, SSM, Recurrence, mask_padding, run_steps

LAYERS = {"ssm": SSM, "s4": S4, "s4d": S4D, "dss": DSS}


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

    def __call__(
        self, x: Float[Array, "batch length features"], lengths: Int[Array, " batch"] | None = None
    ) -> Float[Array, "batch length features"]:
        """One block; the shape stays."""
        return self.combine(x, self.layer(self.norm(x), lengths))

    def combine(self, x: Float[Array, "*steps features"], y: Float[Array, "*steps features"]) -> Float[Array, "*steps features"]:
        """x + dropout(gate(gelu(y))), y = layer(norm(x)): what happens to each time step by itself."""
        value, gate = jnp.split(self.gate(jax.nn.gelu(y)), 2, axis=-1)
        return x + self.dropout(value * jax.nn.sigmoid(gate))


class SequenceModel(nnx.Module):
    """Encode each time step, let blocks mix them, decode: one answer for a sequence or one for each step.

    Args:
        layer: "ssm", "s4", "s4d", "dss", or a function with the layers' arguments (d_model, ssm_n, l_max, rngs, param_dtype) that makes one:
            `partial(S4D, init="inv", bidirectional=True)`.
        d_input, d_output: the features of the input and of the answer.
        d_model, n_layers: the width of the stack and the number of its blocks.
        ssm_n, l_max: the size of each state, and the longest input.
        pooling: True for one answer for a sequence (the mean over time is decoded), False for one at each step.
        dropout: the share of a block's output that is left out while training (`model.train()`; `model.eval()` switches it off).
        rngs: where the initial parameters and the dropout masks are drawn from.
        param_dtype: the type of all parameters.

    Raises:
        ValueError: the layer is unknown, or a size does not fit.

    Source: Gu, Goel, Re (2022), section 3.4; chapters 4 and 10.
    """

    def __init__(
        self,
        layer: str | Callable[..., nnx.Module] = "s4",
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

    def __call__(
        self, x: Float[Array, "batch length inputs"], lengths: Int[Array, " batch"] | None = None
    ) -> Float[Array, "batch *length outputs"]:
        """(batch, length, d_input) -> (batch, d_output) with pooling, (batch, length, d_output) without.

        Args:
            x: the input.
            lengths: of a padded batch: how many steps of each sequence count. What stands behind them never changes an answer, and
                answers there are zero.

        Raises:
            ValueError: x does not have d_input features, or is longer than l_max; the lengths do not fit it.
        """
        return self._answer(self._stack(x, lengths, lambda layer, u: layer(u, lengths)), lengths)

    def prefill(
        self, x: Float[Array, "batch length inputs"], lengths: Int[Array, " batch"] | None = None
    ) -> tuple[Float[Array, "batch *length outputs"], "ModelState"]:
        """The same answers, and the state after each sequence's last step, from which `as_recurrence().step` goes on.

        Raises:
            ValueError: as for a call; a layer is bidirectional.
        """
        states = []

        def prefill(layer, u):
            y, state = layer.prefill(u, lengths)
            states.append(state)
            return y

        hidden = self._stack(x, lengths, prefill)
        total = mask_padding(hidden, lengths).sum(axis=1)
        count = jnp.full(x.shape[0], x.shape[1]) if lengths is None else lengths
        return self._answer(hidden, lengths), ModelState(tuple(states), total, count)

    def as_recurrence(self) -> "ModelRecurrence":
        """The model one step at a time, converted once. There is no dropout in it.

        Raises:
            ValueError: a layer is bidirectional, or this is called inside a JAX transformation.
        """
        model = nnx.clone(self)
        model.eval()
        return ModelRecurrence(*nnx.split(model), tuple(block.layer.as_recurrence() for block in self.blocks))

    def at_rate(self, rate: float) -> "SequenceModel":
        """The same model for signals sampled `rate` times as often as in training: each layer's step is divided by the rate.

        Raises:
            ValueError: as for a layer's `at_rate`.
        """
        model = nnx.clone(self)
        for block in model.blocks:
            block.layer = block.layer.at_rate(rate)
        return model

    def _stack(self, x, lengths, apply):
        """All up to the decoder; apply(layer, u) runs a layer along time."""
        if x.ndim != 3 or x.shape[-1] != self.encoder.in_features:
            raise ValueError(f"x has shape (batch, length, {self.encoder.in_features} inputs), but {x.shape} was given")
        x = self.encoder(mask_padding(x, lengths))
        for block in self.blocks:
            x = block.combine(x, apply(block.layer, block.norm(x)))
        return self.norm(x)

    def _answer(self, hidden, lengths):
        """Decode the mean over time, or every step."""
        if not self.pooling:
            return mask_padding(self.decoder(hidden), lengths)
        count = hidden.shape[1] if lengths is None else lengths[:, None]
        return self.decoder(mask_padding(hidden, lengths).sum(axis=1) / count)


class ModelState(NamedTuple):
    """What a model remembers of each sequence: the states of its layers, the sum of what pooling takes the mean of, the steps so far."""

    layers: tuple[Inexact[Array, "batch features modes"], ...]
    total: Float[Array, "batch features"]
    count: Int[Array, " batch"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ModelRecurrence:
    """A model one step at a time, with the state in the reader's hands. Compile it: `jax.jit(rnn.step)`.

    With pooling the answer at each step is that for all steps so far.
    """

    graph: nnx.GraphDef = field(metadata={"static": True})
    parameters: PyTree
    layers: tuple[Recurrence, ...]

    def initial_state(self, batch: int) -> ModelState:
        """Before the first step of each sequence."""
        width, kind = self.layers[0].D.shape[0], self.layers[0].D.dtype
        layers = tuple(layer.initial_state(batch) for layer in self.layers)
        return ModelState(layers, jnp.zeros((batch, width), kind), jnp.zeros(batch, jnp.int32))

    def step(self, x: Float[Array, "batch inputs"], state: ModelState) -> tuple[Float[Array, "batch outputs"], ModelState]:
        """The answer to x_k, and the state after it.

        Raises:
            ValueError: x is not (batch, d_input), or the state is not this model's for that batch.
        """
        model = nnx.merge(self.graph, self.parameters)
        if x.ndim != 2 or x.shape[1] != model.encoder.in_features:
            raise ValueError(f"x has shape (batch, {model.encoder.in_features} inputs), but {x.shape} was given")
        shapes = [part.shape for part in jax.tree.leaves(state)]
        wanted = [part.shape for part in jax.tree.leaves(self.initial_state(x.shape[0]))]
        if shapes != wanted:
            raise ValueError(f"for {x.shape[0]} sequences this model's state has parts of shapes {wanted}, but {shapes} were given")
        x = model.encoder(x)
        layers = []
        for block, layer, layer_state in zip(model.blocks, self.layers, state.layers, strict=True):
            y, layer_state = layer.step(block.norm(x), layer_state)
            x = block.combine(x, y)
            layers.append(layer_state)
        hidden = model.norm(x)
        state = ModelState(tuple(layers), state.total + hidden, state.count + 1)
        return model.decoder(state.total / state.count[:, None] if model.pooling else hidden), state

    def run(
        self, x: Float[Array, "batch length inputs"], state: ModelState
    ) -> tuple[Float[Array, "batch length outputs"], ModelState]:
        """All of x, one step after the other in one compiled loop: the answer at each step, and the state after the last."""
        return run_steps(self.step, x, state)
