"""Maps over blocks of systems: a bound on memory that does not depend on what a compiler fuses.

Something of size features x modes x length never exists if no operation names it. So a few systems at a time go all the way from
parameters to kernel, and the way back does the same again instead of having kept what was in between.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact

# How many numbers the largest array within a block has. Measured on a CPU: smaller blocks lose time to overhead, larger ones to caches.
BLOCK = 2**18


def fits_in_a_block(systems: int, numbers: int) -> bool:
    """Whether all systems together are no more than one block: then one piece is as good."""
    return systems * numbers <= BLOCK


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def map_systems(
    plain: Callable, ruled: Callable, numbers: int, *parameters: Inexact[Array, "systems ..."]
) -> Inexact[Array, "systems ..."]:
    """plain(*parameters), for a block of systems at a time; both directions keep nothing but inputs and outputs.

    Args:
        plain: parameters (block, ...) -> results (block, ...).
        ruled: the same function, through whatever differentiation rules make its way back fast. (Forward mode does not pass
            through such rules, so the way forward does not use them, and second derivatives work.)
        numbers: how many numbers the largest array of one system has.
        parameters: the first axis of each counts the systems.

    Raises:
        TypeError: forward mode (`jax.jvp`, `jax.jacfwd`) is asked of it; `method="dense"` has it.
    """
    return _in_blocks(plain, numbers, parameters)


def _in_blocks(function, numbers, parameters):
    systems = parameters[0].shape[0]
    # At least two blocks: a loop of one step is inlined, and what it needs is no longer freed before the next layer.
    count = min(systems, max(2, -(-systems // max(1, BLOCK // numbers))))
    size = -(-systems // count)
    count = -(-systems // size)

    def split(x):
        # What is missing in the last block repeats the last system, so that nothing is divided by zero.
        missing = jnp.broadcast_to(x[-1:], (size * count - systems, *x.shape[1:]))
        return jnp.concatenate([x, missing]).reshape(count, size, *x.shape[1:])

    results = jax.lax.map(lambda block: function(*block), tuple(map(split, parameters)))
    return jax.tree.map(lambda y: y.reshape(size * count, *y.shape[2:])[:systems], results)


def _forward(plain, ruled, numbers, *parameters):
    return _in_blocks(plain, numbers, parameters), parameters


def _backward(plain, ruled, numbers, parameters, cotangent):
    @jax.checkpoint
    def back(*block):
        return jax.vjp(ruled, *block[:-1])[1](block[-1])

    return _in_blocks(back, numbers, (*parameters, cotangent))


map_systems.defvjp(_forward, _backward)
