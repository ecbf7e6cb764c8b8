import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from annotated_s4.model import ResidualBlock, SequenceModel

SIZES = {"d_input": 2, "d_output": 5, "d_model": 8, "n_layers": 2, "ssm_n": 4, "l_max": 16}


def inputs(batch=3, length=16):
    return jnp.asarray(np.random.default_rng(0).normal(size=(batch, length, 2)), jnp.float32)


def test_one_answer_for_a_sequence_or_one_for_each_step():
    assert SequenceModel("ssm", **SIZES, rngs=nnx.Rngs(0))(inputs()).shape == (3, 5)
    assert SequenceModel("ssm", **SIZES, pooling=False, rngs=nnx.Rngs(0))(inputs()).shape == (3, 16, 5)


def test_pooling_decodes_the_mean_over_time():
    pooled = SequenceModel("ssm", **SIZES, rngs=nnx.Rngs(0))
    stepwise = SequenceModel("ssm", **SIZES, pooling=False, rngs=nnx.Rngs(0))
    # The decoder is affine, so the mean of the answers is the answer to the mean.
    np.testing.assert_allclose(pooled(inputs()), stepwise(inputs()).mean(1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("changed", [0, 7, 15])
def test_causality(changed):
    model = SequenceModel("ssm", **SIZES, pooling=False, rngs=nnx.Rngs(0))
    x = inputs()
    difference = np.abs(model(x) - model(x.at[:, changed].add(1))).max((0, 2))
    assert difference[:changed].max(initial=0) < 1e-5 < 1e-3 < difference[changed]


def test_a_block_is_what_its_docstring_says():
    class Halve(nnx.Module):
        def __call__(self, u):
            return u / 2

    block = ResidualBlock(Halve(), 4, 0.0, rngs=nnx.Rngs(0))
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    y = np.asarray(jax.nn.gelu(normed / 2), np.float64)
    both = y @ np.asarray(block.gate.kernel[...], np.float64) + np.asarray(block.gate.bias[...])
    expected = x + both[..., :4] / (1 + np.exp(-both[..., 4:]))
    np.testing.assert_allclose(block(jnp.asarray(x, jnp.float32)), expected, rtol=0, atol=1e-5)


def test_dropout_differs_within_a_batch_and_from_call_to_call_and_ends_with_training():
    model = SequenceModel("ssm", **SIZES, dropout=0.5, rngs=nnx.Rngs(0))
    x = jnp.tile(inputs(batch=1), (2, 1, 1))
    model.train()
    first, second = model(x), model(x)
    assert np.abs(first[0] - first[1]).max() > 1e-3, "two equal rows have different masks"
    assert np.abs(first - second).max() > 1e-3, "the masks change from call to call"
    model.eval()
    np.testing.assert_array_equal(model(x), model(x))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"layer": "s5"}, "ssm.*'s5'"), ({"n_layers": 0}, "n_layers.*0"), ({"ssm_n": 0}, "ssm_n.*0")],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        SequenceModel(**{"layer": "ssm", **SIZES, **change}, rngs=nnx.Rngs(0))
