# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Running it as an RNN
#
# **Training used $\tilde C$ and a convolution of a fixed length. How does the same model run one step at a time, with no matrix inverse in the step?**
#
# [Chapter 7](07_dplr.ipynb) computes the whole kernel of a system $A = \Lambda - P Q^*$ at once, and [chapter 8](08_nplr.ipynb) brings HiPPO into that form. This is how one trains. But a
# model that speaks, or listens to a microphone, gets its inputs one after the other and has no last step. Here the same parameters become a recurrence whose step costs $9N$ multiplications for the state and $N$ to read it. Kernel and
# recurrence agree to twelve digits, and then we look at what is left of those in float32.

# %% tags=["setup", "hide-input", "nbval-ignore-output"]
# Setup. In a clone and after `pip install` the package is found; in Colab what is missing is installed, JAX never.
import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys

REPOSITORY = ""  # the book's address and commit; written in when the book is published

if importlib.util.find_spec("annotated_s4") is None:
    here = pathlib.Path.cwd()
    clone = [folder for folder in (here, *here.parents) if (folder / "annotated_s4" / "__init__.py").exists()]
    if clone:
        sys.path.insert(0, str(clone[0]))
    elif "google.colab" in sys.modules and REPOSITORY:
        pip = [sys.executable, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", f"annotated-s4 @ git+{REPOSITORY}"], check=True)
        kept = [f"{name}=={importlib.metadata.version(name)}" for name in ("jax", "jaxlib")]
        wanted = {"flax": "flax", "optax": "optax", "jaxtyping": "jaxtyping", "sklearn": "scikit-learn"}
        missing = [package for module, package in wanted.items() if importlib.util.find_spec(module) is None]
        if missing:
            subprocess.run([*pip, *missing, *kept], check=True)
        importlib.invalidate_caches()
    else:
        raise ModuleNotFoundError(
            "annotated_s4 is not here. Clone the book's repository and open this notebook inside the clone, or run "
            "`pip install .` in the clone. (In Colab, open the notebook from the published book, which knows its address.)"
        )

from annotated_s4 import environment

environment.start(precision="float64")

# %%
import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from annotated_s4 import dplr, generating, plotting, ssm
from annotated_s4.dplr import kernel_dplr
from annotated_s4.hippo import dplr_legs, hippo_legs

plotting.use_style()

# %% [markdown]
# ## What one step has to do
#
# [Chapter 1](01_state_space_models.ipynb) discretised with the bilinear rule, $\Delta$ being the time of one step:
#
# $$ \bar A = \left(I - \tfrac{\Delta}{2} A\right)^{-1} \left(I + \tfrac{\Delta}{2} A\right), \qquad
# \bar B = \left(I - \tfrac{\Delta}{2} A\right)^{-1} \Delta B . $$ (rnn-bilinear)
#
# Take $\frac{\Delta}{2}$ out of each bracket. A number next to a matrix, as in $\frac{2}{\Delta} - A$, stands for that number times $I$:
#
# $$\begin{aligned}
# I - \tfrac{\Delta}{2} A &= \tfrac{\Delta}{2} \left(\tfrac{2}{\Delta} - A\right), \\
# \left(I - \tfrac{\Delta}{2} A\right)^{-1} &= \tfrac{2}{\Delta} \left(\tfrac{2}{\Delta} - A\right)^{-1}, \\
# I + \tfrac{\Delta}{2} A &= \tfrac{\Delta}{2} \left(\tfrac{2}{\Delta} + A\right) .
# \end{aligned}$$
#
# Put these in. In $\bar A$ the factors $\frac{2}{\Delta}$ and $\frac{\Delta}{2}$ meet and cancel. In $\bar B$ the factors $\frac{2}{\Delta}$ and $\Delta$ make 2:
#
# $$ \bar A = \left(\tfrac{2}{\Delta} - A\right)^{-1} \left(\tfrac{2}{\Delta} + A\right), \qquad
# \bar B = \left(\tfrac{2}{\Delta} - A\right)^{-1} 2 B . $$ (rnn-scaled)
#
# Both begin with the same inverse, so one step applies it once:
#
# $$ x_k = \left(\tfrac{2}{\Delta} - A\right)^{-1} \left[ \left(\tfrac{2}{\Delta} + A\right) x_{k-1} + 2 B u_k \right] . $$ (rnn-one-inverse)
#
# What stands in the square bracket is harmless. For $A = \Lambda - P Q^*$ it needs no matrix at all:
#
# $$ \left(\tfrac{2}{\Delta} + A\right) x = \left(\tfrac{2}{\Delta} + \Lambda\right) x - P\,(Q^* x) . $$ (rnn-forward)
#
# $Q^*$ is the conjugate transpose of $Q$, a row, so $Q^* x$ is one number. It is the only conjugate in this and in the following formulas over the full state. What is left to do is the inverse.
#
# ## Woodbury at one point
#
# The inverse in {eq}`rnn-one-inverse` is the resolvent $(\omega - A)^{-1}$ at $\omega = \frac{2}{\Delta}$. We have met it: the kernel needed the resolvent at
# $\omega = \frac{2}{\Delta} \frac{1-z}{1+z}$ for each root of unity $z$. The recurrence needs it at a single point, and that point is $z = 0$, the centre of the circle on which the roots lie.
#
# Woodbury's identity, derived and multiplied out in [chapter 7](07_dplr.ipynb), gives the resolvent of a diagonal matrix with a correction of rank one. With the diagonal $R = (\omega - \Lambda)^{-1}$,
#
# $$ (\omega - A)^{-1} = R - R P \left(1 + Q^* R P\right)^{-1} Q^* R . $$ (rnn-woodbury)
#
# Apply this to a vector $v$ from the right to the left. $R v$ takes $N$ products, $Q^* (R v)$ is one number, $1 + Q^* R P$ another, and their quotient is called $\eta$ as in chapter 7. It multiplies the column $R P$: $(\omega - A)^{-1} v = R v - R P\,\eta$.
#
# Together, one step is three lines; the S4 paper has the same recurrence in its appendix C.2 {cite:p}`gu2022s4`. The letters $v$ and $\eta$ serve inside it only:
#
# $$\begin{aligned}
# v &= \left(\tfrac{2}{\Delta} + \Lambda\right) x_{k-1} - P\,(Q^* x_{k-1}) + 2 B u_k, \\
# \eta &= \frac{Q^* (R v)}{1 + Q^* R P}, \\
# x_k &= R v - R P\, \eta .
# \end{aligned}$$ (rnn-step)
#
# **By hand first**, with $N = 1$. Take $\Lambda = -1$, $P = Q = B = 1$ and $\Delta = \frac12$, so that $A = -1 - 1 = -2$ and $\frac{2}{\Delta} = 4$. The rule {eq}`rnn-scaled` gives $\bar A = \frac{4 - 2}{4 + 2} = \frac13$ and
# $\bar B = \frac{2}{6} = \frac13$. From $x = 3$ with $u = 3$ one step leads to $1 + 1 = 2$. The three lines: $R = \frac15$ and $1 + Q^* R P = \frac65$. Then $v = 4 \cdot 3 - 3 - 3 + 6 = 12$ and
# $R v = \frac{12}{5}$, so $\eta = \frac{12}{5} \cdot \frac56 = 2$, and $x_k = \frac{12}{5} - \frac15 \cdot 2 = 2$.
#
# The function is the three lines:


# %%
def step_full(Lambda, P, Q, B, step, x, u_k):
    """x_k = (2/step - A)^-1 [(2/step + A) x_{k-1} + 2 B u_k],
    A = diag(Lambda) - P Q*, full state.

    Lambda, P, Q, B, x: (N,) complex, step, u_k: numbers  ->  (N,)
    """
    omega = 2 / step
    R = 1 / (omega - Lambda)
    v = (omega + Lambda) * x - P * jnp.sum(Q.conj() * x) + 2 * B * u_k
    eta = jnp.sum(Q.conj() * R * v) / (1 + jnp.sum(Q.conj() * R * P))
    return R * v - R * P * eta


one = jnp.ones(1, complex)
by_hand = step_full(-one, one, one, one, 0.5, 3 * one, 3.0)
assert abs(by_hand[0] - 2) < 1e-15

# %% [markdown]
# The check is a dense matrix: the discretisation of chapter 1, which solves a system of equations and knows nothing of $P$ and $Q$. The data are random complex numbers, $P \ne Q$, four modes that are not even conjugates of each other, a complex state and input.
# If one sign or one conjugate were different, this cell would stop. It also evaluates each displayed formula by itself.


# %%
def error(found, expected):
    """max |found - expected| / max |expected|, of arrays."""
    found, expected = np.asarray(found), np.asarray(expected)
    return np.abs(found - expected).max() / np.abs(expected).max()


generator = np.random.default_rng(0)
draws = generator.normal(size=(6, 4)) + 1j * generator.normal(size=(6, 4))
Lambda, P, Q, B, x, (u_k, *_) = draws
Lambda, step, identity = Lambda - 2, 0.3, np.eye(4)
A = np.diag(Lambda) - np.outer(P, Q.conj())
Ab, Bb = ssm.discretize(jnp.asarray(A), jnp.asarray(B), step)

inverse = np.linalg.inv(2 / step * identity - A)
assert error(inverse @ (2 / step * identity + A), Ab) < 1e-13  # rnn-scaled
assert error(inverse @ (2 * B), Bb) < 1e-13
forward = (2 / step + Lambda) * x - P * (Q.conj() @ x)
assert error(forward, (2 / step * identity + A) @ x) < 1e-13  # rnn-forward
R = np.diag(1 / (2 / step - Lambda))
RP, QR = R @ P, Q.conj() @ R
woodbury = R - np.outer(RP, QR) / (1 + Q.conj() @ RP)
assert error(woodbury, inverse) < 1e-13  # rnn-woodbury
Lambda, P, Q, B = map(jnp.asarray, (Lambda, P, Q, B))
one_step = step_full(Lambda, P, Q, B, step, x, u_k)
assert error(one_step, Ab @ x + Bb * u_k) < 1e-13  # rnn-step

without_star = step_full(Lambda, P, Q.conj(), B, step, x, u_k)
wrong = error(without_star, one_step)
print(f"without the conjugate of Q: off by {wrong:.0%}")
assert wrong > 0.05

# %% [markdown]
# ## Half the state
#
# A real system has its modes in conjugate pairs, and we keep one of each. In code, "full" puts the partners back. Does the step {eq}`rnn-step` keep the pairs together, so that half of it is enough?
#
# Call the two modes of a pair $n$ and $n'$: $\lambda_{n'}, P_{n'}, Q_{n'}, B_{n'}$ are the conjugates of $\lambda_n, P_n, Q_n, B_n$. The state starts at zero, where each entry is its partner's conjugate. Suppose that this still holds for $x = x_{k-1}$, and that $u_k$ is real. Go through the step:
#
# $$\begin{aligned}
# Q^* x &= \sum_{n \text{ of each pair}} \left( \overline{Q_n}\, x_n + Q_n\, \overline{x_n} \right) = 2 \operatorname{Re} \sum_{n} \overline{Q_n}\, x_n, \\
# R_{n'} &= \frac{1}{\frac{2}{\Delta} - \overline{\lambda_n}} = \overline{R_n}, \\
# Q^* R P &= \sum_{n} \left( \overline{Q_n} R_n P_n + Q_n \overline{R_n}\, \overline{P_n} \right) = 2 \operatorname{Re} \sum_{n} \overline{Q_n} R_n P_n .
# \end{aligned}$$ (rnn-half)
#
# The bars are conjugates here. In the first line, the partner brings the conjugate of $Q_{n'} = \overline{Q_n}$, which is $Q_n$. A number plus its conjugate is twice its real part, so $Q^* x$ and $1 + Q^* R P$ are **real**. Now look at the
# entry $n'$ of each line of the step. $v_{n'} = (\frac{2}{\Delta} + \overline{\lambda_n}) \overline{x_n} - \overline{P_n} (Q^* x) + 2 \overline{B_n} u_k = \overline{v_n}$, as $Q^* x$ and $u_k$ are real. So $R v$ consists of pairs too: its entry $n'$ is $\overline{R_n}\, \overline{v_n}$. Then $Q^* (R v)$ is real by the same
# argument as $Q^* x$, $\eta$ is a quotient of real numbers, and $x_{k,n'} = \overline{R_n v_n} - \overline{R_n P_n}\, \eta = \overline{x_{k,n}}$. So pairs stay pairs for ever, and one of each is enough.
#
# The output is a sum over pairs too. $C$ is a row, without a conjugate, and its partner entries are conjugates as well:
#
# $$ y_k = \sum_n \left( C_n x_{k,n} + \overline{C_n}\,\overline{x_{k,n}} \right) = 2 \operatorname{Re} \sum_n C_n x_{k,n} . $$ (rnn-output)
#
# In [chapter 6](06_cauchy_kernel.ipynb) "twice the real part" was wrong: there each denominator held $2is$, which is not real, and the partner of a term was not its conjugate. Here $\frac{2}{\Delta}$ is real. In time one takes the real part, in frequency one adds the partner.
#
# What does not change from step to step is computed once. It goes into a named tuple:


# %%
class Constants(NamedTuple):
    """What a step needs: each (N/2,) complex, omega = 2/step."""

    Lambda: jax.Array
    P: jax.Array
    Q: jax.Array
    B: jax.Array
    R: jax.Array  # 1 / (omega - Lambda)
    correction: jax.Array  # R P / (1 + Q* R P)
    omega: jax.Array


def project(Q, x):
    """Q* x = 2 Re sum_n conj(Q_n) x_n, one of a pair.   (N/2,) -> real"""
    return 2 * jnp.sum(Q.conj() * x).real


@jax.jit
def prepare(Lambda, P, Q, B, step):
    """R = (2/step - Lambda)^-1 and R P / (1 + Q* R P), once for all."""
    omega = 2 / step
    R = 1 / (omega - Lambda)
    correction = R * P / (1 + project(Q, R * P))
    return Constants(Lambda, P, Q, B, R, correction, omega)


def step_half(c, x, u_k):
    """v = (omega + Lambda) x - P Q* x + 2 B u,
    x_k = R v - R P Q* (R v) / (1 + Q* R P).

    c: Constants, x: (N/2,) complex, u_k: real  ->  (N/2,) complex
    """
    v = (c.omega + c.Lambda) * x - c.P * project(c.Q, x) + 2 * c.B * u_k
    Rv = c.R * v
    return Rv - c.correction * project(c.Q, Rv)


# %% [markdown]
# To check it we need random systems made of pairs. To be of use as a recurrence they must be stable. So $\Lambda$ is shifted to the left until all eigenvalues of $A$ are. The dense matrices are made with NumPy in float64, one solve, plainly:


# %%
def random_system(N, seed):
    """Lambda, P, Q, B, C, each (N/2,): random, P != Q, and stable."""
    generator = np.random.default_rng(seed)
    parts = generator.normal(size=(2, 5, N // 2))
    Lambda, P, Q, B, C = parts[0] + 1j * parts[1]
    Lambda = -0.1 - np.abs(Lambda.real) + 3j * Lambda.imag
    P, Q = P / np.sqrt(N), Q / np.sqrt(N)
    rightmost = np.linalg.eigvals(dense(Lambda, P, Q)).real.max()
    return Lambda - max(0, rightmost + 0.05), P, Q, B, C


def full(v):
    """(..., N/2) -> (..., N): each mode and its conjugate partner."""
    return np.concatenate([v, np.conj(v)], axis=-1)


def dense(Lambda, P, Q):
    """A = diag(Lambda) - P Q* over the full state.   (N/2,) -> (N, N)"""
    return np.diag(full(Lambda)) - np.outer(full(P), full(Q).conj())


def bilinear(A, B, step):
    """Ab and Bb with a dense solve, in the precision of A."""
    identity = np.eye(len(A), dtype=A.dtype)
    left, right = identity - step / 2 * A, identity + step / 2 * A
    return np.linalg.solve(left, right), np.linalg.solve(left, step * B)


for N in (4, 16):
    Lambda, P, Q, B, x = random_system(N, seed=N)
    Ab, Bb = bilinear(dense(Lambda, P, Q), full(B), 0.1)
    after = Ab @ full(x) + Bb * 0.7
    ours, partners = after[: N // 2], after[N // 2 :]
    assert error(partners, ours.conj()) < 1e-13  # pairs stay pairs
    system = [jnp.asarray(v) for v in (Lambda, P, Q, B)]
    by_half = step_half(prepare(*system, 0.1), jnp.asarray(x), 0.7)
    assert error(by_half, ours) < 1e-13
    package = dplr.discretize_dplr(*system, 0.1)
    by_package = package.step(jnp.asarray(x), jnp.asarray(0.7))
    assert error(by_package, ours) < 1e-13
print("half of the state makes the same step as a dense matrix")

# %% [markdown]
# The last lines compare with the package's `dplr.discretize_dplr`, which is what a layer uses.
#
# **What does a step cost?** Count the multiplications of real numbers. A complex times a complex number takes four. The real part alone of such a product takes two, and so does a complex times a real one. For each mode that we keep: $(\omega + \Lambda) x$ four, $Q^* x$ two, $P\,(Q^* x)$ two,
# $2 B u$ two, $R v$ four, $Q^* (R v)$ two, and the correction $R P\,\eta$ two. That is $18$ for each of $N/2$ modes, so $9 N$ for the state, if $\omega + \Lambda$ and $2B$ are stored once. To read it, $C x$ takes two for each mode, $N$ in all. The dense step $\bar A x + \bar B u$ of a real system takes $N^2 + N$, and $N$ to read it. At $N = 64$ it is 640 against 4224.

# %%
N = 64
ours, theirs = (18 + 2) * N // 2, N**2 + 2 * N
print("a step at N = 64:", ours, "multiplications, dense:", theirs)
assert ours == 9 * N + N == 640 and theirs == 4224

# %% [markdown]
# ## Nothing is solved in the step
#
# The formula promises it. Does the program keep the promise? `jax.make_jaxpr` runs a function once with placeholders and returns the list of the elementary operations, the *primitives*, that it is made of. Nothing is computed. Some primitives hold programs of their own, so we look into them as well.


# %%
def operations(program):
    """All primitives of a recorded program: (name, largest output)."""
    for equation in program.eqns:
        sizes = [out.aval.size for out in equation.outvars]
        yield equation.primitive.name, max(sizes, default=0)
        for part in equation.params.values():
            for inner in part if isinstance(part, tuple) else (part,):
                if hasattr(inner, "jaxpr"):
                    yield from operations(inner.jaxpr)


def recorded(modes):
    """The primitives of one step with its output, for N/2 modes."""

    def step_and_read(c, C, x, u_k):
        x = step_half(c, x, u_k)
        return x, 2 * jnp.sum(C * x).real

    ones = jnp.ones(modes, complex)
    c = Constants(*[ones] * 6, jnp.asarray(2.0))
    program = jax.make_jaxpr(step_and_read)(c, ones, ones, 1.0)
    return list(operations(program.jaxpr))


small, large = recorded(8), recorded(64)
names = {name for name, _ in small}
assert names.isdisjoint({"lu", "triangular_solve", "dot_general"})
assert not any("solve" in name or "inv" in name for name in names)
assert len(small) == len(large)
assert max(size for _, size in large) == 64

solving = jax.make_jaxpr(lambda A, B: ssm.discretize(A, B, 0.1))
theirs = operations(solving(jnp.eye(8), jnp.ones(8)).jaxpr)
assert {"lu", "triangular_solve"} <= {name for name, _ in theirs}
print("no factorisation, no solve, not even a matrix product")

# %% tags=["nbval-ignore-output"]
print(f"{len(small)} operations:", ", ".join(sorted(names)))

# %% [markdown]
# Three things are asserted. No primitive solves or factorises, and no `dot_general`, JAX's matrix product, occurs. The number of operations does not depend on the number of modes, and none of them has a result larger than the state. So a step takes work and memory in proportion to $N$. The last
# assertion is there to show that the search can find: in `ssm.discretize`, which does solve, it finds the factorisation (`lu`) and the solve.
#
# ## The state is all there is
#
# Around the step goes a scan, which repeats it and hands the state on. The state goes in and comes out: nothing is remembered behind the reader's back. It starts at zero, because $x_{-1} = 0$.


# %%
@partial(jax.jit, static_argnums=0)
def run(step_by, c, C, x, u):
    """x_k = Ab x_{k-1} + Bb u_k,  y_k = 2 Re C x_k.

    step_by: a step, c: its Constants, C: (..., N/2), x: (N/2,), u: (L,)
    ->  the last x: (N/2,), y: (L, ...)
    """

    def advance(x, u_k):
        x = step_by(c, x, u_k)
        return x, 2 * jnp.sum(C * x, -1).real

    return jax.lax.scan(advance, x, u)


L, step = 96, 0.1
Lambda, P, Q, B, C = (jnp.asarray(v) for v in random_system(16, seed=1))
u = jnp.asarray(np.random.default_rng(2).normal(size=L))
c, zero = prepare(Lambda, P, Q, B, step), jnp.zeros_like(B)
x, y = run(step_half, c, C, zero, u)

Ab, Bb = bilinear(dense(Lambda, P, Q), full(B), step)
x_dense, y_dense = ssm.scan_ssm(Ab, Bb, full(C), u)
assert error(y, y_dense.real) < 1e-13 and error(x, x_dense[:8]) < 1e-13

x_48, y_first = run(step_half, c, C, zero, u[:48])
x_96, y_second = run(step_half, c, C, x_48, u[48:])
assert error(np.concatenate([y_first, y_second]), y) < 1e-13
assert error(x_96, x) < 1e-13
not_handed_on = run(step_half, c, C, zero, u[48:])[1]
wrong = error(not_handed_on, y_second)
print(f"one run of 96 = 48 + 48; with no state handed on: {wrong:.0%} off")
assert wrong > 0.1

# %% [markdown]
# Two runs of 48 steps are one run of 96, if the state is handed on. It is all that the future needs to know of the past: $N/2$ complex numbers, however long that past was.
#
# ## From C-tilde back to C
#
# The recurrence reads the state with $C$. Training learned another row, $\tilde C$ ([chapter 5](05_generating_functions.ipynb)), because with it the truncated sum over the kernel became one resolvent:
#
# $$ \tilde C = C \left(I - \bar A^L\right) . $$ (rnn-tilde)
#
# Chapter 5 solved this for $C$ as well:
#
# $$ C = \tilde C \left(I - \bar A^L\right)^{-1}, \qquad \left(I - \bar A^L\right)^\top C^\top = \tilde C^\top . $$ (rnn-back)
#
# The second form is for the computer: $C$ is a row on the left of the matrix, and solvers want a column on the right, so both sides of $C (I - \bar A^L) = \tilde C$ are transposed. It is the plain transpose, without a conjugate. The inverse exists if 1 is no eigenvalue of $\bar A^L$; in a stable system they all have
# $|g^L| < 1$. And $\bar A^L$ is made by squaring: for $L = 1024 = 2^{10}$ ten products of matrices, where one after the other would take 1023. (`np.linalg.matrix_power` squares.)
#
# Here is a dense matrix after all, and a solve. But it happens once, when training is over, and not in the step. And it happens on the host, with NumPy, in float64; a later section says why.


# %%
def c_from_tilde(C_tilde, Ab, L):
    """C = C~ (I - Ab^L)^-1, by solving the transposed equation.

    C_tilde: (N,) or (rows, N), full state, Ab: (N, N)  ->  like C_tilde
    """
    power = np.linalg.matrix_power(Ab, L)
    identity = np.eye(len(Ab), dtype=Ab.dtype)
    return np.linalg.solve((identity - power).T, C_tilde.T).T


# %% [markdown]
# The row that comes back must again consist of pairs, or half of it is not enough. It does. Chapter 7 took the matrix $J$ that swaps each mode with its partner, $J J = I$, and showed that $J (I - \bar A^L) J$ is the conjugate of $I - \bar A^L$, and that $\overline{\tilde C} = \tilde C J$. (Here the long bar is a conjugate.) The inverse inherits the first. So
#
# $$ \overline{C} = \overline{\tilde C}\; \overline{(I - \bar A^L)^{-1}} = \tilde C J\, J (I - \bar A^L)^{-1} J = C J . $$ (rnn-pairs)
#
# ## The kernel and the recurrence are one model
#
# Now everything is there for the question of the chapter. Take parameters as training leaves them: $\Lambda, P, Q, B$ and a row $\tilde C$ that was learned for length $L$ and step $\Delta$. From here two roads lead to the answer to a single one and then silence:
#
# * the kernel from $\tilde C$, by `kernel_dplr` of chapter 7, through $L$ roots of unity and an inverse FFT;
# * $L$ steps from zero, with the $C$ that belongs to $\tilde C$.
#
# The second road uses no line of code of the first. Random systems with $P \ne Q$, and HiPPO-LegS; odd lengths and an even one:


# %%
kernel = jax.jit(kernel_dplr, static_argnames="L")


def two_roads(Lambda, P, Q, B, C_tilde, step, L):
    """The kernel from C~, and from C by the recurrence.   -> two (L,)"""
    Lambda, P, Q, B = (jnp.asarray(v) for v in (Lambda, P, Q, B))
    K = kernel(Lambda, P, Q, B, jnp.asarray(C_tilde), step, L=L)
    Ab, _ = bilinear(dense(Lambda, P, Q), full(B), step)
    C = c_from_tilde(full(C_tilde), Ab, L)[: len(B)]
    click = jnp.zeros(L).at[0].set(1.0)
    c = prepare(Lambda, P, Q, B, step)
    return K, run(step_half, c, jnp.asarray(C), jnp.zeros_like(B), click)[1]


for N, L, step in ((4, 33, 0.1), (32, 255, 0.02)):
    K, steps = two_roads(*random_system(N, seed=L), step, L)
    assert error(K, steps) < 1e-12, (N, L)

N, L = 64, 1024
Lambda, P, B, V = map(np.asarray, dplr_legs(N))
C_tilde = np.random.default_rng(N).normal(size=N) @ V
K, steps = two_roads(Lambda, P, P, B, C_tilde, 1 / L, L)
assert error(K, steps) < 1e-12
print("kernel and recurrence agree: below 1e-12 of the largest value")

Ab, _ = bilinear(dense(Lambda, P, P), full(B), 1 / L)
C_ours = c_from_tilde(full(C_tilde), Ab, L)
assert error(C_ours[N // 2 :], C_ours[: N // 2].conj()) < 1e-11  # rnn-pairs
modes = [jnp.asarray(v) for v in (C_tilde, Lambda, P, P)]
from_tilde = jax.jit(generating.from_tilde, static_argnums=5)
C_theirs = from_tilde(*modes, 1 / L, L)
assert error(C_theirs, C_ours[: N // 2]) < 1e-11

# %% [markdown]
# That is the promise of S4, kept to twelve digits: train it as a convolution, run it as an RNN. (The last line is the package's `generating.from_tilde`, which is the same conversion.) Three mistakes are made on the way, and all three leave a program that runs and a curve that looks plausible.
#
# ````{admonition} Trap: the row for training, used for running
# :class: warning
#
# A recurrence that reads its state with $\tilde C$ has the kernel $\tilde C \bar A^l \bar B = C (I - \bar A^L) \bar A^l \bar B = K_l - K_{l+L}$: the right one minus its own continuation. If the memory has faded after $L$ steps, the mistake does not show. If it has not, and long memory is what S4 is for, it is large.
#
# Guess how large for LegS and $C = e_0$. The matrix is lower triangular and its first row is $(-1, 0, \dots, 0)$, so the first entry of the state follows $x_0' = -x_0 + u$ by itself, and its kernel falls like $e^{-t}$. $L$ steps of size $\Delta$ later it is smaller by $e^{-L\Delta}$. So the
# error should be $e^{-L \Delta}$: nothing at $L\Delta = 10$, 37 % at $L\Delta = 1$, 90 % at $L\Delta = \frac1{10}$.
# ````

# %%
N, L = 8, 64
Lambda, P, B, V = map(np.asarray, dplr_legs(N))
A, e_0 = dense(Lambda, P, P), V[0]  # e_0 V: e_0 in the modes' coordinates
click = jnp.zeros(2 * L).at[0].set(1.0)
for window in (10, 1, 0.1):
    Ab, _ = bilinear(A, full(B), window / L)
    power = np.linalg.matrix_power(Ab, L)
    C_tilde = (full(e_0) @ (np.eye(N) - power))[: N // 2]
    c = prepare(Lambda, P, P, B, window / L)
    rows = jnp.stack([e_0, C_tilde])
    K, K_wrong = run(step_half, c, rows, jnp.zeros_like(B), click)[1].T
    assert error(K_wrong[:L], K[:L] - K[L:]) < 1e-12
    wrong = error(K_wrong[:L], K[:L])
    print(f"L step = {window:4}: with C~ in place of C off by {wrong:.0%}")
    assert abs(wrong - np.exp(-window)) < 1e-3

# %% [markdown]
# ````{admonition} Trap: two modes that agree and are both wrong
# :class: warning
#
# $\tilde C$ belongs to one $L$, as chapter 5 showed for the kernel. The conversion asks for the same $L$. Give both of them 128 in place of the trained 64 and they agree with each other, to twelve digits, on another filter. The powers of one matrix commute, so $I - \bar A^{2L} = (I - \bar A^L)(I + \bar A^L)$, and the row that comes back is
# $\tilde C (I - \bar A^{2L})^{-1} = C\,(I + \bar A^L)^{-1}$ in place of $C$.
#
# For $\tilde C = e_0$ and $L \Delta = 1$, where $\bar A^L$ acts as $e^{-1}$, the answer is divided by $1 + e^{-1}$. That leaves 73 % of it, an error of $1/(1 + e) = 26.9\,\%$. So a check that the two modes agree does not see this mistake. The length has to be stored with the parameters.
# ````

# %%
step = 1 / 64
short, _ = two_roads(Lambda, P, P, B, e_0, step, 64)
long, steps = two_roads(Lambda, P, P, B, e_0, step, 128)
assert error(long, steps) < 1e-12
wrong = error(long[:64], short)
print(f"C~ of 64 steps taken for one of 128: off by {wrong:.1%}")
assert abs(wrong - 0.269) < 1e-3 and abs(wrong - 1 / (1 + np.e)) < 1e-4

# %% [markdown]
# ````{admonition} Trap: one of each pair, and no partner
# :class: warning
#
# The outputs of the two modes disagree by a factor of two: somewhere a sum over half of the state forgot its partners. If it is the output, $y = \operatorname{Re} C x$ is exactly half. If it is $Q^* x$ inside the step, the low-rank part counts half, and another system runs that is not wrong by any fixed factor.
# ````

# %%
Lambda, P, B, V = map(np.asarray, dplr_legs(16))
C = np.random.default_rng(1).normal(size=16) @ V
u = np.random.default_rng(2).normal(size=96)
rows = jnp.stack([C, C / 2])
c, zero = prepare(Lambda, P, P, B, 0.1), jnp.zeros(8, complex)
y, y_half = run(step_half, c, rows, zero, u)[1].T
other = prepare(Lambda, P, P / 2, B, 0.1)  # Q* x without its partners
_, y_other = run(step_half, other, rows, zero, u)
print(f"2 Re forgotten in the output: off by {error(y_half, y):.0%}")
print(f"forgotten in Q* x: off by {error(y_other[:, 0], y):.0%}")
assert abs(error(y_half, y) - 0.5) < 1e-12
assert error(y_other[:, 0], y) > 0.1

# %% [markdown]
# ## Where the digits go
#
# So far everything was float64, with sixteen digits. Models run in float32, with seven: rounding one number moves it by up to a fraction $2^{-24}$, about $6 \cdot 10^{-8}$. Where does that grow?
#
# **In the conversion.** $\bar A$ is close to $I$: at the step $1/1024$ an eigenvalue $\lambda$ becomes about $1 + \lambda/1024$. Just below 1 the float32 numbers are $2^{-24}$ apart, so rounding that number moves it by at most $2^{-25} = 3 \cdot 10^{-8}$, and the same error enters $L$ times when the $L$-th power is taken. For $L = 1024$ the guess is $1024 \cdot 3 \cdot 10^{-8} = 3 \cdot 10^{-5}$.
#
# A second loss, of which chapter 5 warned, comes on top when $L \Delta$ is small. Then $\bar A^L$ itself is close to $I$, and the digits that they share vanish in $I - \bar A^L$. The error is multiplied by the norm of $(I - \bar A^L)^{-1}$. The slowest mode of LegS decays as
# $e^{-t}$, so this norm is about $1/(1 - e^{-L\Delta})$: near 1 for a long window, near $1/(L\Delta)$ for a short one.


# %%
def there_and_back(N, L, step, kind):
    """Error of C after C~ = C (I - Ab^L) in float64, back in `kind`;
    and the norm of (I - Ab^L)^-1."""
    Lambda, P, B, _ = map(np.asarray, dplr_legs(N))
    A, B, step = dense(Lambda, P, P), full(B), np.float32(step)
    C = full(np.random.default_rng(0).normal(size=(16, N // 2)) + 0j)
    Ab, _ = bilinear(A, B, float(step))
    factor = np.eye(N) - np.linalg.matrix_power(Ab, L)
    real = kind(0).real.dtype.type
    Ab, _ = bilinear(A.astype(kind), B.astype(kind), real(step))
    found = c_from_tilde((C @ factor).astype(kind), Ab, L)
    return error(found, C), np.linalg.norm(np.linalg.inv(factor), 2)


conversion = {}
for L, window in ((1024, 1), (64, 1), (64, 0.1), (64, 0.01)):
    single, norm = there_and_back(64, L, window / L, np.complex64)
    double, _ = there_and_back(64, L, window / L, np.complex128)
    conversion[L, window] = single
    guess = 1 / (1 - np.exp(-window))
    case = f"L = {L:4}, L step = {window:4}"
    print(f"{case}: norm {norm:5.1f}, guess {guess:5.1f}")
    assert guess < norm < 2.5 * guess and double < 1e-10

# %% [markdown]
# The norm follows the guess within a factor of about two. And the error of $C$, as a fraction of its largest entry, next to the two guesses multiplied, $L \cdot 3 \cdot 10^{-8}$ and $1/(1 - e^{-L\Delta})$:

# %% tags=["nbval-ignore-output"]
for (L, window), single in conversion.items():
    guess = L * 3e-8 / (1 - np.exp(-window))
    case = f"L = {L:4}, L step = {window:4}"
    print(f"{case}: in float32 {single:.0e}, guess {guess:.0e}")
    assert guess / 20 < single < 20 * guess
assert conversion[1024, 1] > 3e-6
assert conversion[64, 0.01] > 10 * conversion[64, 1]

# %% [markdown]
# In float64 all of these are below $10^{-10}$, which is why the conversion is done there, on the host, once. The result can be rounded to float32 without harm, since each of its numbers then is off by $6 \cdot 10^{-8}$ and no more.
#
# **In the step.** For a single mode the step {eq}`rnn-step` is a product of $\frac{2}{\Delta} + \lambda$ and $R = 1/(\frac{2}{\Delta} - \lambda)$, which makes a factor $g$ close to 1. Take the step $1/16384 = 2^{-14}$ and $\lambda = -\frac12$, the real part of every mode of LegS. Then $g \approx 1 + \Delta \lambda = 1 - 2^{-15}$. Below 1 the float32 numbers are $2^{-24}$ apart. So between $g$ and 1
# there are $2^{9} = 512$ of them: of twenty-four binary digits, nine say how fast the mode fades. And as $\frac{2}{\Delta} + \lambda$ and $R$ are rounded once and used at each step, the same small error enters $L$ times.

# %%
g = (2 * 16384 - 0.5) / (2 * 16384 + 0.5)
between = (1 - g) / np.spacing(np.float32(g))
print(f"float32 numbers between g and 1: {between:.0f}")
assert round(between) == 512

# %% [markdown]
# ## A step that keeps its digits
#
# This can be mended, at no cost. Do not compute the new state but its *difference* from the old one. Write
#
# $$ \tfrac{2}{\Delta} + A = \left(\tfrac{2}{\Delta} - A\right) + 2A $$
#
# and multiply from the left by the inverse:
#
# $$ \bar A = \left(\tfrac{2}{\Delta} - A\right)^{-1} \left(\tfrac{2}{\Delta} + A\right) = I + \left(\tfrac{2}{\Delta} - A\right)^{-1} 2A . $$ (rnn-increment)
#
# So the step {eq}`rnn-one-inverse` is the same as
#
# $$ x_k = x_{k-1} + \left(\tfrac{2}{\Delta} - A\right)^{-1} 2 \left( A x_{k-1} + B u_k \right) . $$ (rnn-change)
#
# The term $x_{k-1}$ is now kept as it is, with the factor 1 and no error. $\Lambda$ and $R$ are rounded as before, but their error is a fraction of a small change. Woodbury is applied as before, and the multiplications are as many: $\Lambda x$ takes the place of $(\frac{2}{\Delta} + \Lambda) x$.


# %%
def step_change(c, x, u_k):
    """x_k = x_{k-1} + (omega - A)^-1 2 (A x_{k-1} + B u_k).

    c: Constants, x: (N/2,) complex, u_k: real  ->  (N/2,) complex
    """
    v = c.Lambda * x - c.P * project(c.Q, x) + c.B * u_k
    Rv = 2 * c.R * v
    return x + (Rv - c.correction * project(c.Q, Rv))


_, y_change = run(step_change, c, rows, zero, u)
assert error(y_change[:, 0], y) < 1e-13
print("the same step, in float64")

# %% [markdown]
# ## The table
#
# Now the whole account, for HiPPO-LegS, at the step $1/L$, with $C$ drawn at random three times. Every column is an error of the kernel's values, the largest one over the largest $|K_l|$, and the worst of the three. The truth is made of dense matrices in float64, with NumPy. The columns:
#
# * **usual**: the form with $\omega = \frac{2}{\Delta} \frac{1-z}{1+z}$ and its pole, all in float32, given $\tilde C$;
# * **half-angle**: `kernel_dplr` in float32, given $\tilde C$;
# * **C~ to C**: the conversion in float32, and everything after it exact;
# * **dense**: $\bar A, \bar B$ rounded to float32, and a dense recurrence in float32;
# * **step**: {eq}`rnn-step` in float32, given $C$;
# * **change**: {eq}`rnn-change` in float32, given $C$.
#
# Before looking: by what was said above, the columns "C~ to C", "dense" and "step" should grow with $L$, and "change" should not follow them.


# %%
@partial(jax.jit, static_argnames="L")
def kernel_usual(Lambda, P, Q, B, C_tilde, step, z, L):
    """K_hat = 2/(1+z) [k(C~, B) - k(C~, P) k(Q*, B) / (1 + k(Q*, P))],
    k(a, b) = sum_n a_n b_n / (omega - Lambda_n) over the full state.

    (..., N/2) and z: (L // 2 + 1,)  ->  (..., L)
    """
    omega = (2 / step * (1 - z) / (1 + z))[:, None]  # (roots, 1)

    def k(a, b):
        ab = (a * b)[..., None, :]  # (..., 1, modes)
        pairs = ab / (omega - Lambda) + ab.conj() / (omega - Lambda.conj())
        return pairs.sum(-1)

    low_rank = k(C_tilde, P) * k(Q.conj(), B) / (1 + k(Q.conj(), P))
    K_hat = 2 / (1 + z) * (k(C_tilde, B) - low_rank)
    return jnp.fft.irfft(K_hat, n=L)


def dense_states(Ab, Bb, L):
    """Ab^l Bb for l < L: from the first m states the next m, by Ab^m."""
    states, power = Bb[None], Ab
    while len(states) < L:
        states = np.concatenate([states, states @ power.T])
        power = power @ power
    return states[:L]


dense_run = jax.jit(jax.vmap(ssm.scan_ssm, in_axes=(None, None, 0, None)))


# %% [markdown]
# `jax.vmap` makes from `scan_ssm`, which reads the state with one row $C$, a function for a stack of rows.
#
# One row of the table. All runs of a recurrence are given 16384 steps and cut afterwards, so that one compiled program serves all lengths. What comes later cannot change what came before.


# %%
LONGEST = 16384
CLICK = jnp.zeros(LONGEST, jnp.float32).at[0].set(1.0)


def table_row(N, L):
    """The float32 errors of all forms, for LegS at step 1/L."""
    Lambda, P, B, _ = map(np.asarray, dplr_legs(N))
    parts = np.random.default_rng(N).normal(size=(2, 3, N // 2))
    C, step = parts[0] + 1j * parts[1], 1 / L
    A = dense(Lambda, P, P)
    Ab, Bb = bilinear(A, full(B), step)
    C_tilde = full(C) @ (np.eye(N) - np.linalg.matrix_power(Ab, L))
    states = dense_states(Ab, Bb, L).T
    K = (full(C) @ states).real

    single = lambda v: np.asarray(v, np.complex64)
    Ab_32, _ = bilinear(single(A), single(full(B)), np.float32(step))
    C_back = c_from_tilde(single(C_tilde), Ab_32, L)
    step_32 = jnp.float32(step)
    system = [jnp.asarray(single(v)) for v in (Lambda, P, P, B)]
    C_32 = jnp.asarray(single(C))
    row_32 = jnp.asarray(single(C_tilde[:, : N // 2]))
    c, zero = prepare(*system, step_32), jnp.zeros_like(system[0])
    by_steps = lambda form: run(form, c, C_32, zero, CLICK)[1][:L].T
    theta = 2 * np.pi * np.arange(L // 2 + 1, dtype=np.float32) / L
    z = np.exp(-1j * theta)  # complex64
    by_matrix = map(single, (Ab, Bb, full(C)))
    found = {
        "usual": kernel_usual(*system, row_32, step_32, z, L=L),
        "half-angle": kernel(*system, row_32, step_32, L=L),
        "C~ to C": (C_back @ states).real,
        "dense": dense_run(*by_matrix, CLICK)[1][:, :L].real,
        "step": by_steps(step_half),
        "change": by_steps(step_change),
    }
    for name in found.keys() - {"C~ to C"}:
        assert found[name].dtype == jnp.float32
    return {
        name: max(error(k, right) for k, right in zip(v, K, strict=True))
        for name, v in found.items()
    }


lengths = (64, 256, 1024, 4096, 16384)
table = {(N, L): table_row(N, L) for N in (16, 64) for L in lengths}
columns = list(table[16, 64])

# %% tags=["nbval-ignore-output"]
print(" N     L  step  ", "".join(f"{name:>12}" for name in columns))
for (N, L), row in table.items():
    values = "".join(f"{row[name]:12.0e}" for name in columns)
    print(f"{N:2} {L:5}  {1 / L:.0e} ", values)
for (N, L), row in table.items():
    assert row["half-angle"] < 1e-5 and row["change"] < 1e-5
    assert max(row.values()) < 1e-2
for N in (16, 64):
    short, long = table[N, 64], table[N, 16384]
    for name in ("usual", "C~ to C", "step", "dense"):
        assert long[name] > 3 * short[name], name
    for name in ("usual", "C~ to C", "step"):
        assert long[name] > 5 * long["half-angle"], name
        assert long[name] > 5 * long["change"], name

# %%
figure, panels = plt.subplots(1, 2, figsize=(7.4, 3.6), sharey=True)
for panel, N in zip(panels, (16, 64), strict=True):
    for name, marker in zip(columns, "os^dvx", strict=True):
        errors = [table[N, L][name] for L in lengths]
        panel.loglog(lengths, errors, marker=marker, label=name)
    panel.axhline(1e-5, color="0.5", linewidth=1, linestyle=":")
    panel.set_title(f"N = {N}", fontsize=10)
    panel.set_xlabel("length $L$, at the step $1/L$")
    panel.set_xticks(lengths, [str(L) for L in lengths])
    panel.minorticks_off()
panels[0].set_ylabel("error over largest $|K_l|$")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right")
plotting.show(
    figure,
    "Two panels, N = 16 and N = 64: the float32 error of six computations against the length, from 64 to 16384, both axes logarithmic. Four lines climb "
    "with the length: the usual form, the conversion from C-tilde to C, the dense recurrence and the step with 2/step + Lambda. Two stay below 1e-5 at every length: the half-angle kernel, "
    "and the step that adds a change.",
)

# %% [markdown]
# In words, and each is asserted above. The half-angle kernel and the step by changes stay below $10^{-5}$ at every length. The usual form, the conversion, the dense recurrence and the step as first written lose digits as the sequence gets longer: at 16384 steps each is at least three times worse than at 64. By then the usual form, the conversion and
# the step as first written are at least five times worse than the half-angle kernel and the step by changes.
#
# And the usual form? One might suspect its pole. But it loses the digits at the other end, at the low frequencies, where $z$ is close to 1. The first root for $L = 16384$ is at the distance $2\pi/16384 = 4 \cdot 10^{-4}$, and the difference $1 - z$ carries the rounding error of $z$, which just below 1 is up to $3 \cdot 10^{-8}$, a part in thirteen thousand of it. At the pole $1 + z$ loses as many digits,
# but it stands in $\frac{2}{1+z}$ and in $\omega$, and there its error cancels (chapter 6). To see it, do everything in float64, round nothing but $z$, and compare each $\hat K(z_j)$ with its own size:

# %%
N, L = 16, 16384
Lambda, P, B, V = map(np.asarray, dplr_legs(N))
C_tilde = np.random.default_rng(N).normal(size=N) @ V
z = np.exp(-2j * np.pi * np.arange(L // 2 + 1) / L)
rounded = z.astype(np.complex64).astype(complex)
by_usual = partial(kernel_usual, Lambda, P, P, B, C_tilde, 1 / L, L=L)
right, off = (np.fft.rfft(by_usual(points)) for points in (z, rounded))
off = np.abs(off - right) / np.abs(right)  # for each frequency
near_one, near_minus_one = off[1:65].max(), off[-64:].max()
assert 2e-5 < near_one < 1e-3 and near_minus_one < 1e-7
assert near_one > 1000 * near_minus_one
distance = 2 * np.pi / L
assert round(distance / 2**-25, -3) == 13000
print("next to 1 the rounding of z costs over a thousand times as much")
print("as next to -1, each value measured by its own size")

# %% [markdown]
# The half-angle form has $2 i \sin(\theta/2)$ in the place of $1 - z$: a small number that is computed as such, with all its digits.
#
# The table is for steps of $1/L$, where the poles stand near $z = 1$; chapter 6 says what changes with long steps. What a layer should take from it: the kernel in the half-angle form; the conversion once, in float64; and of the two steps, for long sequences, the one that adds a change. (The package's `discretize_dplr` takes that one.)
#
# ## Another sampling rate
#
# $A$ speaks of seconds and knows nothing of samples (chapter 1). So a trained model can be run on a recording with twice as many samples a second: halve $\Delta$, keep everything else. That is, everything of the *continuous* system: $\Lambda, P, Q, B$ and $C$. The row $\tilde C$ is made from $\bar A$ and belongs to the trained $\Delta$ and $L$.
# So there is an order: first back to $C$ with the trained step and length, then change the step. And the step is scaled once; where several parts of a program know of the rate, it happens that it is scaled twice or never.
#
# Take LegS with $N = 8$ and $C$ all ones in HiPPO's own, real coordinates, which is the row $C V$ for the modes ([chapter 8](08_nplr.ipynb)). Let the input be $\sin 2\pi t$ on $[0, 1)$, sampled at the end $t_k = (k+1)\Delta$ of each step, $\Delta = 1/L$. With twice as many samples, step $2k+1$ ends when step $k$ of the slow one ends. These are the shared times. How close will the outputs be? $u_k$ stands for its whole step and comes half a step early, an error of
# first order (chapter 1). So each doubling should halve the difference.


# %%
Lambda, P, B, V = map(np.asarray, dplr_legs(8))
legs_8 = Lambda, P, P, B
C_both = np.stack([np.ones(8) @ V, V[0]])  # in the modes' coordinates


def sine_outputs(L, step, early=0.0):
    """Outputs for sin(2 pi t_k), t_k = (k + 1 - early)/L.   -> (L, 2)"""
    u = np.zeros(1024)  # silence behind the end: one program for all L
    u[:L] = np.sin(2 * np.pi * (np.arange(L) + 1 - early) / L)
    c, zero = prepare(*legs_8, step), jnp.zeros(4, complex)
    return np.asarray(run(step_half, c, C_both, zero, u)[1])[:L]


differ = {"ones": [], "e_0": []}
for L in (128, 256, 512):
    slow, fast = sine_outputs(L, 1 / L), sine_outputs(2 * L, 1 / (2 * L))
    for i, name in enumerate(differ):
        differ[name].append(100 * error(fast[1::2, i], slow[:, i]))
known = {"ones": (1.17, 0.59, 0.29), "e_0": (0.82, 0.41, 0.20)}
for name, expected in known.items():
    print(f"C = {name:4}:", ", ".join(f"{d:.2f} %" for d in differ[name]))
    np.testing.assert_allclose(differ[name], expected, rtol=0, atol=0.006)

slow, fast = sine_outputs(128, 1 / 128), sine_outputs(256, 1 / 256)
Ab, Bb = ssm.discretize(*hippo_legs(8), 1 / 256)  # real, without modes
sine = jnp.sin(2 * jnp.pi * (jnp.arange(256) + 1) / 256)
assert error(fast[:, 0], ssm.scan_ssm(Ab, Bb, jnp.ones(8), sine)[1]) < 1e-12
forgotten = sine_outputs(256, 1 / 128)
off = [100 * error(forgotten[1::2, i], slow[:, i]) for i in range(2)]
print(f"step not scaled: {off[0]:.0f} % for ones, {off[1]:.0f} % for e_0")
np.testing.assert_allclose(off, (27, 68), rtol=0, atol=0.5)

# %%
figure, axes = plt.subplots()
t_slow, t_fast = (np.arange(128) + 1) / 128, (np.arange(256) + 1) / 256
axes.plot(t_fast, fast[:, 1], label="256 samples, step 1/256")
axes.plot(t_fast, forgotten[:, 1], label="256 samples, step still 1/128")
label = "128 samples, step 1/128"
axes.plot(t_slow[3::8], slow[3::8, 1], "o", color="black", label=label)
axes.set(xlabel="time $t$", ylabel="output, $C = e_0$")
axes.legend()
plotting.show(
    figure,
    "The output for a sine against time. Dots for the system at 128 samples lie on the line of the same system at 256 samples with half the step. A dashed line, "
    "256 samples with the step left at 1/128, is another curve, with swings more than half as high again: the system believes that twice as much time has passed.",
)

# %% [markdown]
# Halved each time, as expected. Whoever forgets to scale the step has a system that thinks that twice as much time has passed. Now the order. We have $\tilde C$ for $\Delta = 1/128$ and $L = 128$, made from $e_0$, and want to run at $1/256$. Once more $\bar A^L$ acts on $e_0$ as $e^{-L\Delta}$, so the guesses can be made by hand:
#
# * converted with the trained pair $(\frac1{128}, 128)$: exact;
# * with the new step and the old length, $(\frac1{256}, 128)$: $\tilde C = (1 - e^{-1})\, e_0$ gets divided by $1 - e^{-1/2}$ and not by $1 - e^{-1}$. The quotient is $1 + e^{-1/2} = 1.61$: off by 61 %;
# * with the new step and the new length, $(\frac1{256}, 256)$: the same time $L\Delta = 1$, so nearly right. What is left is the error of the bilinear rule.


# %%
A = dense(Lambda, P, P)
power = np.linalg.matrix_power(bilinear(A, full(B), 1 / 128)[0], 128)
C_tilde = full(V[0]) @ (np.eye(8) - power)
orders = {}
for parts, L in ((128, 128), (256, 128), (256, 256)):
    Ab, _ = bilinear(A, full(B), 1 / parts)
    orders[parts, L] = error(c_from_tilde(C_tilde, Ab, L), full(V[0]))
assert orders[128, 128] < 1e-12
print(f"new step, old length: C off by {orders[256, 128]:.0%}")
assert abs(orders[256, 128] - np.exp(-0.5)) < 1e-3
assert 1e-9 < orders[256, 256] < 1e-4

# %% [markdown]
# ## Which of the two, and when
#
# Both modes are the same model. What they cost differs:
#
# | | convolution | recurrence |
# |---|---|---|
# | all $L$ outputs | the kernel: in proportion to $LN$; its FFTs: $L \log L$; all at the same time | $(9N + N)\,L$, one step after the other |
# | one more output | all of it again, or $L$ products with the stored kernel | $9N$ for the state and $N$ to read it |
# | what has to be kept | all $L$ inputs | the state, $N/2$ complex numbers |
# | length | fixed by $\tilde C$ | any |
#
# So: the convolution where the whole input is there, as in training; the recurrence where inputs come one at a time, as in generation, control, or live sound. Reading a long given prefix by convolution and going on by steps uses both; chapter 13 does that.
#
# There is something that the first row does *not* say. For one system the recurrence is not more work than the convolution. Its steps wait for each other, and that is all. On a CPU, which does few things at the same time, one short scan can be the faster of the two. A processor with thousands of units has nothing to give them while the scan takes its small steps, and
# a gradient through the scan has to keep every state on the way, $L N/2$ complex numbers for each feature and each sequence. That is why training takes the convolution. The clock, for one system and one sequence:

# %% tags=["nbval-ignore-output"]
N, L = 64, 4096
Lambda, P, B, _ = (jnp.asarray(v, jnp.complex64) for v in dplr_legs(N))
C = jnp.ones_like(B)
signal = jnp.sin(jnp.arange(L, dtype=jnp.float32) / 100)


@jax.jit
def by_convolution(u):
    """The kernel of length L, and its convolution with u."""
    K = kernel_dplr(Lambda, P, P, B, C, jnp.float32(1 / L), L)
    return ssm.causal_convolution(u, K)


def milliseconds(call, repeats=5):
    """The fastest of a few calls."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        times.append(1000 * (time.perf_counter() - begin))
    return min(times)


c, zero = prepare(Lambda, P, P, B, jnp.float32(1 / L)), jnp.zeros_like(B)
scan_time = milliseconds(lambda: run(step_change, c, C, zero, signal))
fft_time = milliseconds(lambda: by_convolution(signal))
print(f"L = {L}, N = {N}: {scan_time:.1f} ms by a scan,")
print(f"{fft_time:.1f} ms by the kernel and its convolution")
assert scan_time > 0 and fft_time > 0

# %% [markdown]
# ## What we have, and what is missing
#
# We have all of S4's mathematics. From $\Lambda, P, Q, B$ and one row, `kernel_dplr` makes the whole kernel without a power of a matrix, and a recurrence makes the same outputs one at a time, with $9N$ multiplications for the state and $N$ to read it, and without a solve. They agree to twelve digits in float64. In float32 we know which forms keep
# five digits at sixteen thousand steps, and which do not.
#
# What is missing is a layer. So far the parameters were given: random, or HiPPO's. When they are learned, nobody promises that the system stays stable, that a step stays positive, or that $\tilde C$ starts at a sensible size. Part III makes parameters of them: it chooses what is learned and in which form, ties $Q$ to $P$ so that no training can make the
# system explode, and stacks many such layers into a model.
#
# ## Exercises

# %% [markdown]
# ````{exercise} The denominator cannot vanish
# :label: rnn-positive
#
# The step divides by $1 + Q^* R P$ at $\omega = \frac{2}{\Delta}$. Show that this number is positive for every step, if $A$ is stable and made of conjugate pairs and all $\operatorname{Re} \lambda_n < 0$. Start from the determinant lemma of chapter 7, $\det(\omega - A) = \det(\omega - \Lambda)\,(1 + Q^* R P)$.
# ````

# %% [markdown]
# ````{solution-start} rnn-positive
# :class: dropdown
# ````
# $\det(\omega - A)$ vanishes only if $\omega$ is an eigenvalue of $A$. A stable $A$ has none with a positive real part, and $\omega = \frac{2}{\Delta} > 0$. The same holds for $\Lambda$. So $1 + Q^* R P$ is the quotient of two numbers that are not zero, at every $\omega > 0$. It is real there, by {eq}`rnn-half`, and continuous in $\omega$. For $\omega \to \infty$, $R$ goes to zero and
# $1 + Q^* R P$ to 1. A continuous real function that is never zero and ends at 1 is positive.

# %%
for seed in range(100):
    Lambda, P, Q, _, _ = random_system(8, seed)
    for step in (1e-3, 0.1, 10.0):
        R = 1 / (2 / step - full(Lambda))
        denominator = 1 + np.sum(full(Q).conj() * R * full(P))
        assert denominator.real > 0 and abs(denominator.imag) < 1e-14
        whole = np.linalg.det(2 / step * np.eye(8) - dense(Lambda, P, Q))
        product = denominator / np.prod(R)
        assert abs(whole - product) < 1e-10 * abs(whole)

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Another rule, without an inverse
# :label: rnn-backward
#
# Backward Euler is $\bar A = (I - \Delta A)^{-1}$, $\bar B = (I - \Delta A)^{-1} \Delta B$. Write its step for $A = \Lambda - P Q^*$ without an inverse, on half of the state. Which $\omega$ does it use? How many multiplications does it take?
# ````

# %% [markdown]
# ````{solution-start} rnn-backward
# :class: dropdown
# ````
# Take $\Delta$ out: $I - \Delta A = \Delta (\frac1\Delta - A)$. So $x_k = (\frac1\Delta - A)^{-1} (\frac1\Delta x_{k-1} + B u_k)$: the resolvent at $\omega = \frac1\Delta$, and no $A$ on the right. In the state's units, $\frac1\Delta x$ is a real number times a complex one, two multiplications, $B u$ two, $R v$ four, $Q^* (R v)$ two, the correction two: 12 for each mode that is kept, $6N$ for the state (and $N$ to read it, as before).
# `prepare` takes half of the step's double, since its $\omega$ is 2 over the step.

# %%
Lambda, P, Q, B, x = random_system(8, seed=3)
c = prepare(Lambda, P, Q, B, 2 * 0.1)  # omega = 2 / 0.2 = 1 / 0.1
Rv = c.R * (c.omega * x + c.B * 0.7)
ours = Rv - c.correction * project(c.Q, Rv)
Ab, Bb = ssm.discretize(
    jnp.asarray(dense(Lambda, P, Q)), full(B), 0.1, "backward_euler"
)
assert error(ours, (Ab @ full(x) + Bb * 0.7)[:4]) < 1e-13

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} A prefix at once, the rest in steps
# :label: rnn-prefix
#
# Sixty inputs are known, and more will come one at a time. Find the state after the sixty without taking sixty steps, with `kernel_dplr`, and go on from it by steps. *Hint:* which row $C$ makes the output $2 \operatorname{Re} C x$ the real part of $x_n$? Which the imaginary part?
# ````

# %% [markdown]
# ````{solution-start} rnn-prefix
# :class: dropdown
# ````
# With $C = \frac12$ at place $n$ and zero elsewhere, the output is $\operatorname{Re} x_n$. With $C = -\frac{i}{2}$ it is $\operatorname{Re}(-i x_n) = \operatorname{Im} x_n$. So $N$ rows read the whole state. Each has a kernel, and the state after the last known input is its last output, $\sum_l K_l u_{59-l}$. It costs $N$ kernels, and these can be computed together: `kernel_dplr` takes rows on a leading axis.

# %%
Lambda, P, Q, B, C = random_system(8, seed=4)
u, step = np.random.default_rng(6).normal(size=100), 0.1
rows = np.concatenate([np.eye(4) / 2, np.eye(4) / 2j])  # 1/2j = -i/2
Ab, _ = bilinear(dense(Lambda, P, Q), full(B), step)
power = np.linalg.matrix_power(Ab, 60)
rows_tilde = (full(rows) @ (np.eye(8) - power))[:, :4]
K = np.asarray(kernel(Lambda, P, Q, B, rows_tilde, step, L=60))
parts = K @ u[59::-1]
x_60 = jnp.asarray(parts[:4] + 1j * parts[4:])

c, zero = prepare(Lambda, P, Q, B, step), jnp.zeros(4, complex)
x_steps, _ = run(step_half, c, C, zero, u[:60])
assert error(x_60, x_steps) < 1e-12
_, y = run(step_half, c, C, zero, u)
_, y_rest = run(step_half, c, C, x_60, u[60:])
assert error(y_rest, y[60:]) < 1e-12

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Half a step earlier
# :label: rnn-middle
#
# The outputs at two sampling rates differed by an error of first order, because $u_k$ stands for its whole step. Sample the sine in the middle of each step and measure again. By which factor should the difference fall at each doubling?
# ````

# %% [markdown]
# ````{solution-start} rnn-middle
# :class: dropdown
# ````
# The middle of a step is the mean over it, up to terms in $\Delta^2$ (chapter 1). The bilinear rule is of second order too, so the whole is, and each doubling divides by four. More than thirty times less at 128 samples, for the price of a shift.

# %%
middle = []
for L in (128, 256, 512):
    slow = sine_outputs(L, 1 / L, early=0.5)
    fast = sine_outputs(2 * L, 1 / (2 * L), early=0.5)
    middle.append(100 * error(fast[1::2, 0], slow[:, 0]))
print(", ".join(f"{d:.3f} %" for d in middle))
ratios = [middle[0] / middle[1], middle[1] / middle[2]]
assert all(3.8 < ratio < 4.2 for ratio in ratios)
assert middle[0] < differ["ones"][0] / 30

# %% [markdown]
# ````{solution-end}
# ````
