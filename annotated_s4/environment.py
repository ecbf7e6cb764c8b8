"""Which versions and devices a notebook runs on, and whether this JAX computes correctly.

Some JAX releases have computed wrong sums in silence, or took quadratic time where linear was meant. A
list of their numbers is out of date on the day the next one appears, so each notebook starts with
canaries: small computations with a known answer that together take a fraction of a second.
"""

import time
from importlib import metadata
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np


class BrokenRelease(RuntimeError):
    """The installed JAX gives wrong results; the message names the release and what to install instead."""


def start(precision: Literal["float32", "float64"]) -> None:
    """Prepare a notebook: set the precision, print versions and devices in one line, run the canaries.

    Raises:
        ValueError: the precision is neither "float32" nor "float64".
        BrokenRelease: a canary failed.
    """
    if precision not in ("float32", "float64"):
        raise ValueError(f'precision is "float32" or "float64", but {precision!r} was given')
    jax.config.update("jax_enable_x64", precision == "float64")
    print(f"{describe()}, {precision}")
    check()


def describe() -> str:
    """The versions of what computes and the devices it computes on, in one line."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "jaxlib", "flax", "optax"))
    devices = jax.devices()
    return f"{versions} on {len(devices)} x {devices[0].device_kind}"


def check() -> None:
    """Run every canary.

    Raises:
        BrokenRelease: a canary failed; the message names the jaxlib release, what it got wrong, what to install.
    """
    for canary in (sums_over_rows, stacked_scan, operations_outside_jit):
        complaint = canary()
        if complaint:
            raise BrokenRelease(
                f"jaxlib {metadata.version('jaxlib')} is not safe to learn or to work with: {complaint}. "
                'Install another release, for example with: pip install "jax!=0.10.2,!=0.11.0,!=0.11.1" '
                "and restart the kernel."
            )


def sums_over_rows() -> str | None:
    """sum((I r)^2) over the rows r = (i mod 29, 0, 0) is (i mod 29)^2. jaxlib 0.10.2 on a CPU gets the last rows wrong.

    It takes them from a power of two of rows before, which 29 tells apart; and so small a whole number is exact even
    where a GPU rounds products to ten bits.
    """
    rows = 32_769
    i = np.arange(rows) % 29
    r = jnp.zeros((rows, 3), jnp.float32).at[:, 0].set(jnp.asarray(i, jnp.float32))
    identity = jnp.eye(3, dtype=jnp.float32)
    squares = np.asarray(jax.jit(jax.vmap(lambda row: jnp.sum((identity @ row) ** 2)))(r))
    wrong = int((squares != i**2).sum())
    return f"{wrong} of {rows} sums of squares are wrong" if wrong else None


def stacked_scan() -> str | None:
    """A scan that stacks L numbers needs time in proportion to L. jaxlib 0.11.1 on a CPU needs L^2."""

    def seconds(length: int) -> float:
        """The faster of two runs, so that one hiccup of the machine is not taken for a fault."""
        stack = jax.jit(lambda x: jax.lax.scan(lambda c, _: (c + 1, c), x, None, length=length)[1])
        zero = jnp.float32(0)
        stack(zero).block_until_ready()
        times = []
        for _ in range(2):
            begin = time.perf_counter()
            stack(zero).block_until_ready()
            times.append(time.perf_counter() - begin)
        return min(times)

    short, long = seconds(4_000), seconds(32_000)
    # Eight times the length: about 8 where time is linear, 64 where it is quadratic.
    if long > 0.1 and long > 24 * short:
        return f"stacking eight times as many outputs of a scan took {long / short:.0f} times as long"
    return None


def operations_outside_jit() -> str | None:
    """1 + 1 = 2, four times, outside jit. jaxlib 0.11.0 and 0.11.1 gave 513 on some GPUs."""
    twos = jnp.ones(4) + 1
    if not np.array_equal(twos, np.full(4, 2)):
        return f"ones(4) + 1 gives {twos}"
    return None
