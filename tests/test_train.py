import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from annotated_s4.data import Part
from annotated_s4.layers import Slow
from annotated_s4.model import SequenceModel
from annotated_s4.train import accuracy, cross_entropy, fit, grouped_adamw, predict


def two_kinds(samples=64, length=12):
    """Sequences that rise and sequences that fall, with noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, samples).astype(np.int32)
    slope = np.where(y == 1, 1, -1)[:, None, None] * np.linspace(-1, 1, length)[None, :, None]
    return Part((slope + 0.3 * rng.normal(size=(samples, length, 1))).astype(np.float32), y)


def model(seed=0, dropout=0.0):
    sizes = {"d_input": 1, "d_output": 2, "d_model": 8, "n_layers": 1, "ssm_n": 4, "l_max": 12}
    return SequenceModel("ssm", **sizes, dropout=dropout, rngs=nnx.Rngs(seed))


def run(net, epochs=3, **options):
    return list(fit(net, two_kinds(), epochs=epochs, batch_size=16, optimizer=optax.adam(1e-2), **options))


def test_cross_entropy_by_hand():
    logits, labels = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]]), np.array([1, 0], np.int32)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = -np.log(p[[0, 1], labels]).mean()
    assert float(cross_entropy(jnp.asarray(logits, jnp.float32), jnp.asarray(labels))) == pytest.approx(expected, rel=1e-6)


def test_training_learns_and_changes_every_parameter():
    net = model()
    before = nnx.to_pure_dict(nnx.state(net, nnx.Param))
    losses = run(net, epochs=15)
    assert losses[-1] < 0.5 * losses[0] and accuracy(net, two_kinds()) > 0.9
    after = nnx.to_pure_dict(nnx.state(net, nnx.Param))

    def compare(old, new, path=""):
        if isinstance(old, dict):
            for name in old:
                compare(old[name], new[name], f"{path}/{name}")
        else:
            assert np.any(np.asarray(old) != np.asarray(new)), path

    compare(before, after)


def test_one_step_is_optaxs_step():
    """Oracle: the same batch through nnx.grad and the optimiser, without the scan."""
    data = two_kinds(samples=16)
    net, ours = model(), model()
    list(fit(ours, data, epochs=1, batch_size=16, optimizer=optax.sgd(0.1)))
    order = np.random.default_rng(0).permutation(16)
    x, y = jnp.asarray(data.x[order]), jnp.asarray(data.y[order])
    gradient = nnx.grad(lambda net: cross_entropy(net(x), y))(net)
    expected = nnx.to_flat_state(nnx.state(net, nnx.Param))
    slopes, found = dict(nnx.to_flat_state(gradient)), dict(nnx.to_flat_state(nnx.state(ours, nnx.Param)))
    for path, value in expected:
        np.testing.assert_allclose(found[path][...], value[...] - 0.1 * slopes[path][...], rtol=0, atol=1e-6, err_msg=str(path))


def test_the_same_seed_gives_the_same_numbers():
    assert run(model(dropout=0.2)) == run(model(dropout=0.2))
    assert run(model(), seed=0) != run(model(), seed=1)


def test_dropout_masks_change_from_epoch_to_epoch():
    """With a learning rate of zero nothing but the masks can change the loss of one single batch."""
    net = model(dropout=0.5)
    losses = list(fit(net, two_kinds(samples=16), epochs=3, batch_size=16, optimizer=optax.sgd(0.0)))
    assert len(set(losses)) == 3


def test_prediction_uses_no_dropout():
    net = model(dropout=0.5)
    run(net, epochs=1)
    assert accuracy(net, two_kinds()) == accuracy(net, two_kinds())
    x = jnp.asarray(two_kinds().x)
    np.testing.assert_array_equal(predict(net, x), jnp.argmax(net(x), -1))


def test_a_batch_larger_than_the_data_is_named():
    with pytest.raises(ValueError, match="65.*64"):
        list(fit(model(), two_kinds(), epochs=1, batch_size=65, optimizer=optax.adam(1e-2)))


SIZES = {"d_input": 1, "d_output": 2, "d_model": 8, "n_layers": 2, "ssm_n": 4, "l_max": 12}


@pytest.mark.parametrize("layer", ["ssm", "s4", "s4d", "dss"])
def test_what_shapes_a_memory_does_not_decay(layer):
    """Zero gradients, decay 0.05: one step leaves Lambda, P, B, step and all vectors as they are, to the bit, and shrinks the rest."""
    params = nnx.state(SequenceModel(layer, **SIZES, rngs=nnx.Rngs(0)), nnx.Param)
    optimizer = grouped_adamw(1e-2, slow_rate=1e-3, weight_decay=0.05)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    after = optax.apply_updates(params, updates)
    decayed = set()
    for (path, old), (_, new) in zip(nnx.to_flat_state(params), nnx.to_flat_state(after), strict=True):
        old, new = old[...], new[...]
        if path[-1] in {"kernel", "C", "C_tilde", "W"}:
            np.testing.assert_allclose(new, old * (1 - 1e-2 * 0.05), rtol=1e-6)
            decayed.add(path[-1])
        else:
            np.testing.assert_array_equal(new, old, err_msg=str(path))
    assert "kernel" in decayed and len(decayed) == 2


def test_the_groups_learn_at_their_rates():
    """Adam's first step is the rate times the sign of the gradient."""
    net = SequenceModel("s4", **SIZES, rngs=nnx.Rngs(0))
    params = nnx.state(net, nnx.Param)
    optimizer = grouped_adamw(1e-2, slow_rate=1e-3, weight_decay=0.0)
    updates, _ = optimizer.update(jax.tree.map(jnp.ones_like, params), optimizer.init(params), params)
    declared = dict(nnx.to_flat_state(params))
    for path, update in nnx.to_flat_state(updates):
        slow = isinstance(declared[path], Slow)
        np.testing.assert_allclose(update[...], -1e-3 if slow else -1e-2, rtol=1e-4, err_msg=str(path))
