"""Training: the loss, one epoch as one compiled program, and the accuracy."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int

from annotated_s4.data import Part
from annotated_s4.layers import Slow


def cross_entropy(logits: Float[Array, "batch classes"], labels: Int[Array, " batch"]) -> Float[Array, ""]:
    """-mean_i log softmax(logits_i)[label_i]: how surprised the model is by the right answer, in nats."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def grouped_adamw(learning_rate: float, *, slow_rate: float, weight_decay: float) -> optax.GradientTransformation:
    """AdamW in three groups, told apart by how a parameter is declared.

    What shapes a memory (`annotated_s4.layers.Slow`: Lambda, P, B, the step) learns at the slow rate and never decays. The dense
    kernels and the rows that read a state (C, C_tilde, W) learn at the learning rate and decay; vectors (D, biases, the scales of
    norms) learn at the learning rate and do not decay.
    """

    def group(parameter):
        if isinstance(parameter, Slow):
            return "slow"
        return "decayed" if parameter[...].ndim > 1 else "plain"

    groups = {
        "slow": optax.adam(slow_rate),
        "decayed": optax.adamw(learning_rate, weight_decay=weight_decay),
        "plain": optax.adam(learning_rate),
    }
    is_parameter = lambda leaf: isinstance(leaf, nnx.Variable)
    return optax.partition(groups, lambda parameters: jax.tree.map(group, parameters, is_leaf=is_parameter))


@partial(jax.jit, static_argnums=(0, 1))
def train_epoch(graph, optimizer: optax.GradientTransformation, state, x, y):
    """One pass over batches x (batches, batch, length, d_input), y (batches, batch), as one scan.

    `state` is what changes: parameters, the optimiser's state, and the rest of the model (random streams, constants).
    Returns the state after the epoch and the mean loss.
    """

    def loss(params, rest, x, y):
        model = nnx.merge(graph, params, rest, copy=True)
        value = cross_entropy(model(x), y)
        return value, nnx.split(model, nnx.Param, ...)[2]

    def one_batch(state, batch):
        params, optimizer_state, rest = state
        (value, rest), gradient = jax.value_and_grad(loss, has_aux=True)(params, rest, *batch)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state, rest), value

    state, losses = jax.lax.scan(one_batch, state, (x, y))
    return state, losses.mean()


def fit(
    model: nnx.Module, data: Part, *, epochs: int, batch_size: int, optimizer: optax.GradientTransformation, seed: int = 0
) -> Iterator[float]:
    """Train the model in place, and yield the mean training loss after each epoch.

    Each epoch sees the samples in an order of its own, drawn from the seed; the samples that do not fill a batch sit out.

    Raises:
        ValueError: the batch is larger than the data.
    """
    batches = len(data.y) // batch_size
    if batches < 1:
        raise ValueError(f"a batch of {batch_size} does not fit into {len(data.y)} samples")
    order = np.random.default_rng(seed)
    model.train()
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    state = (params, optimizer.init(params), rest)
    for _ in range(epochs):
        chosen = order.permutation(len(data.y))[: batches * batch_size].reshape(batches, batch_size)
        state, loss = train_epoch(graph, optimizer, state, data.x[chosen], data.y[chosen])
        nnx.update(model, state[0], state[2])
        yield float(loss)


@nnx.jit
def predict(model: nnx.Module, x: Float[Array, "batch length inputs"]) -> Int[Array, " batch"]:
    """The most probable class of each sequence."""
    return jnp.argmax(model(x), axis=-1)


def accuracy(model: nnx.Module, data: Part) -> float:
    """The share of the samples that the model gets right."""
    model.eval()
    return float(np.mean(np.asarray(predict(model, jnp.asarray(data.x))) == data.y))
