import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from annotated_s4.hippo import dplr_legs, hippo_legs
from annotated_s4.layers import DSS, S4, S4D, SSM, Slow, in_float64, to_complex, to_pair
from tests.systems import dense_discretization, diagonal_discretization, full, kernel_of

KINDS = {
    "ssm": SSM,
    "s4": S4,
    "s4d": S4D,
    "s4d-bilinear": lambda *sizes, **options: S4D(*sizes, init="inv", discretization="bilinear", **options),
    "dss": DSS,
}
PAIRS = [kind for kind in KINDS if kind != "ssm"]
ROWS = {SSM: "C", S4: "C_tilde", S4D: "C", DSS: "W"}


def make(kind, d_model=3, ssm_n=8, l_max=24, seed=0, **options):
    return KINDS[kind](d_model, ssm_n, l_max, rngs=nnx.Rngs(seed), **options)


def inputs(batch=2, length=24, features=3, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(batch, length, features)), dtype)


def stored(layer):
    """The parameters in float64, with complex numbers in the place of pairs."""
    values = {name: np.asarray(value, np.float64) for name, value in nnx.to_pure_dict(nnx.state(layer)).items()}
    for name in {"P", "B", "C", "C_tilde", "W", "C_reverse", "C_tilde_reverse", "W_reverse"} & set(values):
        if not isinstance(layer, SSM):
            values[name] = values[name][..., 0] + 1j * values[name][..., 1]
    return values


def dense_systems(layer, suffix=""):
    """Ab, Bb, C of each feature over the whole state: dense matrices in float64, from the stored parameters."""
    p = stored(layer)
    row = p[ROWS[type(layer)] + suffix]
    for h, step in enumerate(np.exp(p["log_step"])):
        if isinstance(layer, SSM):
            left, right = np.eye(len(p["A"])) - step / 2 * p["A"], np.eye(len(p["A"])) + step / 2 * p["A"]
            yield np.linalg.solve(left, right), np.linalg.solve(left, step * p["B"][h]), row[h]
            continue
        Lambda = -np.exp(p["log_decay"][h]) + 1j * p["frequency"][h]
        if isinstance(layer, S4):
            Ab, Bb = dense_discretization(Lambda, p["P"][h], p["P"][h], p["B"][h], step)
            yield Ab, Bb, np.linalg.solve((np.eye(len(Ab)) - np.linalg.matrix_power(Ab, layer.l_max)).T, full(row[h]))
        elif isinstance(layer, S4D):
            yield *diagonal_discretization(Lambda, p["B"][h], step, layer.discretization), full(row[h])
        else:
            C = row[h] / (np.exp(layer.l_max * step * Lambda) - 1)
            yield *diagonal_discretization(Lambda, np.ones_like(Lambda), step, "zoh"), full(C)


def by_hand(layer, u):
    """The recurrence of every feature of every row, step by step in float64."""
    u, D = np.asarray(u, np.float64), np.asarray(layer.D[...], np.float64)
    y = np.zeros(u.shape)
    for h, (Ab, Bb, C) in enumerate(dense_systems(layer)):
        for b in range(len(u)):
            x = np.zeros(len(Bb), Ab.dtype)
            for k in range(u.shape[1]):
                x = Ab @ x + Bb * u[b, k, h]
                y[b, k, h] = (C @ x).real + D[h] * u[b, k, h]
    return y


def close(found, expected, tolerance):
    return np.abs(np.asarray(found, np.float64) - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.parametrize("length", [1, 17, 24])
@pytest.mark.parametrize("kind", KINDS)
def test_both_modes_are_the_recurrence_of_each_feature(kind, length):
    """The convolution, at l_max and shorter, and the steps of the converted layer, against the dense system."""
    layer, u = make(kind), inputs(length=length)
    expected = by_hand(layer, u)
    assert close(layer(u), expected, 1e-5)
    rnn = layer.as_recurrence()
    y, _ = rnn.run(u, rnn.initial_state(2))
    assert close(y, expected, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_both_modes_in_double_precision(float64, kind):
    layer, u = make(kind, param_dtype=jnp.float64), inputs(dtype=jnp.float64)
    expected = by_hand(layer, u)
    assert close(layer(u), expected, 1e-12)
    rnn = layer.as_recurrence()
    assert close(rnn.run(u, rnn.initial_state(2))[0], expected, 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_memory_in_single_precision(kind):
    """N = 64, 1024 steps."""
    layer, u = make(kind, 4, 64, 1024), inputs(1, 1024, 4)
    rnn = layer.as_recurrence()
    assert close(rnn.run(u, rnn.initial_state(1))[0], np.asarray(layer(u), np.float64), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_by_convolution_and_the_rest_by_steps(kind):
    layer, u = make(kind), inputs()
    rnn = layer.as_recurrence()
    y, state = layer.prefill(u[:, :10])
    rest, end = rnn.run(u[:, 10:], state)
    all_steps, all_end = rnn.run(u, rnn.initial_state(2))
    assert close(jnp.concatenate([y, rest], 1), np.asarray(all_steps), 1e-5)
    np.testing.assert_allclose(end, all_end, rtol=0, atol=1e-5 * np.abs(all_end).max())


@pytest.mark.parametrize("kind", KINDS)
def test_one_pass_is_two_with_the_state_handed_on(kind):
    rnn, u = make(kind).as_recurrence(), inputs(length=128)
    once, end = rnn.run(u, rnn.initial_state(2))
    first, state = rnn.run(u[:, :64], rnn.initial_state(2))
    second, end_of_two = rnn.run(u[:, 64:], state)
    np.testing.assert_array_equal(jnp.concatenate([first, second], 1), once)
    np.testing.assert_array_equal(end_of_two, end)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_the_wrong_size_never_broadcasts(without_shape_checks, kind):
    rnn = make(kind).as_recurrence()
    right = rnn.initial_state(2)
    for wrong in (right[:1], right[..., :1], right[:, :1], right[0], jnp.zeros(())):
        with pytest.raises(ValueError, match=r"state.*\(2, 3, [48]\).*was given"):
            rnn.step(jnp.ones((2, 3)), wrong)
    for wrong in (jnp.ones((2, 4)), jnp.ones(3), jnp.ones((2, 1))):
        with pytest.raises(ValueError, match="u has shape"):
            rnn.step(wrong, right)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changed", [0, 11, 23])
def test_causality(kind, changed):
    layer, u = make(kind), inputs()
    difference = np.abs(layer(u) - layer(u.at[:, changed].add(1))).max((0, 2))
    assert difference[:changed].max(initial=0) < 1e-5 < 1e-3 < difference[changed]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_trained_and_what_is_slow(kind):
    layer = make(kind)
    slow = {"log_step", "B"} | ({"log_decay", "frequency"} if kind != "ssm" else set()) | ({"P"} if kind == "s4" else set())
    slow -= {"B"} if kind == "dss" else set()
    names = slow | {"D", ROWS[type(layer)]}
    assert set(nnx.state(layer, nnx.Param)) == names
    assert set(nnx.state(layer, Slow)) == slow
    both = make(kind, bidirectional=True)
    assert set(nnx.state(both, nnx.Param)) == names | {f"{ROWS[type(layer)]}_reverse"}


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_real_and_changes_in_one_step(kind, bidirectional):
    layer, u = make(kind, bidirectional=bidirectional), inputs()
    before = nnx.state(layer, nnx.Param)
    gradient = nnx.grad(lambda layer: jnp.sum(layer(u) ** 3))(layer)
    optimizer = optax.adam(1e-3)
    updates, _ = optimizer.update(gradient, optimizer.init(before), before)
    for (name, old), (_, new) in zip(
        nnx.to_flat_state(before), nnx.to_flat_state(optax.apply_updates(before, updates)), strict=True
    ):
        assert old.dtype == jnp.float32 and np.all(np.isfinite(new[...])), name
        # The imaginary part of a mode without a frequency, and P's and LegS's phases, may have no gradient.
        changed = np.asarray(old[...] != new[...])
        assert changed.reshape(3, -1).any(1).all(), name


def test_complex_parameters_as_pairs_go_the_right_way():
    """jax.grad of |z|^2 at 3+4j is 6-8j, the conjugate of the way up; a pair of real numbers has no such trap."""
    gradient = jax.grad(lambda z: jnp.abs(z) ** 2)(3 + 4j)
    np.testing.assert_allclose(gradient, 6 - 8j, rtol=1e-6)
    np.testing.assert_allclose(3 + 4j - 0.1 * gradient, 2.4 + 4.8j, rtol=1e-6)
    pair = jnp.asarray([3.0, 4.0])
    step = jax.grad(lambda pair: jnp.abs(to_complex(pair)) ** 2)(pair)
    np.testing.assert_allclose(pair - 0.1 * step, [2.4, 3.2], rtol=1e-6)

    def far_from_target(start, loss):
        optimizer = optax.adam(0.05)
        state = optimizer.init(start)

        @jax.jit
        def advance(carry, _):
            z, state = carry
            updates, state = optimizer.update(jax.grad(loss)(z), state)
            return (optax.apply_updates(z, updates), state), None

        return jax.lax.scan(advance, (start, state), None, length=500)[0][0]

    target = 1 - 2j
    assert jnp.abs(far_from_target(jnp.complex64(3 + 4j), lambda z: jnp.abs(z - target) ** 2) - target) > 1
    found = far_from_target(pair, lambda pair: jnp.abs(to_complex(pair) - target) ** 2)
    assert jnp.abs(to_complex(found) - target) < 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_initial_values_have_the_stated_spread(kind):
    layer = make(kind, 2000, 4, 8, step_range=(0.01, 0.1))
    C = in_float64(lambda layer: layer._to_C(getattr(layer, layer.row)[...]), layer)
    assert np.mean(np.abs(C) ** 2) == pytest.approx(1, abs=0.05)
    assert abs(np.mean(C)) < 0.05
    step = np.asarray(layer.step)
    assert 0.01 <= step.min() < 0.0101 and 0.099 < step.max() <= 0.1001
    assert np.mean(layer.log_step[...]) == pytest.approx(np.log(0.01 * 0.1) / 2, abs=0.05)


def test_s4_starts_as_hippo():
    layer = make("s4", ssm_n=16)
    Lambda, P, B, V = dplr_legs(16)
    np.testing.assert_allclose(layer.Lambda[1], Lambda, rtol=1e-5)
    np.testing.assert_allclose(to_complex(layer.P[...])[2], P, rtol=1e-5)
    np.testing.assert_allclose(to_complex(layer.B[...])[0], B, rtol=1e-5)
    np.testing.assert_array_equal(make("ssm", ssm_n=16).A[...], hippo_legs(16)[0])


def random_settings(layer, rng):
    """Every trained parameter anywhere: logarithms up to thousands, frequencies and vectors over many orders of magnitude."""
    graph, params, rest = nnx.split(layer, nnx.Param, ...)
    values = nnx.to_flat_state(params)
    drawn = []
    for path, value in values:
        exponent = rng.uniform(-1, 3.3) if path[-1].startswith("log_") else rng.uniform(-3, 3)
        drawn.append((path, value.replace(jnp.asarray(10.0**exponent * rng.normal(size=value[...].shape), jnp.float32))))
    return nnx.merge(graph, nnx.from_flat_state(drawn), rest)


@pytest.mark.parametrize("kind", ["s4", "s4d", "s4d-bilinear", "dss"])
def test_stable_and_finite_whatever_is_learned(kind):
    """300 random settings, extreme ones among them: spectral radius below 1 in float64, kernel and gradients finite in float32."""
    rng, layer = np.random.default_rng(0), make(kind, l_max=32)
    evaluate = nnx.jit(nnx.value_and_grad(lambda layer: (jnp.sum(jnp.sin(K := layer.kernel(32))), K), has_aux=True))
    for trial in range(300):
        random = random_settings(layer, rng)
        (_, K), gradient = evaluate(random)
        assert np.all(np.isfinite(K)), (kind, trial)
        for path, value in nnx.to_flat_state(gradient):
            assert np.all(np.isfinite(value[...])), (kind, trial, path)
        Lambda = np.asarray(random.Lambda, np.complex128)
        step = np.asarray(random.step, np.float64)
        for h in range(3):
            if kind == "s4":
                P = stored(random)["P"][h]
                Ab, _ = dense_discretization(Lambda[h], P, P, P, step[h])
                radius = np.abs(np.linalg.eigvals(Ab)).max()
            else:
                g = step[h] * Lambda[h]
                radius = np.abs(np.exp(g) if "bilinear" not in kind else (1 + g / 2) / (1 - g / 2)).max()
            assert radius < 1, (kind, trial, radius)


@pytest.mark.parametrize("kind", PAIRS)
def test_an_eigenvalue_trained_to_zero_or_above_stays_below(kind):
    layer = make(kind)
    for value in (0.0, 1.0, -1000.0, 1000.0):
        layer.log_decay[...] = jnp.full(layer.log_decay.shape, value)
        assert np.all(np.asarray(layer.Lambda.real) < 0) and np.all(np.isfinite(layer.Lambda))


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_activations_lower_no_parameter(kind):
    layer, u = make(kind), inputs().astype(jnp.bfloat16)
    assert layer.kernel(24).dtype == jnp.float32
    assert {value.dtype for _, value in nnx.to_flat_state(nnx.state(layer))} == {jnp.dtype("float32")}
    y, single = layer(u), layer(u.astype(jnp.float32))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(jnp.float32), single, rtol=2**-8, atol=1e-6)
    loss, gradient = nnx.value_and_grad(lambda layer: jnp.mean(layer(u).astype(jnp.float32) ** 2))(layer)
    assert np.isfinite(loss)
    assert all(np.all(np.isfinite(value[...])) and value.dtype == jnp.float32 for _, value in nnx.to_flat_state(gradient))
    rnn = layer.as_recurrence()
    y_k, state = rnn.step(u[:, 0], rnn.initial_state(2))
    assert y_k.dtype == jnp.bfloat16 and state.real.dtype == jnp.float32


@pytest.mark.parametrize("kind", KINDS)
def test_another_sampling_rate_scales_the_step_once(kind):
    """An input held twice as long, sampled twice as often: exact for zero-order hold, close for the bilinear forms."""
    layer, u = make(kind, step_range=(1e-3, 1e-2), l_max=40), inputs(length=20)
    fast = layer.at_rate(2.0)
    assert fast.l_max == 80
    np.testing.assert_allclose(fast.step, layer.step / 2, rtol=1e-6)
    held = jnp.repeat(u, 2, axis=1)
    scale = np.abs(layer(u)).max()
    difference = np.abs(fast(held)[:, 1::2] - layer(u)).max() / scale
    assert difference < (2e-5 if kind in ("s4d", "dss") else 5e-2)
    rnn = fast.as_recurrence()
    assert close(rnn.run(held, rnn.initial_state(2))[0], np.asarray(fast(held)), 1e-5)
    assert close(fast(held), by_hand(fast, held), 2e-5)
    assert close(fast.at_rate(0.5)(u), np.asarray(layer(u)), 1e-4)


@pytest.mark.parametrize(
    ("row", "differ", "forgotten"), [("ones", [1.17, 0.59, 0.29], 27.2), ("e_0", [0.82, 0.41, 0.20], 68.0)]
)
def test_the_sine_at_several_rates(float64, row, differ, forgotten):
    """N = 8, LegS, bilinear, u = sin(2 pi t) on [0, 1), step 1/L: how far shared times differ in %, from each rate to twice that rate."""
    C = (jnp.ones(8) if row == "ones" else jnp.zeros(8).at[0].set(1)) @ dplr_legs(8)[3]
    sine = lambda L: jnp.sin(2 * jnp.pi * jnp.arange(L) / L)[None, :, None]

    def sine_layer(l_max):
        layer = S4(1, 8, l_max, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
        layer.log_step[...], layer.D[...] = jnp.full(1, -jnp.log(128)), jnp.zeros(1)
        layer.C_tilde[...] = layer._from_C(C[None])
        return layer

    def difference(fast, slow):
        return 100 * np.abs(np.asarray(fast)[0, ::2] - np.asarray(slow)[0]).max() / np.abs(slow).max()

    outputs = {L: sine_layer(128).at_rate(L / 128)(sine(L)) for L in (128, 256, 512, 1024)}
    found = [difference(outputs[2 * L], outputs[L]) for L in (128, 256, 512)]
    np.testing.assert_allclose(found, differ, rtol=0, atol=0.006)
    assert difference(sine_layer(256)(sine(256)), outputs[128]) == pytest.approx(forgotten, abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_both_directions_are_the_two_sums(kind):
    layer, u = make(kind, bidirectional=True), inputs()
    K, K_reverse = (
        np.stack([kernel_of(*system, 24) for system in dense_systems(layer, suffix)]) for suffix in ("", "_reverse")
    )
    expected = np.zeros(u.shape)
    for i in range(24):
        past = sum(K[:, i - j] * np.asarray(u[:, j]) for j in range(i + 1))
        future = sum(K_reverse[:, j - i - 1] * np.asarray(u[:, j]) for j in range(i + 1, 24))
        expected[:, i] = past + future + np.asarray(layer.D[...]) * np.asarray(u[:, i])
    assert close(layer(u), expected, 1e-5)
    for call in (lambda: layer.prefill(u), layer.as_recurrence):
        with pytest.raises(ValueError, match="bidirectional.*no recurrence"):
            call()
    held = jnp.repeat(u, 2, axis=1)
    assert layer.at_rate(2.0)(held).shape == held.shape


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_never_changes_a_result(kind, bidirectional):
    layer, u = make(kind, bidirectional=bidirectional), inputs()
    lengths = jnp.asarray([9, 24])
    garbage = u.at[0, 9:].set(jnp.nan)
    y = layer(garbage, lengths)
    np.testing.assert_array_equal(y, layer(u.at[0, 9:].set(1e6), lengths))
    assert close(y[0, :9], np.asarray(layer(u[:1, :9])[0]), 1e-5)
    assert close(y[1], np.asarray(layer(u[1:])[0]), 1e-5)
    loss = lambda layer: jnp.sum(layer(garbage, lengths)[0, :9] ** 2)
    assert all(np.all(np.isfinite(value[...])) for _, value in nnx.to_flat_state(nnx.grad(loss)(layer)))
    if not bidirectional:
        _, state = layer.prefill(garbage, lengths)
        for row, length in enumerate((9, 24)):
            np.testing.assert_allclose(state[row], layer.prefill(u[row : row + 1, :length])[1][0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_solves_nothing_and_is_linear_in_the_state(kind):
    operations = {}
    for N in (8, 32):
        layer = make(kind, ssm_n=N)
        rnn = layer.as_recurrence()
        compiled = jax.jit(rnn.step).lower(jnp.ones((2, 3)), rnn.initial_state(2)).compile()
        program = compiled.as_text()
        assert not re.search(r"lapack|cusolver|triangular|getrf|Inverse|cholesky", program, re.IGNORECASE)
        operations[N] = compiled.cost_analysis()["flops"]
    growth = operations[32] / operations[8]
    assert growth < 4.5 if kind != "ssm" else growth < 18


@pytest.mark.parametrize("kind", KINDS)
def test_no_batch_of_systems_is_solved_at_once(kind):
    """Two such solves at the same time dead-lock jaxlib 0.10.1 on two cores: each LU takes one matrix."""
    graph, params, rest = nnx.split(make(kind), nnx.Param, ...)
    loss = lambda params: jnp.sum(nnx.merge(graph, params, rest, copy=True)(jnp.ones((2, 24, 3))))
    convert = lambda params: nnx.merge(graph, params, rest, copy=True)._recurrence()
    for function, solves in ((jax.grad(loss), kind == "ssm"), (convert, kind in ("ssm", "s4"))):
        solved = re.findall(r"(\S+) \S+ \S+ = lu\b", str(jax.make_jaxpr(function)(params)))
        assert bool(solved) == solves and all(result.endswith(":f32[8,8]") for result in solved)


@pytest.mark.parametrize("kind", KINDS)
def test_no_loop_over_rows_or_features(kind):
    """The program is as long for 7 rows of 5 features as for 2 rows of 3."""

    def lines(batch, features):
        layer = make(kind, features)
        graph, state = nnx.split(layer)
        run = lambda state, u: nnx.merge(graph, state, copy=True).prefill(u)
        return str(jax.make_jaxpr(run)(state, inputs(batch, features=features))).count("\n")

    assert lines(2, 3) == lines(7, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_converting_a_large_layer_needs_under_a_gigabyte(kind):
    """Planned, d_model 256 and N 256, in float64; all systems at once would be 256 matrices of 256 x 256 several times over."""
    layer = nnx.eval_shape(lambda: make(kind, 256, 256, 1024))
    graph, state = nnx.split(layer)
    with jax.enable_x64(True):
        double = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float64), state)
        plan = jax.jit(lambda state: nnx.merge(graph, state)._recurrence()).lower(double).compile().memory_analysis()
    assert plan.temp_size_in_bytes + plan.output_size_in_bytes + plan.argument_size_in_bytes < 1e9


@pytest.mark.parametrize("kind", PAIRS)
def test_prefill_does_not_keep_the_state_of_every_step(kind):
    """At (32, 1024, 256, 64) all states are 2 GiB; the plan of prefill, kernel and all, stays below half of that."""
    graph, state = nnx.split(nnx.eval_shape(lambda: make(kind, 256, 64, 1024)))
    u = jax.ShapeDtypeStruct((32, 1024, 256), jnp.float32)
    plan = jax.jit(lambda state, u: nnx.merge(graph, state).prefill(u)).lower(state, u).compile().memory_analysis()
    assert plan.temp_size_in_bytes < 2**30


@pytest.mark.parametrize("kind", PAIRS)
def test_an_odd_state_is_refused_where_pairs_are_kept(kind):
    with pytest.raises(ValueError, match="N must be even.*7"):
        make(kind, ssm_n=7)


def test_conversion_is_outside_of_transformations():
    layer = make("s4")
    with pytest.raises(ValueError, match="outside of jit"):
        nnx.jit(lambda layer: layer.as_recurrence())(layer)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda layer: layer(jnp.ones((2, 25, 3))), r"1 to 24 steps, 3 features.*\(2, 25, 3\)"),
        (lambda layer: layer(jnp.ones((2, 0, 3))), r"1 to 24 steps, 3 features.*\(2, 0, 3\)"),
        (lambda layer: layer(jnp.ones((2, 24, 4))), r"3 features.*\(2, 24, 4\)"),
        (lambda layer: layer(jnp.ones((24, 3))), r"\(24, 3\)"),
        (lambda layer: layer.prefill(jnp.ones((2, 25, 3))), r"1 to 24 steps, 3 features.*\(2, 25, 3\)"),
        (lambda layer: layer(jnp.ones((2, 24, 3), int)), "floating-point.*int32"),
        (lambda layer: layer(jnp.ones((2, 24, 3)), jnp.ones(3, int)), r"lengths.*2 rows.*\(3,\)"),
        (lambda layer: layer(jnp.ones((2, 24, 3)), jnp.asarray([0, 4])), r"1 to 24 steps.*\[0 4\]"),
        (lambda layer: layer(jnp.ones((2, 24, 3)), jnp.asarray([3, 25])), r"1 to 24 steps.*\[ 3 25\]"),
        (lambda layer: layer.at_rate(0.0), "rate.*positive.*0.0"),
        (lambda layer: layer.at_rate(1e9), "steps lie within.*at the rate 1000000000.0"),
    ],
)
def test_bad_input_is_named(without_shape_checks, call, message):
    for kind in KINDS:
        with pytest.raises(ValueError, match=message):
            call(make(kind))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_model": 0}, "d_model.*0"),
        ({"ssm_n": 0}, "ssm_n.*0"),
        ({"l_max": 0}, "l_max.*0"),
        ({"step_range": (0.1, 0.01)}, r"step_range.*\(0.1, 0.01\)"),
        ({"step_range": (0.0, 0.01)}, r"step_range.*\(0.0, 0.01\)"),
        ({"param_dtype": jnp.bfloat16}, "float32 or float64.*bfloat16"),
        ({"param_dtype": jnp.float64}, "jax_enable_x64"),
    ],
)
def test_bad_settings_are_named(without_shape_checks, options, message):
    for kind in KINDS:
        with pytest.raises(ValueError, match=message):
            make(kind, **options)


@pytest.mark.parametrize("call", [lambda: S4D(3, 8, 24, init="hippo", rngs=nnx.Rngs(0)), lambda: DSS(3, 8, 24, init="hippo", rngs=nnx.Rngs(0))])
def test_an_unknown_start_is_named(without_shape_checks, call):
    with pytest.raises(ValueError, match="init is one of legs, lin, inv.*'hippo'"):
        call()


def test_pairs_there_and_back():
    z = jnp.asarray([1 + 2j, -3j])
    np.testing.assert_array_equal(to_complex(to_pair(z)), z)
