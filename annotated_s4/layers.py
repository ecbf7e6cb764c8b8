"""State space layers as Flax NNX modules. All have one interface: (batch, length, features) in and out.

Each feature has a state space model of its own: H features are H systems that share nothing. A layer has two modes, the same
numbers twice: `layer(u)` is a convolution, for all steps at once; `layer.as_recurrence()` takes one step at a time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Complex, Float, Inexact, Int, Key

from annotated_s4.diagonal import DiscreteDiagonal, Discretization, discretize_diagonal, exprel, kernel_diagonal, kernel_dss
from annotated_s4.dplr import DiscreteDPLR, discretize_dplr, kernel_dplr
from annotated_s4.generating import from_tilde
from annotated_s4.hippo import dplr_legs, hippo_legs, s4d_inv, s4d_legs, s4d_lin
from annotated_s4.ssm import DiscreteSSM, causal_convolution, discretize, kernel_by_powers, require_one_of, two_sided_convolution

# Whatever a parameter holds, a step and a decay stay between these. Far wider than anything that is learned, narrow enough that
# nothing computed from them in single precision is zero or infinite.
STEPS = (1e-6, 1e1)
DECAYS = (1e-3, 1e6)

Initialisation = Literal["legs", "lin", "inv"]
INITIALISATIONS = {"legs": s4d_legs, "lin": s4d_lin, "inv": s4d_inv}


class Constant(nnx.Variable):
    """An array that belongs to a layer and is not trained."""


class Slow(nnx.Param):
    """A parameter that shapes a memory: Lambda, P, B or the step. It learns at a lower rate and never decays.

    A small change of one of these changes the entire kernel, and zero is no natural place for any of them.
    """


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Recurrence:
    """x_k = Ab x_{k-1} + Bb u_k, y_k = C x_k + D u_k of each feature, with the state in the reader's hands.

    Made by a layer's `as_recurrence`, once. A step costs O(N) for each feature of each row (O(N^2) for `SSM`) and solves nothing.
    """

    transition: DiscreteSSM | DiscreteDPLR | DiscreteDiagonal
    C: Inexact[Array, "features modes"]
    D: Float[Array, " features"]

    def initial_state(self, batch: int) -> Inexact[Array, "batch features modes"]:
        """x_{-1} = 0 for each row of a batch."""
        return jnp.zeros((batch, *self.C.shape), self.C.dtype)

    def step(
        self, u: Float[Array, "batch features"], state: Inexact[Array, "batch features modes"]
    ) -> tuple[Float[Array, "batch features"], Inexact[Array, "batch features modes"]]:
        """y_k and x_k from u_k and x_{k-1}.

        Raises:
            ValueError: u is not (batch, features), or the state is not this recurrence's for that batch.
        """
        if u.ndim != 2 or u.shape[1:] != self.D.shape:
            raise ValueError(f"u has shape (batch, {self.D.shape[0]} features), but {u.shape} was given")
        _require_state(state, (u.shape[0], *self.C.shape))
        now = u.astype(self.D.dtype)
        state = jax.vmap(self.transition.step)(state, now)
        return (_read(self.C, state) + self.D[None] * now).astype(u.dtype), state

    def run(
        self, u: Float[Array, "batch length features"], state: Inexact[Array, "batch features modes"]
    ) -> tuple[Float[Array, "batch length features"], Inexact[Array, "batch features modes"]]:
        """All of u, one step after the other in one compiled loop: the outputs and the state after the last."""
        return run_steps(self.step, u, state)


def run_steps(step: Callable, u: Float[Array, "batch length inputs"], state) -> tuple[Float[Array, "batch length outputs"], object]:
    """Take `step(u_k, state) -> y_k, state` along the time axis, the second, of u."""
    advance = lambda state, u_k: step(u_k, state)[::-1]
    state, y = jax.lax.scan(advance, state, jnp.moveaxis(u, 1, 0))
    return jnp.moveaxis(y, 0, 1), state


class StateSpaceLayer(nnx.Module):
    """What all layers share: y = K * u + D u for each feature, with the kernel that the kind of layer defines.

    Bidirectional, y_k = sum_{j<=k} K_{k-j} u_j + sum_{j>k} K_reverse_{j-k-1} u_j + D u_k: a second row reads a second kernel from the same
    system; the present sample is counted once. There is no recurrence then, since the future is not known.

    Args:
        d_model: H, the number of features.
        ssm_n: N, the size of each feature's state.
        l_max: the longest input. Shorter ones are exact, longer ones are refused: C_tilde and W belong to this length.
        rngs: where the initial steps and rows are drawn from.
        step_range: the steps of the features are drawn between these two, in the time unit of A, evenly on a logarithmic scale.
        bidirectional: read the future too.
        param_dtype: the type of all parameters, float32 or float64. Kernel and state are computed in it, whatever u is.

    Raises:
        ValueError: a size is below 1, or odd where pairs are kept; the step range is not two positive, rising numbers; the type is
            neither of the two, or float64 while JAX is set to 32 bits.
    """

    row: ClassVar[str]  # the name of the parameter that reads the state; with `_reverse`, of the one that reads the future

    def __init__(
        self,
        d_model: int,
        ssm_n: int,
        l_max: int,
        *,
        rngs: nnx.Rngs,
        step_range: tuple[float, float] = (1e-3, 1e-1),
        bidirectional: bool = False,
        param_dtype: DTypeLike = jnp.float32,
    ):
        _require_sizes(d_model, ssm_n, l_max, step_range, param_dtype)
        row_key, step_key = rngs.params(), rngs.params()
        low, high = map(math.log, step_range)
        self.l_max, self.bidirectional = l_max, bidirectional
        self.log_step = Slow(jax.random.uniform(step_key, (d_model,), param_dtype, low, high))
        self.D = nnx.Param(jnp.ones(d_model, param_dtype))
        self._build(ssm_n)
        for name, key in zip(self._rows(), (row_key, jax.random.fold_in(row_key, 1)), strict=False):
            setattr(self, name, nnx.Param(self._from_C(self._draw_C(key, ssm_n))))

    def _rows(self) -> tuple[str, ...]:
        """The names of the parameters that read the state."""
        return (self.row, f"{self.row}_reverse") if self.bidirectional else (self.row,)

    # What a kind of layer defines: its system, how C is drawn, what is stored instead of C, the kernel, and one step.

    def _build(self, ssm_n: int) -> None:
        raise NotImplementedError

    def _draw_C(self, key: Key[Array, ""], ssm_n: int) -> Inexact[Array, "features modes"]:
        """One of each conjugate pair, E |C_n|^2 = 1."""
        return to_complex(jax.random.normal(key, (*self.D.shape, ssm_n // 2, 2), self.D.dtype) / math.sqrt(2))

    def _from_C(self, C: Inexact[Array, "features modes"]) -> Float[Array, "..."]:
        """The parameter that is stored for the row C of this step and l_max."""
        return to_pair(C)

    def _to_C(self, row: Float[Array, "..."]) -> Inexact[Array, "features modes"]:
        """The row C that the recurrence reads with, from the stored parameter."""
        return to_complex(row)

    def _kernel(self, row: Float[Array, "..."], L: int) -> Float[Array, "features {L}"]:
        raise NotImplementedError

    def transition(self) -> DiscreteSSM | DiscreteDPLR | DiscreteDiagonal:
        """One step of each feature's state, in the precision of the parameters."""
        raise NotImplementedError

    def _zero_state(self, batch: int) -> Inexact[Array, "batch features modes"]:
        """x_{-1} = 0 for each row of a batch."""
        raise NotImplementedError

    # What follows from it.

    @property
    def step(self) -> Float[Array, " features"]:
        """The time between two samples of each feature: exp(log_step), kept within `STEPS`."""
        return _bounded_exp(self.log_step[...], STEPS)

    def kernel(self, L: int) -> Float[Array, "features {L}"]:
        """K_l = C Ab^l Bb, l < L, of each feature."""
        return self._kernel(getattr(self, self.row)[...], L)

    def __call__(
        self, u: Float[Array, "batch length features"], lengths: Int[Array, " batch"] | None = None
    ) -> Float[Array, "batch length features"]:
        """y = K * u + D u (both directions: see the class).

        Args:
            u: the input.
            lengths: of a padded batch: how many steps of each row count. What stands behind them changes nothing before them.

        Raises:
            ValueError: u is not (batch, length, features), or longer than l_max; the lengths do not fit it.
        """
        self._require_input(u)
        inside = jnp.moveaxis(mask_padding(u, lengths).astype(self.D.dtype), 1, -1)  # batch features length
        kernels = [self._kernel(getattr(self, name)[...], u.shape[1])[None] for name in self._rows()]
        convolution = two_sided_convolution if self.bidirectional else causal_convolution
        y = convolution(inside, *kernels) + self.D[...][None, :, None] * inside
        return jnp.moveaxis(y, -1, 1).astype(u.dtype)

    def prefill(
        self, u: Float[Array, "batch length features"], lengths: Int[Array, " batch"] | None = None
    ) -> tuple[Float[Array, "batch length features"], Inexact[Array, "batch features modes"]]:
        """The output of the convolution, and the state after it, from which `as_recurrence().step` goes on.

        Only the last state is kept, batch x H x N/2 complex numbers; all of them together would be L times as many. With
        `lengths`, it is the state after each row's own last step.

        Raises:
            ValueError: as for a call; the layer is bidirectional.
        """
        self._require_one_direction()
        y = self(u, lengths)
        inside = mask_padding(u, lengths).astype(self.D.dtype)
        transition = self.transition()

        def advance(x, now):
            k, u_k = now
            after = jax.vmap(transition.step)(x, u_k)
            return after if lengths is None else jnp.where((k < lengths)[:, None, None], after, x), None

        state, _ = jax.lax.scan(advance, self._zero_state(u.shape[0]), (jnp.arange(u.shape[1]), jnp.moveaxis(inside, 1, 0)))
        return y, state

    def as_recurrence(self) -> Recurrence:
        """The layer as a recurrence, converted once: in float64 on the host, one feature after the other, then rounded.

        Raises:
            ValueError: the layer is bidirectional, or this is called inside a JAX transformation.
        """
        self._require_one_direction()
        return in_float64(type(self)._recurrence, self)

    def _recurrence(self) -> Recurrence:
        return Recurrence(self.transition(), self._to_C(getattr(self, self.row)[...]), self.D[...])

    def at_rate(self, rate: float) -> "StateSpaceLayer":
        """The same layer for signals sampled `rate` times as often as in training: the step is divided by the rate, in both modes.

        Two seconds stay two seconds: l_max is multiplied by the rate, and what belongs to a length and a step (C_tilde, W) is
        converted, in float64 on the host.

        Raises:
            ValueError: the rate is not positive, or takes a step beyond the bounds; this is called inside a JAX transformation.
        """
        if not rate > 0:
            raise ValueError(f"rate is how many times as often the signal is sampled and must be positive, but it is {rate}")
        _require_values(self)
        steps = np.asarray(self.step, np.float64) / rate
        if not (STEPS[0] <= steps.min() and steps.max() <= STEPS[1]):
            raise ValueError(f"steps lie within {STEPS}, but at the rate {rate} they would reach from {steps.min():.3g} to {steps.max():.3g}")
        l_max = max(1, math.ceil(self.l_max * rate - 1e-9))  # not one more for the rounding of the product

        def convert(layer):
            C = {name: layer._to_C(getattr(layer, name)[...]) for name in layer._rows()}
            layer.log_step[...], layer.l_max = jnp.log(layer.step / rate), l_max
            return {"log_step": layer.log_step[...], **{name: layer._from_C(row) for name, row in C.items()}}

        layer = nnx.clone(self)
        layer.l_max = l_max
        for name, value in in_float64(convert, self).items():
            getattr(layer, name)[...] = value
        return layer

    def _require_input(self, u) -> None:
        features = self.D.shape[0]
        if u.ndim != 3 or u.shape[-1] != features or not 1 <= u.shape[1] <= self.l_max:
            raise ValueError(f"u has shape (batch, 1 to {self.l_max} steps, {features} features), but {u.shape} was given")
        if not jnp.issubdtype(u.dtype, jnp.floating):
            raise ValueError(f"u holds real floating-point numbers, but its type is {u.dtype}")

    def _require_one_direction(self) -> None:
        if self.bidirectional:
            raise ValueError("a bidirectional layer reads the future and has no recurrence: make it with bidirectional=False")


class SSM(StateSpaceLayer):
    """The kernel K_l = C Ab^l Bb by powers of a full matrix: the first layer of the book, nothing in it is clever.

    The step, B, C and D are trained; A is not, and one A serves all features. Its recurrence keeps H matrices Ab of N x N.

    Args:
        system: N -> A (N, N), B (N,), the memory to start with.
        shared: what all layers take, see `StateSpaceLayer`.

    Source: Gu, Goel, Re (2022), section 2; chapter 4 builds it.
    """

    row = "C"

    def __init__(
        self, d_model: int, ssm_n: int, l_max: int, *, system: Callable[[int], tuple[Array, Array]] = hippo_legs, **shared
    ):
        super().__init__(d_model, ssm_n, l_max, **shared)
        A, B = (jnp.asarray(x, self.D.dtype) for x in system(ssm_n))
        self.A = Constant(A)
        self.B = Slow(jnp.broadcast_to(B, (d_model, ssm_n)))

    def _build(self, ssm_n):
        """Nothing that a row needs to be drawn."""

    def _draw_C(self, key, ssm_n):
        return jax.random.normal(key, (*self.D.shape, ssm_n), self.D.dtype)

    def _from_C(self, C):
        return C

    def _to_C(self, row):
        return row

    def _kernel(self, row, L):
        return kernel_by_powers(*self._discretized(), row, L)

    def _discretized(self):
        # One feature after the other, not all as a batch: on a CPU with two cores jaxlib 0.10.1 waits for ever
        # when two layers solve a batch of systems each at the same time.
        return jax.lax.map(lambda feature: discretize(self.A[...], *feature), (self.B[...], self.step))

    def transition(self):
        Ab, Bb = self._discretized()
        return DiscreteSSM(Ab - jnp.eye(Ab.shape[-1], dtype=Ab.dtype)[None], Bb)

    def _zero_state(self, batch):
        return jnp.zeros((batch, *self.B.shape), self.B.dtype)


class _PairLayer(StateSpaceLayer):
    """A layer that keeps one of each conjugate pair of modes and trains them: Re Lambda = -exp(log_decay), Im Lambda = frequency."""

    def _build_modes(self, Lambda: Complex[Array, " modes"]) -> None:
        shape = (*self.D.shape, Lambda.shape[0])
        self.log_decay = Slow(jnp.broadcast_to(jnp.log(-Lambda.real), shape).astype(self.D.dtype))
        self.frequency = Slow(jnp.broadcast_to(Lambda.imag, shape).astype(self.D.dtype))

    @property
    def Lambda(self) -> Complex[Array, "features modes"]:
        """-exp(log_decay) + i frequency, with the decay kept within `DECAYS`: negative whatever is learned."""
        return jax.lax.complex(-_bounded_exp(self.log_decay[...], DECAYS), self.frequency[...])

    def _zero_state(self, batch):
        return to_complex(jnp.zeros((batch, *self.frequency.shape, 2), self.D.dtype))


class S4(_PairLayer):
    """S4's kernel: A = diag(Lambda) - P P*, discretised bilinearly, through its generating function.

    It starts as HiPPO-LegS. Lambda, P, B, the step, C_tilde and D are trained, for each feature by itself. Q is P and Re Lambda is
    negative, so A + A* = 2 Re Lambda - 2 P P* < 0 and the system is stable whatever is learned. C_tilde = C (I - Ab^L) belongs to
    L = l_max; the kernel is made for that length and cut.

    Args:
        shared: what all layers take, see `StateSpaceLayer`.

    Source: Gu, Goel, Re (2022), sections 3.3 and 3.4, with Q = P as in Goel, Gu, Donahue, Re (2022), section 4.1; chapter 10.
    """

    row = "C_tilde"

    def _build(self, ssm_n):
        Lambda, P, B, _ = dplr_legs(ssm_n)
        self._build_modes(Lambda)
        for name, vector in (("P", P), ("B", B)):
            setattr(self, name, Slow(jnp.broadcast_to(to_pair(vector), (*self.D.shape, *vector.shape, 2)).astype(self.D.dtype)))

    def _from_C(self, C):
        # C Ab is the transposed system, diag(Lambda) - conj(P) conj(P)*, applied to C: L steps of O(N), not a power of a matrix.
        P = to_complex(self.P[...]).conj()
        transposed = discretize_dplr(self.Lambda, P, P, jnp.zeros_like(P), self.step)
        faded = jax.lax.fori_loop(0, self.l_max, lambda _, row: transposed.step(row, jnp.zeros_like(self.step)), C)
        return to_pair(C - faded)

    def _to_C(self, row):
        P = to_complex(self.P[...])
        return from_tilde(to_complex(row), self.Lambda, P, P, self.step, self.l_max)

    def _kernel(self, row, L):
        P, B = to_complex(self.P[...]), to_complex(self.B[...])
        return kernel_dplr(self.Lambda, P, P, B, to_complex(row), self.step, self.l_max)[:, :L]

    def transition(self):
        P, B = to_complex(self.P[...]), to_complex(self.B[...])
        return discretize_dplr(self.Lambda, P, P, B, self.step)


class S4D(_PairLayer):
    """S4D's kernel: A = diag(Lambda), K_l = 2 Re sum_n C_n Bb_n g_n^l.

    Lambda, B, the step, C and D are trained, for each feature by itself. Only the products C_n B_n matter to the kernel, so B starts
    as ones.

    Args:
        init: where Lambda starts. "lin": evenly spaced frequencies, a Fourier series that fades; "inv": many slow and few fast ones,
            close to HiPPO's in closed form; "legs": HiPPO-LegS without its rank-one part.
        discretization: "zoh" or "bilinear".
        shared: what all layers take, see `StateSpaceLayer`.

    Source: Gu, Gupta, Goel, Re (2022); chapter 11.
    """

    row = "C"

    def __init__(
        self,
        d_model: int,
        ssm_n: int,
        l_max: int,
        *,
        init: Initialisation = "lin",
        discretization: Discretization = "zoh",
        **shared,
    ):
        require_one_of("init", init, Initialisation)
        require_one_of("discretization", discretization, Discretization)
        self.init, self.discretization = init, discretization
        super().__init__(d_model, ssm_n, l_max, **shared)

    def _build(self, ssm_n):
        self._build_modes(INITIALISATIONS[self.init](ssm_n))
        self.B = Slow(to_pair(jnp.ones(self.frequency.shape, self.Lambda.dtype)))

    def _kernel(self, row, L):
        return kernel_diagonal(self.Lambda, to_complex(self.B[...]), to_complex(row), self.step, L, self.discretization)

    def transition(self):
        return discretize_diagonal(self.Lambda, to_complex(self.B[...]), self.step, self.discretization)


class DSS(_PairLayer):
    """DSS's kernel: A = diag(Lambda), each mode weighted by W / Lambda and its powers divided by their sum over l_max steps.

    It is S4D with zero-order hold, B = 1 and C = W / (exp(L step Lambda) - 1), so W belongs to L = l_max; the kernel is made for that
    length and cut. Lambda, the step, W and D are trained, for each feature by itself.

    Args:
        init: where Lambda starts, as for `S4D`.
        shared: what all layers take, see `StateSpaceLayer`.

    Source: Gupta, Gu, Berant (2022), proposition 1, with Re Lambda kept negative; chapter 11.
    """

    row = "W"

    def __init__(self, d_model: int, ssm_n: int, l_max: int, *, init: Initialisation = "legs", **shared):
        require_one_of("init", init, Initialisation)
        self.init = init
        super().__init__(d_model, ssm_n, l_max, **shared)

    def _build(self, ssm_n):
        self._build_modes(INITIALISATIONS[self.init](ssm_n))

    def _fading(self):
        """exp(L step Lambda) - 1."""
        exponents = self.l_max * self.step[:, None] * self.Lambda
        return exponents * exprel(exponents)

    def _from_C(self, C):
        return to_pair(C * self._fading())

    def _to_C(self, row):
        return to_complex(row) / self._fading()

    def _kernel(self, row, L):
        return kernel_dss(self.Lambda, to_complex(row), self.step, self.l_max)[:, :L]

    def transition(self):
        return discretize_diagonal(self.Lambda, jnp.ones_like(self.Lambda), self.step)


def to_complex(pair: Float[Array, "*shape 2"]) -> Complex[Array, "*shape"]:
    """re + i im, from real parameters: Adam on complex ones goes the wrong way (the primer says why)."""
    return jax.lax.complex(pair[..., 0], pair[..., 1])


def to_pair(z: Complex[Array, "*shape"]) -> Float[Array, "*shape 2"]:
    """(re, im), as it is stored."""
    return jnp.stack([z.real, z.imag], axis=-1)


def mask_padding(
    u: Float[Array, "batch length features"], lengths: Int[Array, " batch"] | None
) -> Float[Array, "batch length features"]:
    """u with zeros behind each row's length, whatever stood there, even if it is not a number.

    Raises:
        ValueError: there is not one length of 1 to L steps for each row.
    """
    if lengths is None:
        return u
    if lengths.shape != u.shape[:1]:
        raise ValueError(f"lengths has one number for each of the {u.shape[0]} rows, but its shape is {lengths.shape}")
    if not isinstance(lengths, jax.core.Tracer) and not np.all((np.asarray(lengths) >= 1) & (np.asarray(lengths) <= u.shape[1])):
        raise ValueError(f"each length is from 1 to {u.shape[1]} steps, but they are {lengths}")
    return jnp.where((jnp.arange(u.shape[1])[None] < lengths[:, None])[..., None], u, 0)


def in_float64(function: Callable, layer: nnx.Module):
    """function(layer), computed in float64 on the host whatever the precision outside, and rounded to that of the layer's D.

    Raises:
        ValueError: the layer's parameters have no values yet, inside a JAX transformation.
    """
    _require_values(layer)
    graph, state = nnx.split(layer)
    real = layer.D.dtype
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.enable_x64(True), jax.default_device(cpu):
        double = jax.tree.map(lambda x: np.asarray(x, np.float64), state)
        result = jax.jit(lambda state: function(nnx.merge(graph, state)))(double)
    rounded = lambda x: jnp.asarray(np.asarray(x), jnp.result_type(real, jnp.complex64) if jnp.iscomplexobj(x) else real)
    return jax.tree.map(rounded, result)


def _require_values(layer) -> None:
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(nnx.state(layer))):
        raise ValueError("a layer is converted on the host, from parameters that have values: call this outside of jit, grad and vmap")


def _read(C, x):
    """C x over the full state: of a real state as it is, of pairs twice the real part."""
    return 2 * (C[None] * x).sum(-1).real if jnp.iscomplexobj(x) else (C[None] * x).sum(-1)


def _bounded_exp(x, bounds):
    """exp(x), kept within the bounds."""
    low, high = map(math.log, bounds)
    return jnp.exp(jnp.clip(x, low, high))


def _require_sizes(d_model, ssm_n, l_max, step_range, param_dtype) -> None:
    for name, size in (("d_model", d_model), ("ssm_n", ssm_n), ("l_max", l_max)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, but it is {size}")
    low, high = step_range
    if not STEPS[0] <= low < high <= STEPS[1]:
        raise ValueError(f"step_range is two rising numbers within {STEPS}, but it is {step_range}")
    if jnp.dtype(param_dtype) not in (jnp.float32, jnp.float64):
        raise ValueError(f"param_dtype is float32 or float64, but it is {jnp.dtype(param_dtype)}: activations may be of another type, parameters not")
    if jnp.dtype(param_dtype) == jnp.float64 and not jax.config.jax_enable_x64:
        raise ValueError('param_dtype is float64, but JAX is set to 32 bits: jax.config.update("jax_enable_x64", True)')


def _require_state(state, shape) -> None:
    if state.shape != shape:
        raise ValueError(f"the state of this recurrence has shape {shape} (batch, features, modes), but {state.shape} was given")
