from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from annotated_s4.layers import S4D
from annotated_s4.model import LAYERS, ResidualBlock, SequenceModel

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
        def __call__(self, u, lengths=None):
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


KINDS = tuple(LAYERS)
call = nnx.jit(lambda model, *inputs: model(*inputs))
prefill = nnx.jit(lambda model, *inputs: model.prefill(*inputs))


def two_modes_agree(kind, pooling, dtype, tolerance):
    """64 steps: all at once, one by one, and a prefix at once with the rest one by one."""
    sizes = SIZES | {"l_max": 64, "ssm_n": 8}
    model = SequenceModel(kind, **sizes, pooling=pooling, dropout=0.3, param_dtype=dtype, rngs=nnx.Rngs(0))
    model.eval()
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 64, 2)), dtype)
    expected = np.stack([call(model, x[:, : k + 1]) for k in (0, 20, 63)], 1) if pooling else np.asarray(call(model, x))
    chosen = np.array([0, 20, 63]) if pooling else np.arange(64)
    model.train()  # a recurrence has no dropout, whatever the model is doing
    rnn = model.as_recurrence()
    run = jax.jit(rnn.run)
    y, end = run(x, rnn.initial_state(3))
    scale = np.abs(expected).max()
    assert np.abs(y[:, chosen] - expected).max() < tolerance * scale
    model.eval()
    prefix, state = prefill(model, x[:, :20])
    assert np.abs((prefix[:, None] if pooling else prefix)[:, -1] - y[:, 19]).max() < tolerance * scale
    rest, end_of_two = run(x[:, 20:], state)
    assert np.abs(rest - y[:, 20:]).max() < tolerance * scale
    for one, two in zip(jax.tree.leaves(end), jax.tree.leaves(end_of_two), strict=True):
        assert np.abs(one - two).max() <= tolerance * np.abs(one).max()


@pytest.mark.parametrize("pooling", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_two_modes_of_the_whole_model_agree(kind, pooling):
    two_modes_agree(kind, pooling, jnp.float32, 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_two_modes_of_the_whole_model_agree_in_double_precision(float64, kind):
    two_modes_agree(kind, False, jnp.float64, 1e-10)
    two_modes_agree(kind, True, jnp.float64, 1e-10)


@pytest.mark.parametrize("pooling", [True, False])
@pytest.mark.parametrize("layer", [*KINDS, partial(S4D, bidirectional=True)])
def test_padding_never_changes_a_result(layer, pooling):
    model = SequenceModel(layer, **SIZES, pooling=pooling, rngs=nnx.Rngs(0))
    x, lengths = inputs(), jnp.asarray([5, 16, 1])
    garbage = x.at[0, 5:].set(jnp.nan).at[2, 1:].set(1e9)
    y = call(model, garbage, lengths)
    np.testing.assert_array_equal(y, call(model, x, lengths))
    for row, length in enumerate([5, 16, 1]):
        alone = call(model, x[row : row + 1, :length])[0]
        np.testing.assert_allclose(y[row] if pooling else y[row, :length], alone, rtol=0, atol=1e-5)
        if not pooling:
            np.testing.assert_array_equal(y[row, length:], 0)
    gradient = nnx.jit(nnx.grad(lambda model: jnp.sum(model(garbage, lengths) ** 2)))(model)
    assert all(np.all(np.isfinite(value[...])) for _, value in nnx.to_flat_state(gradient))


@pytest.mark.parametrize("pooling", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_prefill_of_a_padded_batch_goes_on_from_each_end(kind, pooling):
    model = SequenceModel(kind, **SIZES, pooling=pooling, rngs=nnx.Rngs(0))
    x, lengths, following = inputs(), jnp.asarray([5, 9, 1]), inputs(length=1)[:, 0] + 1
    _, state = prefill(model, x.at[0, 5:].set(jnp.nan), lengths)
    y, _ = model.as_recurrence().step(following, state)
    for row, length in enumerate([5, 9, 1]):
        longer = jnp.concatenate([x[row, :length], following[row : row + 1]])[None]
        expected = call(model, longer)[0] if pooling else call(model, longer)[0, -1]
        np.testing.assert_allclose(y[row], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_another_sampling_rate_in_both_modes(kind):
    model = SequenceModel(kind, **SIZES, pooling=False, rngs=nnx.Rngs(0))
    fast = model.at_rate(2.0)
    x = jnp.repeat(inputs(), 2, axis=1)
    for block, fast_block in zip(model.blocks, fast.blocks, strict=True):
        np.testing.assert_allclose(fast_block.layer.step, block.layer.step / 2, rtol=1e-6)
    rnn = fast.as_recurrence()
    np.testing.assert_allclose(rnn.run(x, rnn.initial_state(3))[0], fast(x), rtol=0, atol=1e-4 * np.abs(fast(x)).max())


def test_a_wrong_state_is_refused(without_shape_checks):
    model = SequenceModel("s4d", **SIZES, rngs=nnx.Rngs(0))
    rnn, x = model.as_recurrence(), inputs()[:, 0]
    state = rnn.initial_state(3)
    wrong = (
        rnn.initial_state(1),
        state._replace(layers=state.layers[:1]),
        state._replace(layers=tuple(layer[:1] for layer in state.layers)),
        state._replace(total=state.total[:, :1]),
        state._replace(count=state.count[:1]),
    )
    for each in wrong:
        with pytest.raises(ValueError, match="state"):
            rnn.step(x, each)
    with pytest.raises(ValueError, match=r"x has shape \(batch, 2 inputs\).*\(3, 1\)"):
        rnn.step(x[:, :1], state)


def test_a_recurrence_is_not_changed_by_further_training():
    model = SequenceModel("s4", **SIZES, rngs=nnx.Rngs(0))
    rnn, x = model.as_recurrence(), inputs()[:, 0]
    before, _ = rnn.step(x, rnn.initial_state(3))
    for _, parameter in nnx.iter_graph(model):
        if isinstance(parameter, nnx.Param):
            parameter[...] = parameter[...] + 1
    after, _ = rnn.step(x, rnn.initial_state(3))
    np.testing.assert_array_equal(before, after)


def test_half_precision_inputs_give_a_finite_loss_close_to_the_single_one():
    model = SequenceModel("s4", **SIZES, rngs=nnx.Rngs(0))
    x = inputs().astype(jnp.bfloat16)
    y, single = model(x), model(x.astype(jnp.float32))
    assert np.all(np.isfinite(y))
    np.testing.assert_allclose(y.astype(jnp.float32), single, rtol=0, atol=2**-8 * np.abs(single).max())


def test_every_parameter_has_one_name_and_changes_in_one_step():
    model = SequenceModel("s4", **SIZES, rngs=nnx.Rngs(0))
    before = nnx.state(model, nnx.Param)
    per_layer = {"B", "C_tilde", "D", "P", "frequency", "log_decay", "log_step"}
    per_block = {("layer", name) for name in per_layer} | {(m, n) for m, n in (("norm", "scale"), ("norm", "bias"), ("gate", "kernel"), ("gate", "bias"))}
    ends = {(m, n) for m in ("encoder", "decoder") for n in ("kernel", "bias")} | {("norm", "scale"), ("norm", "bias")}
    assert {path for path, _ in nnx.to_flat_state(before)} == ends | {("blocks", i, *names) for i in (0, 1) for names in per_block}
    gradient = nnx.grad(lambda model: jnp.sum(jnp.sin(model(inputs()))))(model)
    optimizer = optax.adam(1e-3)
    updates, _ = optimizer.update(gradient, optimizer.init(before), before)
    for (path, old), (_, new) in zip(nnx.to_flat_state(before), nnx.to_flat_state(optax.apply_updates(before, updates)), strict=True):
        assert np.any(np.asarray(old[...] != new[...])), path


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model(jnp.ones((3, 16, 3))), r"length, 2 inputs.*\(3, 16, 3\)"),
        (lambda model: model(jnp.ones((16, 2))), r"length, 2 inputs.*\(16, 2\)"),
        (lambda model: model(jnp.ones((3, 17, 2))), "1 to 16 steps"),
        (lambda model: model(jnp.ones((3, 16, 2)), jnp.ones(2, int)), r"lengths.*3 rows.*\(2,\)"),
    ],
)
def test_wrong_inputs_are_named(without_shape_checks, call, message):
    with pytest.raises(ValueError, match=message):
        call(SequenceModel("s4d", **SIZES, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"layer": "s5"}, "ssm, s4, s4d, dss.*'s5'"), ({"n_layers": 0}, "n_layers.*0"), ({"ssm_n": 0}, "ssm_n.*0")],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        SequenceModel(**{"layer": "ssm", **SIZES, **change}, rngs=nnx.Rngs(0))
