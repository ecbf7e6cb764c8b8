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


def cross_entropy(logits: Float[Array, "batch classes"], labels: Int[Array, " batch"]) -> Float[Array, ""]:
    """-mean_i log softmax(logits_i)[label_i]: how surprised the model is by the right answer, in nats."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


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
