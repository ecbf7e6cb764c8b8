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
# # The S4 layer
#
# **What has to be added to the kernel of Part II so that an optimiser may do with its numbers whatever it likes, and the layer still works, in both modes?**
#
# Part II made a kernel and a recurrence from given numbers: $\Lambda$, $P$, $Q$, $B$, one row and a step. They were HiPPO's, or random and stable by our choice. An optimiser makes no such choice. It adds to each number what lowers
# the loss today. In this chapter the numbers become parameters, the parameters a layer, and the layer takes its place in the network of [chapter 4](04_first_network.ipynb).

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

environment.start(precision="float32")

# %%
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from matplotlib.patches import FancyBboxPatch

from annotated_s4 import (
    data,
    dplr,
    generating,
    hippo,
    layers,
    model,
    plotting,
)
from annotated_s4 import ssm, train
from annotated_s4.dplr import kernel_dplr

plotting.use_style()


def error(found, expected):
    """max |found - expected| / max |expected|, of arrays."""
    found, expected = np.asarray(found), np.asarray(expected)
    return np.abs(found - expected).max() / np.abs(expected).max()


# %% [markdown]
# From here on the book computes in float32, as one trains. What is compared with is float64 and NumPy, and agreement means five or six digits of the largest value.
#
# ## What is learned
#
# The layer of chapter 4 gave each of $H$ features a system of its own, and learned $B$, $C$, $D$ and the step. The matrix $A$ was HiPPO's, one for all, and it stayed. Now each feature has its own $A = \Lambda - P P^*$ ($P^*$ is the conjugate transpose), and that is learned too:
#
# $$ y = K * u + D u, \qquad K_l = C \bar A^{\,l} \bar B, \qquad A = \Lambda - P P^* . $$ (layer-output)
#
# $Q$ is missing: it is $P$. A later section proves why it has to be. Here is what is stored, for $H$ features with $N$ states each, one of each conjugate pair:
#
# | symbol | stored as | shape | starts as |
# |---|---|---|---|
# | $\operatorname{Re} \lambda_n$ | `log_decay` | $(H, N/2)$ | the logarithm of $\frac12$: HiPPO's, [chapter 8](08_nplr.ipynb) |
# | $\operatorname{Im} \lambda_n = \mu_n$ | `frequency` | $(H, N/2)$ | HiPPO's |
# | $P$ | `P`, pairs of real and imaginary part | $(H, N/2, 2)$ | HiPPO's |
# | $B$ | `B`, pairs | $(H, N/2, 2)$ | HiPPO's |
# | $\tilde C$ | `C_tilde`, pairs | $(H, N/2, 2)$ | made of a random $C$ |
# | $\Delta$ | `log_step` | $(H,)$ | random, $\Delta$ from 0.001 to 0.1 |
# | $D$ | `D` | $(H,)$ | 1 |
#
# A complex number is stored as a pair of real ones. The [primer](00_primer.ipynb) shows why: JAX's gradient is the conjugate of the direction uphill, and Adam fed with complex numbers walks to the wrong place.
#
# Count the real numbers of a feature by hand. For each of $N/2$ modes there are one for the decay, one for the frequency and two for each of $P$, $B$, $\tilde C$. That makes eight, so $4N$. With the step and $D$ it is $4N + 2$. For $H = 32$ and $N = 32$: $32 \cdot 130 = 4160$, which is twice what chapter 4's layer learned.

# %%
H, N, L = 32, 32, 64
packaged = layers.S4(d_model=H, ssm_n=N, l_max=L, rngs=nnx.Rngs(0))
for name, parameter in nnx.state(packaged, nnx.Param).items():
    print(f"{name:10} {parameter[...].shape}")
learned = jax.tree.leaves(nnx.state(packaged, nnx.Param))
count = sum(array.size for array in learned)
print(f"{count} real numbers")
assert count == H * (4 * N + 2) == 4160
assert all(array.dtype == jnp.float32 for array in learned)

# %% [markdown]
# **How large is a random $C$?** In chapter 4 its entries were real with variance 1. A complex entry $a + ib$ has $|C_n|^2 = a^2 + b^2$. If that is to be 1 on average, each part gets a variance of $\frac12$.
#
# Then nothing has changed from chapter 4. The kernel is $K_l = 2 \operatorname{Re} \sum_n C_n x_n$, where $x = \bar A^{\,l} \bar B$ is the state $l$ steps after a single one. With $x_n = p + iq$ one term is $2(ap - bq)$. Its mean is 0, its variance $4\,(\frac12 p^2 + \frac12 q^2) = 2 |x_n|^2$. The terms are independent, so
#
# $$ \mathrm{E}\,K_l^2 = 2 \sum_n |x_n|^2 = \lVert \bar A^{\,l} \bar B \rVert^2 , $$ (layer-variance)
#
# because each partner adds as much again to the norm of the full state. It is the value that chapter 4 found for its real $C$, in an exercise.


# %%
def to_complex(pair):
    """re + i im.   (..., 2) real  ->  (...) complex"""
    return jax.lax.complex(pair[..., 0], pair[..., 1])


def to_pair(w):
    """(re, im).   (...) complex  ->  (..., 2) real"""
    return jnp.stack([w.real, w.imag], axis=-1)


def draw_C(key, *shape):
    """E |C_n|^2 = 1: pairs of N(0, 1/2).   -> shape, complex"""
    return to_complex(jax.random.normal(key, (*shape, 2)) / jnp.sqrt(2.0))


C = np.asarray(draw_C(jax.random.key(0), 200_000, 4))
generator = np.random.default_rng(0)
x = generator.normal(size=4) + 1j * generator.normal(size=4)
mean_C, mean_K = (np.abs(C) ** 2).mean(), ((2 * (C @ x).real) ** 2).mean()
whole = 2 * np.sum(np.abs(x) ** 2)
print(f"mean of |C_n|^2: {mean_C:.2f}", end=", ")
print(f"mean of K_l^2 over the squared norm: {mean_K / whole:.2f}")
assert abs(mean_C - 1) < 5e-3 and abs(mean_K / whole - 1) < 0.02

# %% [markdown]
# ## Any real number must be allowed
#
# An optimiser adds a number of either sign to each parameter and asks nobody. So whatever is stored must stand for something that works. For the frequency, $P$, $B$, $\tilde C$ and $D$, every number will do. Two things have a sign that they must keep: the step is a time, and $\operatorname{Re} \lambda_n$ must be negative, or the mode grows. Both get an exponential, as the
# step did in chapter 4:
#
# $$ \Delta = e^{\texttt{log\_step}}, \qquad \operatorname{Re} \lambda_n = -e^{\texttt{log\_decay}} . $$ (layer-exponentials)
#
# On paper this is enough. In float32 it is not. The smallest positive number there is $1.4 \cdot 10^{-45}$, the largest $3.4 \cdot 10^{38}$. Their natural logarithms are about $-103$ and $+88.7$. So $e^{-200}$ is zero, and $e^{100}$ is infinite. What would each do?
#
# * A decay of zero puts $\lambda_n$ on the imaginary axis. Its factor per step, $g = \frac{1 + \frac{\Delta}{2} i\mu}{1 - \frac{\Delta}{2} i \mu}$, is a number divided by its own conjugate, so $|g| = 1$: the mode never fades. For $\mu = 0$ it is worse. The denominator $d_n = 2is - \Delta c \lambda_n$ of [chapter 6](06_cauchy_kernel.ipynb) is 0 at the frequency 0, and the kernel is not a number.
# * A decay of infinity makes $d_n$ infinite and the kernel zero. On the way back infinity is multiplied by zero, and the gradient is not a number.
#
# So both are kept between bounds: steps from $10^{-6}$ to $10$, decays from $10^{-3}$ to $10^{6}$. They start between 0.001 and 0.1, and at $\frac12$. The bounds are far wider than anything that is learned, and narrow enough that the products made from them stay far from both ends of float32.


# %%
def bounded_exp(value, bounds):
    """exp(value), kept between the two bounds."""
    low, high = bounds
    return jnp.exp(jnp.clip(value, jnp.log(low), jnp.log(high)))


assert layers.STEPS == (1e-6, 1e1) and layers.DECAYS == (1e-3, 1e6)
small, large = jnp.exp(jnp.float32(-200)), jnp.exp(jnp.float32(100))
print(f"float32: exp(-200) = {small:.0f}, exp(100) = {large:.0f}")
assert small == 0 and jnp.isinf(large)

mu = 1j * np.linspace(-50, 50, 7)
g = (1 + 0.05 * mu) / (1 - 0.05 * mu)
assert np.abs(np.abs(g) - 1).max() < 1e-12


def one_mode(decay):
    """A kernel of 8 steps, P = B = C~ = 1, lambda = -decay, step 0.1."""
    one = jnp.ones(1, jnp.complex64)
    Lambda = jax.lax.complex(-decay, jnp.zeros_like(decay))[None]
    return kernel_dplr(Lambda, one, one, one, one, 0.1, 8, method="dense")


def value_and_slope(log_decay, decay_of):
    """sum K_l and its derivative by log_decay."""
    total = jax.value_and_grad(lambda v: one_mode(decay_of(v)).sum())
    return jnp.stack(total(jnp.float32(log_decay)))


for log_decay in (-200.0, 100.0):
    free = value_and_slope(log_decay, jnp.exp)
    kept = value_and_slope(
        log_decay, partial(bounded_exp, bounds=layers.DECAYS)
    )
    assert jnp.isnan(free).any() and jnp.isfinite(kept).all()
print("without bounds kernel or gradient is not a number")

# %% [markdown]
# The bounds have a price: beyond them the gradient is zero, as the value no longer changes. A parameter that gets there stays, unless the optimiser's own memory carries it back. That is a stuck feature. A NaN would have been the end of the training, for all features.

# %%
slope = jax.grad(lambda value: bounded_exp(value, layers.STEPS))
inside, beyond = slope(jnp.log(0.01)), slope(jnp.log(100.0))
print(f"gradient inside {inside:.2f}, beyond the bound {beyond:.0f}")
assert abs(inside - 0.01) < 1e-6 and beyond == 0

# %% [markdown]
# ## Why Q is tied to P
#
# Now every $\operatorname{Re} \lambda_n$ is negative, whatever is learned. Does that make $A = \Lambda - P Q^*$ stable? With one mode the answer can be read off. Take $\lambda = -1$, $P = 1$ and $Q = -2$. Then $A = -1 + 2 = 1$, and the state doubles and doubles. The $\lambda_n$ are not the eigenvalues of $A$; the low-rank part moves them.
#
# [Chapter 8](08_nplr.ipynb) has shown in its section "It cannot explode" that HiPPO is safe, and that 200 random systems with $Q = P$ are. Here is the proof for all of them. Let $Q = P$. All stars and bars in this section are conjugate transposes and conjugates. $\Lambda$ is diagonal, so $\Lambda + \Lambda^* = 2 \operatorname{Re} \Lambda$, and $(P P^*)^* = P P^*$:
#
# $$\begin{aligned}
# A + A^* &= \Lambda - P P^* + \Lambda^* - P P^* \\
# &= 2 \operatorname{Re} \Lambda - 2 P P^* .
# \end{aligned}$$ (layer-hermitian)
#
# Put a state $x \neq 0$ on both sides. $x^* P$ is the conjugate of the number $P^* x$, so $x^* P P^* x = |P^* x|^2$:
#
# $$ x^* (A + A^*)\, x = 2 \sum_n \operatorname{Re} \lambda_n\, |x_n|^2 - 2\, |P^* x|^2 < 0 . $$ (layer-negative)
#
# The first term is negative, the second is never positive. That is all the proof needs. Without input, $x' = A x$, and
#
# $$\begin{aligned}
# \frac{d}{dt} |x|^2 &= x^* x' + (x')^* x \\
# &= x^* A x + x^* A^* x = x^* (A + A^*)\, x < 0 .
# \end{aligned}$$ (layer-continuous)
#
# So the state gets shorter at every moment. In particular $A$ has no eigenvalue $\lambda$ with $\operatorname{Re} \lambda \ge 0$: for an eigenvector $v$ the left side of {eq}`layer-negative` is $(\lambda + \bar\lambda)\, |v|^2 = 2 \operatorname{Re} \lambda\, |v|^2$.
#
# **And in steps?** Let $w = (\frac{2}{\Delta} - A)^{-1} x$. The inverse exists, since $\frac{2}{\Delta} > 0$ is no eigenvalue of $A$. Then $x = (\frac{2}{\Delta} - A)\, w$. By [chapter 9](09_recurrence.ipynb) $\bar A = (\frac{2}{\Delta} - A)^{-1} (\frac{2}{\Delta} + A)$. Both factors are made of $A$ and of
# multiples of the identity, so they may be swapped:
#
# $$ \bar A x = \left(\tfrac{2}{\Delta} + A\right)\left(\tfrac{2}{\Delta} - A\right)^{-1} x = \left(\tfrac{2}{\Delta} + A\right) w . $$
#
# The lengths of both, multiplied out, with $|v|^2 = v^* v$ and $(A w)^* = w^* A^*$:
#
# $$\begin{aligned}
# |x|^2 &= \left|\tfrac{2}{\Delta} w - A w\right|^2 \\
# &= \tfrac{4}{\Delta^2} |w|^2 - \tfrac{2}{\Delta} \left( w^* A w + w^* A^* w \right) + |A w|^2 , \\
# |\bar A x|^2 &= \left|\tfrac{2}{\Delta} w + A w\right|^2 \\
# &= \tfrac{4}{\Delta^2} |w|^2 + \tfrac{2}{\Delta} \left( w^* A w + w^* A^* w \right) + |A w|^2 .
# \end{aligned}$$ (layer-lengths)
#
# The first and the last term are the same in both. Subtract:
#
# $$ |x|^2 - |\bar A x|^2 = -\tfrac{4}{\Delta}\, w^* (A + A^*)\, w > 0 . $$ (layer-contraction)
#
# Each step makes each state shorter, $|\bar A x| < |x|$, for every step size. So all eigenvalues of $\bar A$ are inside the unit circle, and no state that starts large can get larger on the way, either.
#
# **By hand**, with one mode: $\lambda = -1$, $P = 1$, so $A = -2$ and $A + A^* = -4 = 2 \cdot (-1) - 2$. Take $\Delta = \frac12$ and $x = 3$. Then $w = 3/(4 + 2) = \frac12$ and $\bar A x = (4 - 2) \cdot \frac12 = 1$. Left: $9 - 1 = 8$. Right: $-8 \cdot \frac12 \cdot (-4) \cdot \frac12 = 8$.


# %%
def check_lines(A, x, step):
    """Each displayed line of the proof, evaluated."""
    identity, star = np.eye(len(x)), A.conj().T
    w = np.linalg.solve(2 / step * identity - A, x)
    plus, minus = 2 / step * identity + A, 2 / step * identity - A
    Ab_x = np.linalg.solve(minus, plus @ x)
    length = lambda v: np.vdot(v, v).real  # vdot conjugates its first
    middle = np.vdot(w, A @ w) + np.vdot(w, star @ w)
    outer = 4 / step**2 * length(w) + length(A @ w)
    difference = -4 / step * np.vdot(w, (A + star) @ w)
    assert error(plus @ w, Ab_x) < 1e-12
    assert abs(outer - 2 / step * middle - length(x)) < 1e-10 * outer
    assert abs(outer + 2 / step * middle - length(Ab_x)) < 1e-10 * outer
    assert abs(length(x) - length(Ab_x) - difference) < 1e-10 * outer
    return difference.real


by_hand = check_lines(np.array([[-2.0]]), np.array([3.0]), 0.5)
assert abs(by_hand - 8) < 1e-12

draws = generator.normal(size=(3, 4)) + 1j * generator.normal(size=(3, 4))
Lambda, P, x = draws
Lambda = -np.abs(Lambda.real) + 1j * Lambda.imag
A = np.diag(Lambda) - np.outer(P, P.conj())
both = A + A.conj().T
right = 2 * np.diag(Lambda.real) - 2 * np.outer(P, P.conj())
assert error(both, right) < 1e-13  # layer-hermitian
number = np.vdot(x, both @ x)
by_sums = (
    2 * np.sum(Lambda.real * abs(x) ** 2) - 2 * abs(np.vdot(P, x)) ** 2
)
assert abs(number - by_sums) < 1e-12 and by_sums < 0  # layer-negative
assert check_lines(A, x, 0.3) > 0  # layer-lengths, layer-contraction
print("every line of the proof holds on random complex numbers")

# %% [markdown]
# How likely is the accident with a free $Q$? Draw 300 systems, each with negative $\operatorname{Re} \lambda_n$, each once with $Q = P$ and once with a $Q$ of its own, and count the unstable ones.


# %%
def full(v):
    """(..., N/2) -> (..., N): each mode and its conjugate partner."""
    return np.concatenate([v, np.conj(v)], axis=-1)


def dense(Lambda, P, Q):
    """A = diag(Lambda) - P Q* over the full state.   (N/2,) -> (N, N)"""
    return np.diag(full(Lambda)) - np.outer(full(P), full(Q).conj())


def bilinear(A, B, step):
    """Ab and Bb with a dense solve, in float64."""
    left, right = (
        np.eye(len(A)) - step / 2 * A,
        np.eye(len(A)) + step / 2 * A,
    )
    return np.linalg.solve(left, right), np.linalg.solve(left, step * B)


def random_system(generator, N):
    """Lambda with Re < 0, P and Q, each (N/2,), all at random."""
    parts = generator.normal(size=(2, 3, N // 2))
    Lambda, P, Q = parts[0] + 1j * parts[1]
    return -np.exp(Lambda.real) + 3j * Lambda.imag, P, Q


rightmost = {}
for size in (2, 8, 64):
    generator = np.random.default_rng(0)
    systems = [random_system(generator, size) for _ in range(300)]
    for name, right in (("Q = P", 1), ("free Q", 2)):
        matrices = np.stack(
            [dense(s[0], s[1], s[right]) for s in systems]
        )
        rightmost[name, size] = np.linalg.eigvals(matrices).real.max(-1)
counts = {
    key: int((values > 0).sum()) for key, values in rightmost.items()
}
for size in (2, 8, 64):
    print(f"N = {size:2}: unstable of 300,", end=" ")
    print(
        f"free Q {counts['free Q', size]}, Q = P {counts['Q = P', size]}"
    )
assert all(counts["Q = P", size] == 0 for size in (2, 8, 64))
assert counts["free Q", 2] < counts["free Q", 8] < counts["free Q", 64]
assert counts["free Q", 8] > 150 and counts["free Q", 64] > 250

# %%
generator = np.random.default_rng(0)
systems = [random_system(generator, 16) for _ in range(40)]
figure, panels = plt.subplots(
    1, 2, figsize=(6.4, 3.4), sharex=True, sharey=True
)
angle, share = np.linspace(0, 2 * np.pi, 200), []
for panel, right, name in zip(
    panels, (2, 1), ("free Q", "Q = P"), strict=True
):
    matrices = [dense(s[0], s[1], s[right]) for s in systems]
    steps = [bilinear(A, A[0], 0.2)[0] for A in matrices]
    g = np.linalg.eigvals(np.stack(steps)).ravel()
    inside = np.abs(g) < 1
    share.append(1 - inside.mean())
    panel.plot(
        np.cos(angle), np.sin(angle), "-", color="0.4", linewidth=1
    )
    panel.plot(g[inside].real, g[inside].imag, "o", markersize=3)
    panel.plot(g[~inside].real, g[~inside].imag, "x", markersize=5)
    panel.set(xlabel=f"real part, {name}", aspect="equal")
panels[0].set(ylabel="imaginary part", xlim=(-1.1, 2.3), ylim=(-1.3, 1.3))
plotting.show(
    figure,
    "Eigenvalues of the discrete matrix of 40 random systems with N = 16 and step 0.2 in the complex plane, with the unit circle; circles inside it, crosses outside. "
    "Left, with a free Q, most of them are inside but dozens of crosses stand to the right of the circle. Right, with Q = P, every one is inside.",
)
assert share[1] == 0 and share[0] > 0.05

# %% [markdown]
# The more modes, the more surely something grows. One eigenvalue outside the circle is enough, and training walks through many systems. So the layer has no $Q$ of its own. It gives something up: with $Q = P$ the low-rank part can only take energy from the state. It is what the S4 authors did later on, for the same
# reason {cite:p}`goel2022sashimi`.
#
# ## C or C-tilde?
#
# The kernel of [chapter 7](07_dplr.ipynb) wants $\tilde C = C\,(I - \bar A^L)$, the recurrence wants $C$. Either could be the parameter. If $C$ is, each training step computes $\bar A^L$ for each feature: about $2 \log_2 L$ products of $N \times N$ matrices, and their gradients. If $\tilde C$ is, the training never meets a power of a matrix. Any row is the $\tilde C$ of some $C$, because
# $I - \bar A^L$ has an inverse as long as the system is stable. And it is stable now. So the layer stores $\tilde C$.
#
# **How it starts.** We know how to draw $C$: with $\mathrm{E}\,|C_n|^2 = 1$. $\tilde C$ is made from it once, $\tilde C = C - C \bar A^L$. That needs a row times a power, but a row can be pushed through $\bar A$ one factor at a time, $(C \bar A)\,\bar A \cdots$, and one factor is a step of a system. Of which? Transpose: $(C \bar A)^\top = \bar A^\top C^\top$, without
# a conjugate, and $\bar A^\top$ is the bilinear matrix of $A^\top$, since the rule is made of $A$ and numbers only. And
#
# $$ A^\top = \left(\Lambda - P P^*\right)^\top = \Lambda - (P^*)^\top P^\top = \Lambda - \bar P\, \bar P^* . $$ (layer-transposed)
#
# The bar is a conjugate here; $(P^*)^\top$ is the column $\bar P$, and $P^\top = \bar P^*$. So $C \bar A$ is one step of the layer's own kind, with $\bar P$ in the place of $P$, the column $C^\top$ as its state, and no input. $L$ such steps of about $9N$ multiplications each replace the power. `jax.lax.fori_loop` repeats a function a given number of times and keeps only the last result.


# %%
@partial(jax.jit, static_argnums=4)
def tilde(Lambda, P, C, step, L):
    """C~ = C - C Ab^L, by L steps of diag(Lambda) - conj(P) conj(P)*.

    Lambda, P, C: (..., N/2) complex, step: (...)  ->  (..., N/2)
    """
    P, silence = P.conj(), jnp.zeros_like(step)
    transposed = dplr.discretize_dplr(
        Lambda, P, P, jnp.zeros_like(P), step
    )
    times_Ab = lambda _, row: transposed.step(row, silence)
    return C - jax.lax.fori_loop(0, L, times_Ab, C)


Lambda, P, C = random_system(np.random.default_rng(3), 16)
Ab, _ = bilinear(dense(Lambda, P, P), full(P), 0.01)
exact = (full(C) @ (np.eye(16) - np.linalg.matrix_power(Ab, L)))[:8]
single = [jnp.asarray(v, jnp.complex64) for v in (Lambda, P, C)]
found = tilde(*single, jnp.float32(0.01), L)
assert error(found, exact) < 1e-5
to_tilde = jax.jit(generating.to_tilde, static_argnums=5)
theirs = to_tilde(single[2], *single[:2], single[1], jnp.float32(0.01), L)
assert error(theirs, exact) < 1e-4
without_bar = tilde(
    single[0], single[1].conj(), single[2], jnp.float32(0.01), L
)
print(
    f"with P in place of its conjugate: off by {error(without_bar, exact):.0%}"
)
assert error(without_bar, exact) > 0.05

# %% [markdown]
# **Why not draw $\tilde C$ itself?** It would be one line less. Then $C = \tilde C\,(I - \bar A^L)^{-1}$ would have an unknown size. Guess it: by chapter 9 the norm of the inverse is about $1/(1 - e^{-L\Delta})$, due to the slowest direction of HiPPO's memory, which fades as $e^{-t}$. That is near 1 if the window $L\Delta$ is long, and near $1/(L\Delta)$ if it is short. A feature with the smallest step 0.001 and
# $L = 64$ has $L\Delta = 0.064$, so the guess is 16. How much of it reaches the kernel? The mean of {eq}`layer-variance` is exact for both ways: $\lVert x \rVert^2$ with $x = \bar A^{\,l} \bar B$ for a drawn $C$, and for a drawn $\tilde C$ the same with $(I - \bar A^L)^{-1} x$ in the place of $x$.


# %%
def scales(N, step, L=64):
    """How many times larger are C and the kernel if C~ is drawn? (rms)"""
    Lambda, P, B, _ = map(np.asarray, hippo.dplr_legs(N))
    Ab, x = bilinear(dense(Lambda, P, P), full(B), step)
    inverse = np.linalg.inv(np.eye(N) - np.linalg.matrix_power(Ab, L))
    from_C, from_tilde = [], []
    for _ in range(L):
        from_C.append(np.linalg.norm(x))
        from_tilde.append(np.linalg.norm(inverse @ x))
        x = Ab @ x
    rms = lambda v: np.sqrt(np.mean(np.square(v)))
    return np.linalg.norm(inverse) / np.sqrt(N), rms(from_tilde) / rms(
        from_C
    )


print(
    "L = 64                guess |  N = 8: C  kernel |  N = 64: C  kernel"
)
larger = {}
for step in (0.0001, 0.001, 0.01, 0.1):
    window = 64 * step
    guess = 1 / (1 - np.exp(-window))
    larger[step] = scales(8, step), scales(64, step)
    (C_8, K_8), (C_64, K_64) = larger[step]
    case = f"step {step:6}, window {window:6.4g}"
    print(
        f"{case:27} {guess:5.1f} {C_8:11.1f} {K_8:7.1f} {C_64:12.1f} {K_64:7.1f}"
    )
assert 3 < larger[0.001][0][1] < 4.5 and 1.5 < larger[0.001][1][1] < 2.2
assert all(scale < 1.2 for pair in larger[0.1] for scale in pair)

# %% [markdown]
# The row is larger, and the fewer states, the nearer to the guess, which is about one direction out of $N$. In the kernel less of it arrives, because the input excites the other directions too. At the edge of the default range (0.001 to 0.1) and 64 steps it is a factor of 3.6 for $N = 8$ and 1.8 for $N = 64$; for a window of 1 or more next to nothing. A shorter step makes it worse. So this is no
# catastrophe, but a volume that depends on the step, in a network where all features are meant to start equally loud. The right start costs three lines. We keep it.
#
# ````{admonition} Trap: the same parameters in a layer of another length
# :class: warning
#
# $\tilde C$ belongs to one $L$. Copy the parameters of a layer with $L = 64$ into one with $L = 128$ and it runs, with another kernel. For $N = 8$, $\Delta = \frac1{64}$ and a $\tilde C$ that is $e_0$ in HiPPO's own coordinates (the row $e_0 V$ for the modes) it is off by 26.9 %. Chapter 9 has found the number by hand, as $1/(1 + e)$.
#
# So a layer keeps the length for which its $\tilde C$ was made, `l_max`. It computes the kernel for that length always and cuts it to the input's. Shorter inputs are therefore exact. Longer ones are refused: for them one needs the recurrence, or a layer made for them.
# ````

# %%
trained, longer = (
    layers.S4(1, 8, n, rngs=nnx.Rngs(0)) for n in (64, 128)
)
row = hippo.dplr_legs(8)[3][0]  # e_0 V: no conjugate
trained.C_tilde[...] = to_pair(row)[None]
trained.log_step[...] = jnp.log(jnp.full(1, 1 / 64))
nnx.update(longer, nnx.state(trained))
kernel_of = nnx.jit(lambda layer, L: layer.kernel(L), static_argnums=1)
K, K_longer = kernel_of(trained, 64)[0], kernel_of(longer, 64)[0]
wrong = error(K_longer, K)
print(f"C~ of 64 steps in a layer of 128: off by {wrong:.1%}")
assert abs(wrong - 0.269) < 1e-3 and abs(wrong - 1 / (1 + np.e)) < 1e-3

try:
    trained(jnp.ones((1, 65, 1)))
    raise AssertionError("65 steps were accepted")
except ValueError as refusal:
    print("refused:", refusal)

# %% [markdown]
# ## The layer
#
# Now the parameters and the kernel become an NNX module, in two pieces. First what is stored, and what it stands for. `Slow` is the package's kind of parameter for what shapes a memory; it is a `Param` by another name, and a later section says what for.


# %%
class Parameters(nnx.Module):
    """Lambda, P, B, C~, step and D of H features, as real numbers."""

    def __init__(self, H, N, l_max, rngs):
        Lambda, P, B, _ = hippo.dplr_legs(N)
        for_all = lambda v: layers.Slow(
            jnp.broadcast_to(v, (H, *v.shape))
        )
        between = {"minval": jnp.log(0.001), "maxval": jnp.log(0.1)}
        log_step = jax.random.uniform(rngs.params(), (H,), **between)
        self.l_max = l_max  # the length that C~ belongs to
        self.log_decay = for_all(jnp.log(-Lambda.real))
        self.frequency = for_all(Lambda.imag)
        self.P, self.B = for_all(to_pair(P)), for_all(to_pair(B))
        self.log_step = layers.Slow(log_step)
        self.D = nnx.Param(jnp.ones(H))
        C = draw_C(rngs.params(), H, N // 2)
        Lambda, P, _, step = self.system()
        self.C_tilde = nnx.Param(
            to_pair(tilde(Lambda, P, C, step, l_max))
        )

    def system(self):
        """Lambda, P, B: (H, N/2) complex, and the step: (H,)."""
        decay = bounded_exp(self.log_decay[...], layers.DECAYS)
        Lambda = jax.lax.complex(-decay, self.frequency[...])
        P, B = to_complex(self.P[...]), to_complex(self.B[...])
        return Lambda, P, B, bounded_exp(self.log_step[...], layers.STEPS)


# %% [markdown]
# Then what it does, equation {eq}`layer-output`. The kernel is made for `l_max` and cut; the convolution is that of [chapter 2](02_convolution.ipynb).


# %%
class S4Layer(Parameters):
    """y = K * u + D u.   u: (batch, L, H), L <= l_max  ->  the same"""

    def kernel(self, L):
        """K_l = C Ab^l Bb, l < L.   -> (H, L)"""
        Lambda, P, B, step = self.system()
        C_tilde = to_complex(self.C_tilde[...])
        whole = kernel_dplr(Lambda, P, P, B, C_tilde, step, self.l_max)
        return whole[:, :L]

    def __call__(self, u):
        u = jnp.moveaxis(u, 1, -1)  # (batch, H, L): time last
        K = self.kernel(u.shape[-1])[None]  # (1, H, L)
        y = ssm.causal_convolution(u, K) + self.D[...][None, :, None] * u
        return jnp.moveaxis(y, -1, 1)


run = nnx.jit(lambda module, u: module(u))

# %% [markdown]
# That is the layer. Is it right? At the start all features share one $A$, and $P$ is real. A forgotten conjugate would not show. So before any check we shake the layer: to every number it stores we add a random one of spread 0.3, as an optimiser might. Then $P$ is complex and no two features are alike.
#
# The oracle is the recurrence itself, in float64 NumPy, with dense matrices, one feature and one step at a time. $C$ is found from $\tilde C$ by a solve.


# %%
def shaken(layer, seed, spread=0.3):
    """A copy of the layer with N(0, spread^2) added to each number."""
    draw, copy = np.random.default_rng(seed), nnx.clone(layer)
    add = lambda v: (
        v + jnp.asarray(draw.normal(scale=spread, size=v.shape), v.dtype)
    )
    nnx.update(copy, jax.tree.map(add, nnx.state(layer, nnx.Param)))
    return copy


def in_float64(layer):
    """For each feature Ab, Bb (full state), C (full) and D, in NumPy."""
    Lambda, P, B, step = (np.asarray(v) for v in layer.system())
    Lambda, P, B = (v.astype(complex) for v in (Lambda, P, B))
    rows = np.asarray(to_complex(layer.C_tilde[...]), complex)
    for h, row in enumerate(rows):
        A = dense(Lambda[h], P[h], P[h])
        Ab, Bb = bilinear(A, full(B[h]), float(step[h]))
        power = np.linalg.matrix_power(Ab, layer.l_max)
        C = np.linalg.solve((np.eye(len(A)) - power).T, full(row))
        yield Ab, Bb, C, float(layer.D[h])


def by_recurrence(layer, u):
    """x_k = Ab x_{k-1} + Bb u_k,  y_k = C x_k + D u_k, in float64."""
    u, y = np.asarray(u, float), np.zeros(u.shape)
    for h, (Ab, Bb, C, D) in enumerate(in_float64(layer)):
        x = np.zeros((len(u), len(Bb)), complex)
        for k in range(u.shape[1]):
            x = x @ Ab.T + Bb * u[:, k, h, None]
            y[:, k, h] = (x @ C).real + D * u[:, k, h]
    return y


layer = shaken(S4Layer(H, N, L, nnx.Rngs(0)), seed=1)
u = jax.random.normal(jax.random.key(1), (4, L, H))
y = run(layer, u)
exact = by_recurrence(layer, u)
assert error(y, exact) < 1e-5
assert error(run(layer, u[:, :40]), exact[:, :40]) < 1e-5  # shorter
print("the layer is the recurrence of each feature: below 1e-5")

# %% [markdown]
# And it is the package's `S4`: with the same parameters the two say the same. It looks at no later input, and features do not meet.

# %%
nnx.update(packaged, nnx.state(layer))
assert error(run(packaged, u), y) < 1e-6

moved = np.abs(run(layer, u.at[:, 40, 5].add(1.0)) - y).max(axis=0)
rounding = 1e-5 * float(jnp.abs(y).max())
first_step = np.flatnonzero(moved[:, 5] > rounding)[0]
print(
    f"an input changed at step 40 moves the outputs from {first_step} on"
)
assert moved[:40].max() < rounding < moved[40, 5]
assert np.delete(moved, 5, axis=1).max() < rounding

# %% [markdown]
# ### Whatever is learned
#
# The proof was on paper. Now the code. Give every stored number a wild value: the logarithms spread by 100, so that most end at a bound, the others by 100 too. Then the spectral radius $\rho$, the largest $|g|$ of each $\bar A$, is computed in float64, and the layer runs in float32.

# %%
for seed in range(3):
    wild = shaken(layer, seed, spread=100.0)
    steps = np.asarray(wild.system()[3])
    radius = [
        abs(np.linalg.eigvals(s[0])).max() for s in in_float64(wild)
    ]
    assert max(radius) < 1
    assert jnp.isfinite(run(wild, u)).all()
    assert steps.min() >= 0.99e-6 and steps.max() <= 10.01
print("with wild parameters: spectral radius below 1, all outputs finite")

# %% [markdown]
# How far below 1? That is not promised. A slow mode with a tiny step comes as close to 1 as the bounds allow ($\Delta\,|\operatorname{Re}\lambda|$ as small as $10^{-9}$), and a fast one comes close to the circle at $-1$. "Stable" means that nothing grows. It does not mean that the layer is of any use, and an exercise looks at one that is not.
#
# ## The second mode
#
# For running one step at a time we have everything from chapter 9: the step of a system without a solve, `dplr.discretize_dplr(...).step`, and the way from $\tilde C$ back to $C$. It is done **once**, after training, and three things are decided for it.
#
# * **In float64.** Chapter 9's table: the conversion from $\tilde C$ to $C$ loses digits in float32, more of them the longer $L$ and the shorter the window. The result may be rounded to float32; it is the computation that may not.
# * **On the host**, one feature after the other. In float64 because not every accelerator has it; one after the other since each $\bar A$ is a full matrix: for $H = 256$ and $N = 64$ together they would be a million numbers of 16 bytes, several times over.
# * **The state is in the reader's hands.** A step takes the state and returns the next one. Nothing is kept inside the layer that a second sequence could find there.


# %%
class Steps(NamedTuple):
    """A layer as a recurrence: its systems' steps, C: (H, N/2), D: (H,)."""

    system: dplr.DiscreteDPLR
    C: jax.Array
    D: jax.Array


def as_steps(layer):
    """The layer as a recurrence. C~ to C in float64, each feature by itself."""
    rows = [C[: len(C) // 2] for _, _, C, _ in in_float64(layer)]
    Lambda, P, B, step = layer.system()
    system = dplr.discretize_dplr(Lambda, P, P, B, step)
    return Steps(system, jnp.asarray(rows, jnp.complex64), layer.D[...])


@jax.jit
def one_step(steps, u_k, x):
    """y_k = 2 Re C x_k + D u_k.   u_k: (batch, H), x: (batch, H, N/2)"""
    x = jax.vmap(steps.system.step)(x, u_k)  # each row of the batch
    y_k = 2 * (steps.C[None] * x).sum(-1).real + steps.D[None] * u_k
    return y_k, x


steps, package_steps = as_steps(layer), packaged.as_recurrence()
assert error(steps.C, package_steps.C) < 1e-6

x, outputs = jnp.zeros((4, H, N // 2), jnp.complex64), []
for k in range(L):
    y_k, x = one_step(steps, u[:, k], x)
    outputs.append(y_k)
y_steps = jnp.stack(outputs, axis=1)
assert error(y_steps, exact) < 1e-5 and error(y_steps, y) < 2e-5

# %% [markdown]
# The package says the same with three calls. `rnn.run` is a scan over `rnn.step`.

# %%
rnn = package_steps
state = rnn.initial_state(batch=4)
assert not state.any()  # x_{-1} = 0
run_steps = jax.jit(lambda rnn, u, state: rnn.run(u, state))
y_package, last = run_steps(rnn, u, state)
assert error(y_package, y_steps) < 1e-5 and error(last, x) < 1e-5
again, _ = run_steps(rnn, u, rnn.initial_state(batch=4))
assert jnp.array_equal(again, y_package)  # nothing was left behind

try:
    rnn.step(u[:, 0], rnn.initial_state(batch=1))
    raise AssertionError("a state for one row was taken for four")
except ValueError as refusal:
    print("refused:", refusal)

# %% [markdown]
# The last lines matter more than they seem. A state of batch size 1 could be broadcast to four rows without a complaint, and four sequences would share one past. A state of the wrong size is an error.
#
# **No solve.** Chapter 9 looked through the recorded program of its step. The same look at the package's, for all features of a batch:

# %%
program = jax.make_jaxpr(rnn.step)(u[:, 0], state)
names = {equation.primitive.name for equation in program.eqns}
inner = str(program)  # with the programs inside the program
assert not any(
    word in inner for word in ("solve", "lu[", "inv", "custom_linear")
)
print("the step solves nothing:", "triangular_solve" not in inner)

# %% [markdown]
# **A prefix at once, then steps.** When a long beginning is known and the rest comes one by one, the outputs of the beginning come from the convolution, and what the rest needs is one state: the last. `prefill` returns both. For the state it still makes all the steps, but it reads nothing out of them and keeps only the last.
#
# Why be so strict about keeping? Compute by hand what all states of all steps would take, for a batch of 32, $L = 1024$, $H = 256$ and $N = 64$. It is $32 \cdot 1024 \cdot 256 \cdot 32$ complex numbers, $2^{5+10+8+5} = 2^{28}$, of eight bytes each: $2^{31}$ bytes, or 2 GiB, for one layer. The last one alone is 2 MiB. The compiler's plan, as in chapter 4, shows the difference on a smaller layer.

# %%
prefill = nnx.jit(lambda layer, u: layer.prefill(u))
y_prefix, state = prefill(packaged, u[:, :40])
y_rest, _ = run_steps(rnn, u[:, 40:], state)
joined = np.concatenate([y_prefix, y_rest], axis=1)
assert error(joined, exact) < 1e-5
assert 32 * 1024 * 256 * 32 * 8 == 2**31 == 2 * 1024**3
assert 32 * 256 * 32 * 8 == 2 * 1024**2
print("40 steps at once and 24 one by one: the same outputs")


# %% tags=["nbval-ignore-output"]
def all_states(layer, u):
    """Every state of every step.   -> (L, batch, H, N/2)"""
    system = layer.transition()

    def advance(x, u_k):
        x = jax.vmap(system.step)(x, u_k)
        return x, x

    zero = jnp.zeros((len(u), H, N // 2), jnp.complex64)
    return jax.lax.scan(advance, zero, jnp.moveaxis(u, 1, 0))[1].sum()


graph, stored = nnx.split(packaged)
long_batch = jax.ShapeDtypeStruct((64, L, H), jnp.float32)
by_hand = 64 * L * H * N // 2 * 8
plans = {}
for name, call in (
    ("prefill", lambda layer, u: layer.prefill(u)),
    ("all states", all_states),
):
    program = jax.jit(
        lambda stored, u, call=call: call(nnx.merge(graph, stored), u)
    )
    plan = program.lower(stored, long_batch).compile().memory_analysis()
    plans[name] = plan.temp_size_in_bytes
    print(f"{name}: {plans[name] / 2**20:.1f} MiB")
print(f"all states by hand: {by_hand / 2**20:.0f} MiB")
assert plans["all states"] > 0.9 * by_hand > 2 * plans["prefill"]

# %% [markdown]
# ## Another sampling rate
#
# $\Lambda$, $P$, $B$, $C$ and $D$ belong to the continuous system and know nothing of samples; $\Delta$ and $\tilde C$ do. Chapter 9 said what to do with a signal that is sampled twice as often: first back to $C$ with the trained step and length, then halve the step, then make $\tilde C$ for the new step and length. `layer.at_rate(2.0)` does these in this order and returns a new layer; the step is divided there and
# nowhere else, and both modes of the new layer use it. Two seconds stay two seconds, so `l_max` doubles.
#
# One period of a sine, with 64 samples and with 128. Sample $k$ belongs to the end of its step, so sample $k$ of the slow signal and sample $2k + 1$ of the fast one are at the same time. The outputs there should differ by a few per cent: chapter 9 found an error of first order, halved at each doubling of the rate.


# %%
def sine(samples):
    """sin(2 pi t_k), t_k = (k + 1)/samples, in all features."""
    t = (jnp.arange(samples) + 1) / samples
    return jnp.broadcast_to(
        jnp.sin(2 * jnp.pi * t)[None, :, None], (1, samples, H)
    )


twice = packaged.at_rate(2.0)
assert (
    twice.l_max == 2 * L and error(2 * twice.step, packaged.step) < 1e-6
)
slow, fast = run(packaged, sine(L)), run(twice, sine(2 * L))
first = error(fast[:, 1::2], slow)
print(f"64 and 128 samples differ by {first:.1%}")
assert first < 0.05

rnn_twice = twice.as_recurrence()
by_steps, _ = run_steps(
    rnn_twice, sine(2 * L), rnn_twice.initial_state(1)
)
assert error(by_steps, fast) < 2e-5  # both modes know of the rate

forgotten, _ = run_steps(rnn, sine(2 * L), rnn.initial_state(1))
wrong = error(forgotten[:, 1::2], slow)
print(f"rate forgotten: off by {wrong:.0%}")
assert wrong > 0.2

# %% [markdown]
# ## Both directions at once
#
# A digit is there as a whole before we classify it. Then the layer may look at what comes after, too. A second row $\tilde C$ reads the same state space system a second time, and its kernel looks into the future. Write $\overleftarrow K$ for it; the arrow says that it reads against the time:
#
# $$ y_k = \sum_{j \le k} K_{k-j}\, u_j + \sum_{j > k} \overleftarrow K_{j-k-1}\, u_j + D u_k . $$ (layer-both)
#
# Look at the limits. The first sum has $j = k$ in it, the second starts at $j = k + 1$, and there its index is 0. The present is counted once.
#
# By hand: $K = (1, 2, 3)$, $\overleftarrow K = (10, 20, 30)$, $D = 0$ and a single one at the last of three steps, $u = (0, 0, 1)$. Then $y_0$ hears it two steps ahead, $\overleftarrow K_1 = 20$. $y_1$ hears it one step ahead, $\overleftarrow K_0 = 10$, and $y_2$ hears the present, $K_0 = 1$. So $y = (20, 10, 1)$.
#
# ````{admonition} Trap: whose sample counts twice
# :class: warning
#
# The obvious way, to run one kernel forwards, the other over the reversed input, reverse its output and add both, hears the present twice: with $K_0$ and with $\overleftarrow K_0$. In the example it gives $(30, 20, 11)$. Every number is wrong: the present by 10, the others because the future is heard one step too early. The repair is to move the reversed run by one step.
# ````

# %%
K, K_reverse = jnp.array([1.0, 2, 3]), jnp.array([10.0, 20, 30])
click = jnp.array([0.0, 0, 1])


def reversed_run(u, K_reverse):
    """sum_{j>=k} K_reverse_{j-k} u_j: against the time.   (..., L)"""
    return ssm.causal_convolution(u[..., ::-1], K_reverse)[..., ::-1]


careless = ssm.causal_convolution(click, K) + reversed_run(
    click, K_reverse
)
right = ssm.two_sided_convolution(click, K, K_reverse)
later = jnp.append(reversed_run(click, K_reverse)[1:], 0)
moved_by_one = ssm.causal_convolution(click, K) + later
print("right:", np.round(right).astype(int), end=", ")
print("the present twice:", np.round(careless).astype(int))
np.testing.assert_allclose(right, [20, 10, 1], rtol=0, atol=1e-5)
np.testing.assert_allclose(moved_by_one, right, rtol=0, atol=1e-5)
np.testing.assert_allclose(careless, [30, 20, 11], rtol=0, atol=1e-5)

# %% [markdown]
# **One transform for both.** Chapter 2 put a kernel and as many zeros on a circle of $2L$ places, so that a circular convolution, which an FFT computes, does not run into itself. The place of the number that weighs $u_j$ in $y_k$ is $k - j$, counted around the circle. For the past that is $0$ to $L - 1$. For the future $k - j = -(m + 1)$ with $m = j - k - 1$, and counted around the circle
# this is $2L - 1 - m$. These are the places where the zeros were. So the second kernel stands there, backwards, and both sums are one convolution.

# %%
figure, axes = plt.subplots(figsize=(4.4, 4.4))
places = np.arange(8)
angle = np.pi / 2 - 2 * np.pi * places / 8
ring = np.linspace(0, 2 * np.pi, 200)
axes.plot(np.cos(ring), np.sin(ring), "-", color="0.7", linewidth=1)
for place, a in zip(places, angle, strict=True):
    past = place < 4
    label = (
        f"$K_{place}$" if past else rf"$\overleftarrow{{K}}_{7 - place}$"
    )
    axes.plot(
        np.cos(a),
        np.sin(a),
        "o" if past else "s",
        markersize=9,
        color=plotting.COLOURS[0] if past else plotting.COLOURS[1],
    )
    axes.text(
        1.27 * np.cos(a),
        1.27 * np.sin(a),
        label,
        ha="center",
        va="center",
        fontsize=13,
    )
    axes.text(
        0.8 * np.cos(a),
        0.8 * np.sin(a),
        place,
        ha="center",
        va="center",
        fontsize=9,
    )
axes.set(aspect="equal", xlim=(-1.6, 1.6), ylim=(-1.5, 1.5))
axes.axis("off")
plotting.show(
    figure,
    "A circle of eight places, numbered 0 to 7 clockwise, for L = 4. Places 0 to 3, round markers, hold K_0 to K_3. Places 7, 6, 5, 4, square markers, hold the reversed kernel's "
    "entries 0 to 3: its first entry stands directly before K_0.",
)
circle = jnp.concatenate([K, K_reverse[::-1]])
by_fft = jnp.fft.ifft(jnp.fft.fft(click, 6) * jnp.fft.fft(circle)).real[
    :3
]
np.testing.assert_allclose(by_fft, right, rtol=0, atol=1e-5)

# %% [markdown]
# Then the layer with `bidirectional=True`, checked against the two sums {eq}`layer-both` written as loops, with kernels from dense matrices. It has one more parameter, the second row. And it has no recurrence: a step cannot know the future. Asking for one is an error.

# %%
two_sided = shaken(
    layers.S4(H, N, L, rngs=nnx.Rngs(0), bidirectional=True), 2
)
assert "C_tilde_reverse" in nnx.state(two_sided)
one_way = S4Layer(H, N, L, nnx.Rngs(0))
kernels = []
for name in ("C_tilde", "C_tilde_reverse"):
    taken = {
        k: v
        for k, v in nnx.state(two_sided).items()
        if "C_tilde" not in k
    }
    nnx.update(
        one_way,
        nnx.State(taken | {"C_tilde": nnx.state(two_sided)[name]}),
    )
    impulse = jnp.zeros((1, L, H)).at[:, 0].set(1.0)
    K = by_recurrence(one_way, impulse)[0]  # (L, H), and D at l = 0
    K[0] -= np.asarray(one_way.D[...])
    kernels.append(K)
K, K_reverse = kernels
by_loops = np.asarray(u) * np.asarray(two_sided.D[...])
for k in range(L):
    for j in range(L):
        weight = K[k - j] if j <= k else K_reverse[j - k - 1]
        by_loops[:, k] += weight * np.asarray(u[:, j])
assert error(run(two_sided, u), by_loops) < 1e-5
try:
    two_sided.as_recurrence()
    raise AssertionError("a recurrence that reads the future")
except ValueError as refusal:
    print("refused:", refusal)

# %% [markdown]
# ## Batches of unequal lengths
#
# Sequences in one batch must have the same number of steps, real ones rarely do. The short ones are filled up, *padded*, and the layer is told how many steps of each row count: `lengths`. What stands behind the end must change nothing before it. For a causal layer that seems clear by itself, but an FFT mixes all steps: one NaN in the padding, and the whole row is NaN. (It happens, with data
# where NaN means "missing".) And a bidirectional layer would read the padding as the future. So the padding is replaced by zeros first, and by `jnp.where`, not by a product, since zero times NaN is NaN.

# %%
lengths = jnp.array([10, 64, 33, 1])
behind = jnp.arange(L)[None, :, None] >= lengths[:, None, None]
poisoned = jnp.where(behind, jnp.nan, u)
run_padded = nnx.jit(lambda module, u, lengths: module(u, lengths))
y_padded = run_padded(packaged, poisoned, lengths)
both_ways = run_padded(two_sided, poisoned, lengths)
alone = run(two_sided, u[2:3, :33])  # the third row by itself
for i, length in enumerate(lengths):
    assert error(y_padded[i, :length], exact[i, :length]) < 1e-5
assert error(both_ways[2:3, :33], alone) < 1e-5
assert jnp.isnan(run(packaged, poisoned)).any()  # without lengths
print("what stands behind the end changes nothing, not even NaN")

# %% [markdown]
# ## What learns slowly
#
# All parameters now learn. At the same rate? The advice that comes with S4 is: not. $\Lambda$, $P$, $B$ and the step learn at a lower rate and without weight decay. Advice can be measured. First, how far does the kernel move if a parameter changes by 1 %, each of its numbers up or down at random? For $B$ and $\tilde C$ it can be guessed: the kernel is linear in both, so about 1 %.
#
# For the frequencies a guess needs a moment. A mode turns by the angle $\mu_n t$ in the time $t$. Changing $\mu_n$ by 1 % shifts it by $0.01\,\mu_n t$. With $N = 32$ the largest $\mu_n$ is about 320, so after one unit of time its phase is off by 3.2, half a turn. A change of the step does the same to all modes at once. So these two should move the kernel by far more than 1 %.
#
# Second, what an optimiser does is not relative. Adam divides by the gradient's size, so a step moves each *stored* number by about the learning rate, large or small. So the second column adds $\pm 0.01$ to each stored number. The third sets what is stored to zero: that is where weight decay pulls.
#
# We take layers as they start, with $L = 256$, and compare the root mean square of the kernel's change with that of the kernel; the median over 64 features.

# %%
start = layers.S4(64, N, 256, rngs=nnx.Rngs(3))
graph, stored = nnx.split(start)
kernel_from = jax.jit(lambda stored: nnx.merge(graph, stored).kernel(256))
K, draw = np.asarray(kernel_from(stored)), np.random.default_rng(0)
print(f"largest frequency: {np.asarray(start.frequency[...]).max():.0f}")


def moved_by(name, change):
    """Median over the features of |K' - K| / |K|, name's numbers changed."""
    copy = nnx.clone(start)
    box = getattr(copy, name)
    box[...] = jnp.asarray(change(np.asarray(box[...])), jnp.float32)
    K_after = np.asarray(kernel_from(nnx.state(copy)))
    return np.median(
        np.linalg.norm(K_after - K, axis=1) / np.linalg.norm(K, axis=1)
    )


signs = lambda v: draw.choice([-1, 1], size=v.shape)
per_cent = {
    name: (lambda v: v * (1 + 0.01 * signs(v)))
    for name in ("frequency", "P", "B", "C_tilde")
} | {
    # 1 % of what the logarithm stands for
    name: (lambda v: v + np.log1p(0.01 * signs(v)))
    for name in ("log_step", "log_decay")
}
table = {
    name: (
        moved_by(name, per_cent[name]),
        moved_by(name, lambda v: v + 0.01 * signs(v)),
        moved_by(name, np.zeros_like),
    )
    for name in (
        "log_step",
        "frequency",
        "log_decay",
        "P",
        "B",
        "C_tilde",
    )
}
print("the kernel moves if     1 %   by 0.01    set to 0")
for name, (relative, absolute, zero) in table.items():
    print(f"{name:17} {relative:9.1%} {absolute:9.1%} {zero:11.0%}")
assert table["log_step"][0] > 0.05 and table["frequency"][0] > 0.05
assert all(
    table[name][0] < 0.02 for name in ("log_decay", "P", "B", "C_tilde")
)
assert table["log_step"][2] > 5 and table["P"][2] > 2

# %% [markdown]
# Read the table from the top. One per cent of a step moves the kernel by eight per cent, because every mode is turned further. It is also what Adam does to `log_step` at a rate of 0.01. A learning rate that suits the gate, where an entry changes one of many terms of a sum, turns the kernels over within a few updates. So what shapes the memory gets a lower rate.
#
# The last column is about weight decay, which draws each number towards zero a little in every update. Zero is a good place for the entries of a matrix: no mixture. What is it for these?
#
# * `log_step` zero is $\Delta = 1$: a whole unit of HiPPO's time for each sample. The kernel is another one, about ten times as large, and what kind of memory that is will surprise you in an exercise.
# * `P` zero is no longer HiPPO, though $B$ was made for it.
# * `frequency` zero is a memory of decaying averages and of nothing that swings.
# * `log_decay` zero is $\operatorname{Re}\lambda = -1$: it forgets twice as fast.
# * `B` or `C_tilde` zero is a kernel of zero. For the row that reads the state that is what zero is for a matrix, too: this feature says nothing. It may decay, and $\tilde C$ does. $B$ is counted with the memory.
#
# So there are three groups. A parameter's group is **declared where the parameter is**: `Slow(...)` instead of `nnx.Param(...)`, as the module above does for five of its seven. An optimiser needs no list of names. `train.grouped_adamw` reads the kind: what is `Slow` learns at a lower rate, without decay. The rest learns at the full rate, and of it decays what has two axes or more: the
# dense matrices and $\tilde C$. Vectors do not: $D$, the biases, the scales of the norms.
#
# The check is exact. With a gradient of zero Adam does nothing, and one update with the rate $\eta$ and the decay 0.05 multiplies by $1 - 0.05\,\eta$ what decays, and leaves the rest as it was, to the last bit.

# %%
names = set(nnx.state(packaged, nnx.Param))
assert set(nnx.state(packaged, layers.Slow)) == names - {"C_tilde", "D"}


def s4_model(n_layers, pooling=True):
    """The network of chapter 4, with this chapter's layer."""
    sizes = {"d_input": 1, "d_output": 10, "d_model": H, "ssm_n": N}
    options = {"l_max": L, "pooling": pooling, "rngs": nnx.Rngs(0)}
    return model.SequenceModel(
        "s4", n_layers=n_layers, **sizes, **options
    )


network = s4_model(n_layers=1)
before = nnx.state(network, nnx.Param)
optimizer = train.grouped_adamw(0.01, slow_rate=0.001, weight_decay=0.05)
silence = jax.tree.map(jnp.zeros_like, before)
moments = optimizer.init(before)
updates, _ = jax.jit(optimizer.update)(silence, moments, before)
after = optax.apply_updates(before, updates)
decayed = set()
for (path, old), (_, new) in zip(
    nnx.to_flat_state(before), nnx.to_flat_state(after), strict=True
):
    old, new = np.asarray(old[...]), np.asarray(new[...])
    if path[-1] in ("kernel", "C_tilde"):
        np.testing.assert_allclose(
            new, old * (1 - 0.05 * 0.01), rtol=1e-6
        )
        decayed.add(path[-1])
    else:
        assert np.array_equal(old, new)
print("decayed:", ", ".join(sorted(decayed)))

# %% [markdown]
# ## The block and the stack
#
# Around the layer nothing is new. Chapter 4 built the block (norm, layer, gelu, gate, dropout, and the input added again) and the stack (an encoder, blocks, a norm, a decoder), and `SequenceModel("s4", ...)` puts this chapter's layer into them. Does the *whole model* run step by step, too?
#
# Look at its parts. The norm works on the features of one time step. So do gelu, the gate, the encoder and the decoder. The sum adds two numbers of the same time step. Only the layers reach across time, and each of them has a recurrence. So a step of the model is a step through all of it, and its state is one state for each layer.
#
# A model with **pooling** gives one answer for a sequence, decoded from the mean over time. Its steps can give the answer *so far*: the state also carries the sum of what is averaged, and how many steps it has seen.

# %%
figure, axes = plt.subplots(figsize=(6.4, 3.6))
parts = ["encoder", "block 1", "block 2", "norm, decoder"]
for column, (k, centre) in enumerate((("k", 0.0), ("k+1", 5.0))):
    for row, part in enumerate(parts):
        stateful = part.startswith("block")
        box = FancyBboxPatch(
            (centre - 1.15, row - 0.27),
            2.3,
            0.54,
            boxstyle="round,pad=0.05",
            facecolor="#dcebf5" if stateful else "#f3efe4",
            edgecolor="0.3",
        )
        axes.add_patch(box)
        axes.text(
            centre, row, part, ha="center", va="center", fontsize=10
        )
        axes.annotate(
            "",
            (centre, row - 0.34),
            (centre, row - 0.68),
            arrowprops={"arrowstyle": "->", "color": "0.3"},
        )
        if stateful:
            axes.annotate(
                "",
                (centre + 3.7, row),
                (centre + 1.3, row),
                arrowprops={
                    "arrowstyle": "->",
                    "color": plotting.COLOURS[1],
                },
            )
            label = f"$x^{row}_{{{k}}}$"
            axes.text(
                centre + 2.5, row + 0.2, label, ha="center", fontsize=11
            )
    axes.annotate(
        "",
        (centre, 3.72),
        (centre, 3.34),
        arrowprops={"arrowstyle": "->", "color": "0.3"},
    )
    axes.text(centre, -0.95, f"$u_{{{k}}}$", ha="center", fontsize=12)
    axes.text(centre, 3.8, f"$y_{{{k}}}$", ha="center", fontsize=12)
axes.set(xlim=(-1.5, 9), ylim=(-1.1, 4.15))
axes.axis("off")
plotting.show(
    figure,
    "Two time steps of a model side by side. In each an arrow runs upwards from the input through the encoder, block 1, block 2 and norm and decoder to the output. From block to block of the "
    "next time step an arrow runs to the right: the state of that block's layer. Nothing else passes from one step to the next.",
)

# %% [markdown]
# The upper index of a state counts the layers. The check takes a model whose answers differ from step to step, 64 steps, and compares three ways: all at once, one after the other, and a prefix at once with the rest one after the other.


# %%
network = shaken(s4_model(n_layers=2, pooling=False), 4, spread=0.1)
signal = jax.random.normal(jax.random.key(2), (4, L, 1))
at_once = run(network, signal)  # (4, L, 10)
rnn = network.as_recurrence()
one_by_one, end = run_steps(rnn, signal, rnn.initial_state(4))
assert error(one_by_one, at_once) < 1e-4

prefix, state = prefill(network, signal[:, :40])
rest, _ = run_steps(rnn, signal[:, 40:], state)
assert error(np.concatenate([prefix, rest], axis=1), at_once) < 1e-4
print(
    f"{len(end.layers)} states of shape {end.layers[0].shape}", end=", "
)
print(f"after {int(end.count[0])} steps: all three ways agree to 1e-4")

pooled = nnx.clone(network)  # the same numbers, with pooling
pooled.pooling = True
rnn = pooled.as_recurrence()
so_far, _ = run_steps(rnn, signal, rnn.initial_state(4))
# The decoder is affine: the answer to the mean is the mean of the answers.
answer = at_once[:, :40].mean(axis=1)  # (4, 10)
assert error(so_far[:, 39], answer) < 1e-4

# %% [markdown]
# One more kind of number passes through such a model: **bfloat16**, with which activations take half the memory. It has eight binary digits. Would parameters be rounded to it, $\bar A$ would be nowhere near where it should be. So they are not: whatever comes in, the layer's parameters, kernel and state stay float32, and only the output is rounded back to what came in.

# %%
half = u.astype(jnp.bfloat16)
y_half, y_single = (
    run(packaged, half),
    run(packaged, half.astype(jnp.float32)),
)
assert (
    y_half.dtype == jnp.bfloat16
    and packaged.kernel(L).dtype == jnp.float32
)
distance = np.abs(np.asarray(y_half, np.float32) - y_single)
assert np.all(distance <= 2.0**-8 * np.abs(y_single) + 1e-6)

# %% [markdown]
# ## It learns
#
# A short run on the digits of chapter 4, to see that all of this can be trained. One block, eight epochs, two learning rates. The real training, with both rates chosen properly, is chapter 12's.

# %% tags=["nbval-ignore-output"]
digits = data.load("digits-classification")
network = s4_model(n_layers=1)
optimizer = train.grouped_adamw(0.03, slow_rate=0.003, weight_decay=0.01)
curve = list(
    train.fit(
        network,
        digits.train,
        epochs=8,
        batch_size=25,
        optimizer=optimizer,
    )
)
score = train.accuracy(network, digits.validation)
print("loss after each epoch:", " ".join(f"{loss:.2f}" for loss in curve))
print(f"validation accuracy {score:.2f}")
assert curve[-1] < 0.5 * curve[0] and score > 0.75

# %% [markdown]
# ## What we have, and what is missing
#
# * Every stored number may be any real number. Steps and decays are exponentials between bounds, complex numbers are pairs, and $Q = P$ makes the system stable whatever the rest says. We proved it, and 300 systems of each kind showed both sides.
# * The layer stores $\tilde C$, so it trains without a power of a matrix, and it belongs to one length: shorter inputs are exact, longer ones refused.
# * It has two modes. The recurrence is made once, in float64, solves nothing in a step, and its state is in the reader's hands. A whole model has the same two modes.
# * It can look both ways, then without a recurrence. It takes padded batches, half-precision activations and signals of another sampling rate.
# * What shapes the memory is declared `Slow`: a lower rate, no decay.
#
# What is missing is a doubt about all of this. The low-rank part $P$ has cost us Woodbury, four sums in place of one, the conversion from $\tilde C$ to $C$ and a proof. Is it worth it? [Chapter 11](11_diagonal.ipynb) leaves it out.
#
# ## Exercises

# %% [markdown]
# ````{exercise} A free Q, made stable
# :label: layer-free-q
#
# Keep $Q \neq P$, and move $\Lambda$ to the left by a real number until $A + A^*$ is negative definite. How far must it move, at most, in terms of $|P|$ and $|Q|$ (over the full state)? Draw 300 systems with $N = 8$ and measure what that does to the memory: how many times faster does the slowest mode of $\Lambda$ fade?
# ````

# %% [markdown]
# ````{solution-start} layer-free-q
# :class: dropdown
# ````
# All stars are conjugate transposes. $A + A^* = 2 \operatorname{Re} \Lambda - (P Q^* + Q P^*)$. For a state of length 1, $x^* (P Q^* + Q P^*)\, x = 2 \operatorname{Re}\,(x^* P)(Q^* x)$, which lies between $-|P||Q| + \operatorname{Re} Q^* P$ and $|P||Q| + \operatorname{Re} Q^* P$: these are the two eigenvalues of the matrix that are not zero. So it is enough to move
# each $\lambda_n$ by $\frac12\big(|P||Q| - \operatorname{Re} Q^* P\big)$ to the left, which is never more than $|P||Q|$. For $Q = P$ it is 0, which is the theorem of this chapter.
#
# It is stable, and it forgets: every mode gets the same large decay, the slow ones too. What made HiPPO a long memory is gone.

# %%
generator, faster = np.random.default_rng(5), []
for _ in range(300):
    Lambda, P, Q = random_system(generator, 8)
    size = np.linalg.norm(full(P)) * np.linalg.norm(full(Q))
    move = (size - np.vdot(full(Q), full(P)).real) / 2
    A = dense(Lambda - move, P, Q)
    assert 0 <= move <= size
    assert np.linalg.eigvalsh(A + A.conj().T).max() < 1e-9
    assert np.linalg.eigvals(A).real.max() < 0
    slowest = -Lambda.real.max()
    faster.append((slowest + move) / slowest)
print(
    f"the slowest mode fades {np.median(faster):.0f} times faster (median)"
)
assert np.median(faster) > 5

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} The state after a prefix, without a step
# :label: layer-state
#
# `prefill` takes steps to find its state. Find the same state for the layer `packaged` with convolutions alone: which rows read the real and the imaginary part of one mode ([chapter 9](09_recurrence.ipynb) had this for one system)? How many kernels does it take, and why does the package not do it?
# ````

# %% [markdown]
# ````{solution-start} layer-state
# :class: dropdown
# ````
# The row $C = \frac12 e_n$ gives $2 \operatorname{Re} C x = \operatorname{Re} x_n$, and $-\frac{i}{2} e_n$ gives $\operatorname{Re}(-i x_n) = \operatorname{Im} x_n$. Their $\tilde C$ come from `tilde`, their kernels from `kernel_dplr`. The last output of each convolution is one number of the state: $\sum_l K_l u_{L-1-l}$. That makes $N$ kernels of length $L$ for each feature. They need $N$ times the time of the one kernel and, all at once, $H N L$ numbers of memory:
# what the package avoids everywhere. $L$ steps of $9N$ multiplications keep one state.

# %%
Lambda, P, B, step = layer.system()
e_n = jnp.eye(N // 2, dtype=jnp.complex64)
rows = jnp.concatenate([e_n / 2, e_n / 2j])[:, None]  # (N, 1, N/2)
rows = jnp.broadcast_to(rows, (N, H, N // 2))
every = lambda v: jnp.broadcast_to(v[None], (N, *v.shape))
four = [every(v) for v in (Lambda, P, B, step)]
rows_tilde = tilde(four[0], four[1], rows, four[3], L)
kernels_of = jax.jit(partial(kernel_dplr, L=L))
K = kernels_of(four[0], four[1], four[1], four[2], rows_tilde, four[3])
found = jnp.einsum("nhl,blh->bhn", K, u[:, ::-1], precision="highest")
found = found[..., : N // 2] + 1j * found[..., N // 2 :]
_, state = prefill(packaged, u)
assert error(found, state) < 1e-4

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Stable and useless
# :label: layer-useless
#
# Weight decay on `log_step` would end at $\Delta = 1$. Build a layer of HiPPO's with all steps 1 and one with all steps 0.01 ($N = 32$, random $C$). How many samples back does each kernel reach: from which $l$ on is the rest of $\sum_l K_l^2$ below 1 %? Guess first: HiPPO's slowest fading is $e^{-t}$. Which of the two guesses is wrong, and which modes are to blame?
# ````

# %% [markdown]
# ````{solution-start} layer-useless
# :class: dropdown
# ````
# The square of what fades like $e^{-t}$ is $e^{-2t}$, which is 1 % at $t = 2.3$. So the guesses are 230 samples for the step 0.01, which is right, and 2 for the step 1, which is wrong by a factor of a hundred.
#
# To blame are the fast modes. For $\lambda = -\frac12 + i\mu$ with a large $\mu$ and $\Delta = 1$, the bilinear factor is $g = \frac{2 + \lambda}{2 - \lambda}$, and
#
# $$ |g|^2 = \frac{(2 - \frac12)^2 + \mu^2}{(2 + \frac12)^2 + \mu^2} = 1 - \frac{4}{(2 + \frac12)^2 + \mu^2} . $$
#
# With $\mu$ above 300 that is within 0.0001 of 1, and $g$ itself is near $-1$. The rule cannot follow a mode that turns by 300 radians in a step. It makes of it one that changes its sign in every step and hardly fades. The layer is stable, as proved, and its memory is a long flutter.

# %%
reach = {}
for step in (0.01, 1.0):
    still = layers.S4(64, 32, 512, rngs=nnx.Rngs(6))
    still.log_step[...] = jnp.full(64, jnp.log(step))
    C, P = draw_C(jax.random.key(7), 64, 16), to_complex(still.P[...])
    still.C_tilde[...] = to_pair(
        tilde(still.Lambda, P, C, still.step, 512)
    )
    K = np.asarray(kernel_of(still, 512), float)
    rest = (K**2)[:, ::-1].cumsum(axis=1)[:, ::-1]
    reach[step] = np.median((rest > 0.01 * rest[:, :1]).sum(axis=1))
    print(f"step {step}: about {reach[step]:.0e} samples")
assert 150 < reach[0.01] < 350 and reach[1.0] > 100
signs = np.sign(K[:, 100:200])  # of the kernels with the step 1
flutter = (signs[:, 1:] != signs[:, :-1]).mean()
assert flutter > 0.9
fastest = still.frequency[0].max()
g = (2 + (-0.5 + 1j * fastest)) / (2 - (-0.5 + 1j * fastest))
assert fastest > 300 and 0 < 1 - abs(g) < 1e-4 and abs(g + 1) < 0.02

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Both directions from one
# :label: layer-two-ways
#
# Take two causal layers with the same $\Lambda$, $P$, $B$ and steps, $D = 0$, and rows $\tilde C$ and $\tilde C'$. Make the output of the bidirectional layer from their outputs on $u$ and on the reversed $u$. Which shift is needed, and at which end is a zero put in?
# ````

# %% [markdown]
# ````{solution-start} layer-two-ways
# :class: dropdown
# ````
# Run the second layer on the reversed input and reverse its output: $v_k = \sum_{j \ge k} \overleftarrow K_{j-k}\, u_j$. The formula {eq}`layer-both` wants $\sum_{j > k} \overleftarrow K_{j-k-1}\, u_j$, which is $v_{k+1}$. So the reversed run is moved one step towards the beginning, and at the end, where there is no future, stands a zero.

# %%
forward, backward = (
    layers.S4(H, N, L, rngs=nnx.Rngs(0)) for _ in range(2)
)
taken = {
    k: v for k, v in nnx.state(two_sided).items() if "C_tilde" not in k
}
for one, name in ((forward, "C_tilde"), (backward, "C_tilde_reverse")):
    nnx.update(
        one, nnx.State(taken | {"C_tilde": nnx.state(two_sided)[name]})
    )
    one.D[...] = jnp.zeros(H)
v = run(backward, u[:, ::-1])[:, ::-1]
v = jnp.concatenate([v[:, 1:], jnp.zeros((len(u), 1, H))], axis=1)
both_ways = run(forward, u) + v + two_sided.D[...][None, None] * u
assert error(both_ways, run(two_sided, u)) < 1e-5

# %% [markdown]
# ````{solution-end}
# ````
