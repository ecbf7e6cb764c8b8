import jax
import jax.numpy as jnp
import numpy as np
import pytest

from annotated_s4.blocks import map_systems
from annotated_s4.diagonal import kernel_diagonal, kernel_dss
from annotated_s4.dplr import kernel_dplr
from tests.systems import random_dplr


def kernels(method):
    """The three kernels as functions of Lambda, B, C, step."""
    bounded = {"bounded": ("blocked", "two_level"), "dense": ("dense", "dense")}[method]
    return {
        "s4": lambda Lambda, B, C, step, L: kernel_dplr(Lambda, B / 4, B / 4, B, C, step, L, bounded[0]),
        "s4d": lambda Lambda, B, C, step, L: kernel_diagonal(Lambda, B, C, step, L, "zoh", bounded[1]),
        "dss": lambda Lambda, B, C, step, L: kernel_dss(Lambda, C, step, L, bounded[1]),
    }


KINDS = tuple(kernels("dense"))


def systems(H, N, dtype=jnp.complex128):
    parts = zip(*[(Lambda, B, C) for Lambda, _, _, B, C in (random_dplr(N, seed) for seed in range(H))], strict=True)
    return [jnp.asarray(np.stack(part), dtype) for part in parts]


@pytest.mark.parametrize("systems_", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("numbers", [1, 2**16, 2**20])
def test_blocks_are_the_whole(systems_, numbers):
    """However many blocks, full or not: values, gradients, and the padded systems leave no trace."""
    a = jnp.asarray(np.random.default_rng(0).normal(size=(systems_, 3)), jnp.float32)
    b = jnp.asarray(np.random.default_rng(1).normal(size=systems_), jnp.float32)
    function = lambda a, b: jnp.sin(a) * b[:, None]
    mapped = lambda a, b: map_systems(function, function, numbers, a, b)
    np.testing.assert_allclose(mapped(a, b), function(a, b), rtol=0, atol=1e-6)
    loss = lambda f: jax.grad(lambda a, b: jnp.sum(f(a, b) ** 2), argnums=(0, 1))(a, b)
    for found, expected in zip(loss(mapped), loss(function), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_vmap_and_what_forward_mode_says(float64, kind):
    arguments, L = (*systems(3, 4), jnp.asarray([0.1, 0.02, 0.05])), 7
    bounded, dense = (kernels(method)[kind] for method in ("bounded", "dense"))

    def second(kernel):
        loss = lambda step: jnp.sum(kernel(*arguments[:3], step, L) ** 2)
        return jax.hessian(loss)(arguments[3])

    np.testing.assert_allclose(second(bounded), second(dense), rtol=0, atol=1e-9 * np.abs(second(dense)).max())
    vmapped = jax.vmap(lambda scale: bounded(*arguments[:2], scale * arguments[2], arguments[3], L))(jnp.arange(1.0, 3.0))
    np.testing.assert_allclose(vmapped[1], 2 * dense(*arguments, L), rtol=0, atol=1e-12 * np.abs(vmapped).max())
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda step: bounded(*arguments[:3], step, L), (arguments[3],), (arguments[3],))


def temporaries(kind, N, L, H=256):
    """Planned bytes of value and gradient beside inputs and outputs."""
    pair = jax.ShapeDtypeStruct((H, N // 2, 2), jnp.float32)

    def loss(Lambda, B, C, step):
        whole = [jax.lax.complex(part[..., 0], part[..., 1]) for part in (Lambda, B, C)]
        return jnp.sum(kernels("bounded")[kind](*whole, step, L) ** 2)

    step = jax.ShapeDtypeStruct((H,), jnp.float32)
    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3))).lower(pair, pair, pair, step).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("N", [64, 250, 512, 1024])
def test_temporaries_stay_under_twenty_megabytes(kind, N):
    """At L = 1024 and 256 features; written down, one (L, N/2, H) array alone is 67 MB at N = 64 and 1074 MB at N = 1024."""
    assert temporaries(kind, N, 1024) < 20e6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("H", [3, 16])
def test_a_long_kernel_is_made_in_chunks(kind, H):
    """65536 steps, N = 64: one system's denominators are 4 MB a piece; planned, all stays within a few of the kernel's own size."""
    assert temporaries(kind, 64, 65536, H) < 20e6 + 4 * 4 * 65536 * H
