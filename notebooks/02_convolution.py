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
# # The same thing as a convolution
#
# **A recurrence takes its steps one after the other. Can all outputs be had at once?**
#
# Chapter 1 turned a differential equation into a recurrence. Here the recurrence is written out until the state disappears from it, and what remains is a convolution. The Fourier transform computes that quickly, if one trap is avoided. At the end
# one system can be run by two programs that agree to the last digits, and it is known what each of them costs.

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

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from annotated_s4 import plotting, ssm
from annotated_s4.hippo import hippo_legs, legs_basis
from annotated_s4.ssm import discretize, scan_ssm

plotting.use_style()

# %% [markdown]
# ## Unrolling by hand
#
# [Chapter 1](01_state_space_models.ipynb) ended with a system in steps,
#
# $$ x_k = \bar A\,x_{k-1} + \bar B\,u_k, \qquad y_k = C\,x_k, \qquad x_{-1} = 0. $$ (conv-recurrence)
#
# The state $x_k$ is a vector of $N$ numbers, the input $u_k$ and the output $y_k$ are one number each.
# What is inside $x_k$, once all the steps are written out? Put each line into the next:
#
# $$\begin{aligned}
# x_0 &= \bar A\,x_{-1} + \bar B u_0 = \bar B u_0, \\
# x_1 &= \bar A\,x_0 + \bar B u_1 = \bar A \bar B u_0 + \bar B u_1, \\
# x_2 &= \bar A\,x_1 + \bar B u_2 = \bar A^2 \bar B u_0 + \bar A \bar B u_1 + \bar B u_2 .
# \end{aligned}$$
#
# Every input is still there. Each step that passes multiplies it by $\bar A$ once more: an input that came $l$ steps ago
# has been multiplied by $\bar A^l$. So the guess for every $k$ is
#
# $$ x_k = \sum_{l=0}^{k} \bar A^{l} \bar B\, u_{k-l}. $$ (conv-unrolled)
#
# **Proof, by induction.** For $k = 0$ the sum has one term, $\bar A^0 \bar B u_0 = \bar B u_0$, and that is $x_0$. Suppose that the
# sum is right for $k$. Then the recurrence gives
#
# $$\begin{aligned}
# x_{k+1} &= \bar A\,x_k + \bar B\,u_{k+1} \\
#         &= \sum_{l=0}^{k} \bar A^{l+1} \bar B\,u_{k-l} + \bar B\,u_{k+1} \\
#         &= \sum_{l=1}^{k+1} \bar A^{l} \bar B\,u_{k+1-l} + \bar A^0 \bar B\,u_{k+1-0} \\
#         &= \sum_{l=0}^{k+1} \bar A^{l} \bar B\,u_{k+1-l} .
# \end{aligned}$$
#
# From the second line to the third, $l + 1$ got the name $l$. The last line takes the lone term in as $l = 0$. It is the claim for $k + 1$, so it holds for every $k$.
#
# Now read the output. $C$ does not depend on $l$ and goes under the sum:
#
# $$ y_k = C x_k = \sum_{l=0}^{k} C \bar A^{l} \bar B\, u_{k-l} = \sum_{l=0}^{k} K_l\, u_{k-l}, \qquad K_l = C \bar A^{l} \bar B . $$ (conv-sum)
#
# $C$ is a row, $\bar A^l$ a matrix and $\bar B$ a column, so $K_l$ is a single number. The state has disappeared. What is left
# are $L$ numbers $K_0, \dots, K_{L-1}$, the **kernel**, and a sum that is called a **convolution**, written $y = K * u$.
#
# Check it by hand before the computer does. Take a leaky average that keeps one half: $N = 1$, $\bar A = \bar B = \frac12$, $C = 1$, and the
# input $u = (8, 0, 4)$. Step by step, $x_0 = 4$, $x_1 = 2$, $x_2 = 1 + 2 = 3$. By the sum, the kernel is $(\frac12, \frac14, \frac18)$, and
# $y_2 = \frac12 \cdot 4 + \frac14 \cdot 0 + \frac18 \cdot 8 = 3$. The same three.
#
# In code the definition is one line. It is slow (it starts each power from the beginning) and nothing in it can hide, which makes it the measure for what follows:


# %%
def kernel_by_definition(Ab, Bb, C, L):
    """K_l = C Ab^l Bb, each power on its own.
    Ab: (N, N), Bb: (N,), C: (N,)  ->  K: (L,)
    """
    return np.array(
        [C @ np.linalg.matrix_power(np.asarray(Ab), l) @ Bb for l in range(L)]
    )


half, C_half, u_half = np.full((1, 1), 0.5), np.ones(1), np.array([8.0, 0.0, 4.0])
K_half = kernel_by_definition(half, half[0], C_half, 3)
y_half = [
    float(sum(K_half[l] * u_half[k - l] for l in range(k + 1))) for k in range(3)
]
print("kernel:", K_half.tolist())
print("output:", y_half)
assert y_half == [4.0, 2.0, 3.0]

# %% [markdown]
# ## The kernel is an answer
#
# What does the system do when it hears a single one and then silence, $u = (1, 0, 0, \dots)$? In the sum only the term with $k - l = 0$ is left, so
# $y_k = K_k$. The kernel is what the system answers to one click. Its other name says the same: the *impulse response* {cite:p}`oppenheim2010signals`.
#
# That gives a picture of a system without looking at its matrices. Three of them:
#
# * a **leaky average** that keeps nine tenths, with one number as its state;
# * the **mass on a spring** of chapter 1, now with $\omega_0 = 2\pi$ (one swing per time unit) and $\gamma = \frac12$, two numbers. $B$ is scaled so that a constant
#   push of 1 moves the mass to 1;
# * a **HiPPO memory** of sixteen numbers, which chapter 3 derives. Here it is a matrix from the package, and $C$ is set to ask it
#   "what did you hear one time unit ago?" (Chapter 3 shows why: this memory is read for the age $\tau$ with $C_n = p_n(e^{-\tau})$, polynomials that `legs_basis` evaluates;
#   here $\tau = 1$.)
#
# The last two are discretised with the bilinear rule and the steps 1/16 and 1/32. Guess what the curves look like: the average fades, the spring swings once every 16 steps,
# and the memory, if it can do what it is asked, answers after about 32 steps.

# %%
a = 0.9
spring_A = jnp.array([[0.0, 1.0], [-((2 * jnp.pi) ** 2), -1.0]])
spring_B = jnp.array([0.0, (2 * jnp.pi) ** 2])
hippo_A, hippo_B = hippo_legs(16)
one_unit_ago = legs_basis(16, np.exp([-1.0]))[0]

systems = {
    "leaky average": (jnp.array([[a]]), jnp.array([1 - a]), jnp.ones(1)),
    "spring": (*discretize(spring_A, spring_B, 1 / 16), jnp.array([1.0, 0.0])),
    "HiPPO": (*discretize(hippo_A, hippo_B, 1 / 32), one_unit_ago),
}
kernels = {
    name: kernel_by_definition(*system, 96) for name, system in systems.items()
}

click = jnp.zeros(96).at[0].set(1.0)
for name, system in systems.items():
    answer = scan_ssm(*system, click)[1]
    np.testing.assert_allclose(answer, kernels[name], rtol=0, atol=1e-14)
print(
    "the HiPPO memory answers most strongly after",
    kernels["HiPPO"].argmax(),
    "steps",
)
assert abs(kernels["HiPPO"].argmax() - 32) <= 1

figure, panels = plt.subplots(1, 3, figsize=(7.6, 2.5))
for panel, (name, K) in zip(panels, kernels.items(), strict=True):
    panel.plot(K, marker=".", markersize=3, linestyle="-", linewidth=1)
    panel.set_xlabel("steps ago, $l$")
    panel.set_title(name, fontsize=10)
panels[0].set_ylabel("kernel, $K_l$")
plotting.show(
    figure,
    "Three kernels over 96 steps. The leaky average falls smoothly from 0.1 towards zero. The spring swings around zero with a period "
    "of 16 steps and fades. The HiPPO memory ripples around zero, has one tall bump near 31 steps, and is close to zero after 60. "
    "A kernel shows what each system remembers, and when.",
)

# %% [markdown]
# As guessed. The leaky average weighs the newest input most and has no other choice. The memory of sixteen numbers can point at a place in the past.
# (`scan_ssm` is the scan of chapter 1.)
#
# ## The future has no say
#
# In the sum {eq}`conv-sum` the output $y_k$ sees $u_k, u_{k-1}, \dots, u_0$ and nothing later. Such a system is called **causal**: changing $u$ at one time never changes $y$ at
# an earlier time. Written for all $k$ at once, the sum is a matrix times a vector. For $L = 4$:
#
# $$ \begin{pmatrix} y_0 \\ y_1 \\ y_2 \\ y_3 \end{pmatrix} =
# \begin{pmatrix} K_0 & & & \\ K_1 & K_0 & & \\ K_2 & K_1 & K_0 & \\ K_3 & K_2 & K_1 & K_0 \end{pmatrix}
# \begin{pmatrix} u_0 \\ u_1 \\ u_2 \\ u_3 \end{pmatrix} $$ (conv-toeplitz)
#
# Row $k$ is the equation for $y_k$. The entry in row $k$ and column $k - l$ is $K_l$: it depends on the distance from the diagonal alone (a *Toeplitz* matrix), and above the diagonal, where the future would be, stand zeros.


# %%
def toeplitz(K):
    """Row k, column k - l holds K_l; zero above the diagonal.
    K: (L,)  ->  (L, L)
    """
    k = jnp.arange(K.shape[-1])
    lag = k[:, None] - k[None, :]  # (L, L): how many steps ago
    return jnp.where(lag >= 0, K[lag], 0)


# %% [markdown]
# There is a way to get this matrix from the recurrence, without any formula of this chapter. `jax.jacobian` takes a function and returns one that computes all derivatives $\partial y_k / \partial u_{k'}$ by
# automatic differentiation. The outputs are linear in the inputs, so their derivatives are the entries of the matrix:

# %%
L = 24
u = jax.random.normal(jax.random.key(0), (L,))
for name, system in systems.items():
    jacobian = jax.jacobian(lambda u, system=system: scan_ssm(*system, u)[1])(u)
    np.testing.assert_allclose(
        jacobian, toeplitz(kernels[name][:L]), rtol=0, atol=1e-14
    )
    assert np.all(np.triu(jacobian, 1) == 0), "an input changed an output before it"

figure, axes = plt.subplots(figsize=(4.6, 3.6))
weights = np.array(toeplitz(kernels["spring"][:L]))
weights[np.triu_indices(L, 1)] = np.nan  # left blank
picture = axes.imshow(weights, vmin=-0.35, vmax=0.35)
axes.text(15.5, 5, "the future:\nzero", ha="center")
axes.set(xlabel="input at step", ylabel="output at step")
axes.grid(False)
figure.colorbar(picture, label="weight")
plotting.show(
    figure,
    "The matrix of 24 by 24 weights that maps the spring's inputs to its outputs. Each diagonal has one shade: a weight depends on the distance alone. "
    "Bright and dark bands alternate below the diagonal as the spring swings. The upper right triangle, where an input is later than the output, is left blank: it is exactly zero.",
)

# %% [markdown]
# The derivatives above the diagonal are exactly zero, so the recurrence is causal for every pair of times. Below it the two roads agree for all three systems.
#
# ## Sliding
#
# The same sum can be watched. Turn the kernel around, so that $K_0$ stands above the present and $K_l$ above the input of $l$ steps ago. Multiply what stands above
# each other, add, and write the sum down as $y_k$. Then move the kernel on by one step.

# %%
L = 30
u_blocks = np.zeros(L)
u_blocks[3:7], u_blocks[15:18], u_blocks[24] = 1.0, -0.8, 1.0
K = kernels["spring"][:L]
y_blocks = np.convolve(u_blocks, K)[:L]

figure, (above, below) = plt.subplots(2, 1, figsize=(6.0, 3.8), sharex=True)
above.vlines(range(L), 0, u_blocks, color="0.6", linewidth=4, label="input")
(weights,) = above.plot(
    [], [], marker=".", markersize=4, linewidth=1, label="kernel, turned around"
)
(so_far,) = below.plot([], [], marker=".", markersize=4, linewidth=1)
(now,) = below.plot(
    [], [], marker="o", markersize=7, linestyle="none", color=plotting.COLOURS[1]
)
above.set(ylim=(-1.05, 1.65), ylabel="input, kernel")
above.legend(loc="upper right", ncols=2, fontsize=8)
below.set(
    xlim=(-1, L),
    ylim=(1.1 * y_blocks.min(), 1.1 * y_blocks.max()),
    xlabel="step, $k$",
    ylabel="output",
)
figure.draw_without_rendering()  # place the axes once,
figure.set_layout_engine("none")  # and leave them there in every frame


def draw(k):
    """The kernel with its head at step k, and the outputs up to k."""
    weights.set_data(np.arange(k + 1), K[k::-1])
    so_far.set_data(np.arange(k + 1), y_blocks[: k + 1])
    now.set_data([k], [y_blocks[k]])


plotting.animate(
    figure,
    draw,
    frames=L,
    alt="The spring's kernel, turned around in time, slides from left to right over an input of three separate blocks. Below, at the kernel's head, "
    "the sum of input times kernel appears as the output, one step after the other: it swings after each block.",
)

# %% [markdown]
# `np.convolve` computes the same sum and lets it run on after the inputs have ended, for $2L - 1$ outputs. The first $L$ are ours:

# %%
u = jax.random.normal(jax.random.key(1), (96,))
for name, system in systems.items():
    y = scan_ssm(*system, u)[1]
    direct = np.convolve(u, kernels[name])[:96]
    np.testing.assert_allclose(direct, y, rtol=0, atol=1e-13)
    np.testing.assert_allclose(toeplitz(kernels[name]) @ u, y, rtol=0, atol=1e-13)

# %% [markdown]
# Once the kernel is known, all outputs can be computed at the same time. None has to wait for the one before it. But the sum has $1 + 2 + \dots + L = L(L+1)/2$ products:
# for a thousand steps half a million, for a million steps half a million million. There is a road with about $L \log L$, and it leads through the Fourier transform.
#
# ## A product of transforms goes round in a circle
#
# Write $z_j$ for the $L$-th roots of one, $L$ points on the unit circle, clockwise from 1:
#
# $$ z_j = e^{-2 \pi i j / L}, \qquad j = 0, \dots, L - 1, \qquad z_j^{L} = e^{-2 \pi i j} = 1. $$ (conv-roots)
#
# The **discrete Fourier transform** (DFT) of a sequence takes the sequence as the coefficients of a polynomial and evaluates it at these $L$ points:
#
# $$ \hat K_j = \sum_{l=0}^{L-1} K_l\, z_j^{\,l}, \qquad \hat u_j = \sum_{k=0}^{L-1} u_k\, z_j^{\,k} . $$ (conv-dft)
#
# **The way back.** From the values $\hat K_j$ the sequence is found again by
#
# $$ K_k = \frac1L \sum_{j=0}^{L-1} \hat K_j\, z_j^{-k} . $$ (conv-inverse)
#
# To see why, put the definition in and change the order of the two sums:
#
# $$ \frac1L \sum_{j=0}^{L-1} \sum_{l=0}^{L-1} K_l\, z_j^{\,l}\, z_j^{-k} = \sum_{l=0}^{L-1} K_l \left[ \frac1L \sum_{j=0}^{L-1} z_j^{\,l-k} \right]. $$
#
# Since $z_j = z_1^{\,j}$, the bracket is a geometric series with the ratio $z_1^{\,l-k}$. For $l = k$ the ratio is 1, all $L$ terms are 1, and the bracket is 1. For every other $l$ between 0 and $L - 1$ the ratio is not 1
# (as $l - k$ is no multiple of $L$), and the series adds up to
#
# $$ \sum_{j=0}^{L-1} \left( z_1^{\,l-k} \right)^j = \frac{ \left( z_1^{\,l-k} \right)^{L} - 1 }{ z_1^{\,l-k} - 1 } = \frac{ \left( z_1^{L} \right)^{l-k} - 1 }{ z_1^{\,l-k} - 1 } = \frac{1 - 1}{ z_1^{\,l-k} - 1 } = 0 . $$
#
# So only the term $l = k$ is left, and it is $K_k$.
#
# **The product.** Which sequence has the transform $\hat K_j \hat u_j$? Two remarks prepare the answer. As $z_j^L = 1$, the power $z_j^{\,k}$ depends only on
# the remainder of $k$ on division by $L$. We write $k \bmod L$ for that: a number from 0 to $L - 1$, also for negative $k$ (so $-1 \bmod 4 = 3$). And when $k$ runs through $0, \dots, L - 1$, then $(k - l) \bmod L$ runs through the same numbers in another order. So for any fixed $l$
#
# $$ \hat u_j = \sum_{k=0}^{L-1} u_{(k-l) \bmod L}\; z_j^{\,k-l} : $$
#
# the same terms, summed in another order. Use it inside the product, for each $l$ with that $l$:
#
# $$\begin{aligned}
# \hat K_j\, \hat u_j &= \sum_{l=0}^{L-1} K_l\, z_j^{\,l}\; \hat u_j \\
# &= \sum_{l=0}^{L-1} K_l\, z_j^{\,l} \sum_{k=0}^{L-1} u_{(k-l) \bmod L}\; z_j^{\,k-l} \\
# &= \sum_{k=0}^{L-1} \left[ \sum_{l=0}^{L-1} K_l\, u_{(k-l) \bmod L} \right] z_j^{\,k} .
# \end{aligned}$$ (conv-circular)
#
# From the second line to the third, $z_j^{\,l}\, z_j^{\,k-l} = z_j^{\,k}$, and the sums changed places. The last line is the transform of what stands in the bracket. It is *almost* our sum. But $l$ runs to $L - 1$ and not to $k$, and for
# $l > k$ the index $k - l$ is negative and goes around to the end: $y_0$ gets $K_1 u_{L-1}$, an input from the future. This is a **circular convolution**.
#
# Three functions, one for each line above:


# %%
def dft(v):
    """v^_j = sum_k v_k z_j^k with z_j = exp(-2 pi i j / L), as a matrix product.
    v: (L,)  ->  (L,)
    """
    k = np.arange(len(v))
    return np.exp(-2j * np.pi * np.outer(k, k) / len(v)) @ v


def inverse_dft(v):
    """v_k = 1/L sum_j v^_j z_j^-k.   v: (L,)  ->  (L,)"""
    return dft(v.conj()).conj() / len(v)


def circular_convolution(u, K):
    """y_k = sum_l K_l u_((k - l) mod L), over all l.   u, K: (L,)  ->  y: (L,)"""
    k = np.arange(len(u))
    return np.asarray(u)[(k[:, None] - k[None, :]) % len(u)] @ K


for L in (4, 5, 96):
    u, K = np.random.default_rng(L).normal(size=(2, L))
    np.testing.assert_allclose(dft(u), np.fft.fft(u), rtol=0, atol=1e-11)
    np.testing.assert_allclose(inverse_dft(dft(K)), K, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        inverse_dft(dft(K) * dft(u)), circular_convolution(u, K), rtol=0, atol=1e-11
    )
    np.testing.assert_allclose(
        np.fft.ifft(np.fft.fft(K) * np.fft.fft(u)),
        circular_convolution(u, K),
        rtol=0,
        atol=1e-12,
    )

# %% [markdown]
# (`inverse_dft` uses that the conjugate of $z_j^{\,k}$ is $z_j^{-k}$: conjugating before and after turns each $z_j^{\,k}$ around and leaves the numbers $\hat K_j$ as they were.)
#
# How wrong is the circle? Take four steps and make the input a single click of 8 at the very end, $u = (0, 0, 0, 8)$, with the kernel $K = (1, \frac12, \frac14, \frac18)$.
# The right answer is silence until the click: $(0, 0, 0, 8)$. The rest of the answer, $4, 2, 1$, would come in steps 4, 5, 6, which are past the end. On the circle, step 4 is step 0:

# %%
u_click = np.array([0.0, 0.0, 0.0, 8.0])
K_click = np.array([1, 1 / 2, 1 / 4, 1 / 8])
around = jnp.fft.irfft(jnp.fft.rfft(u_click) * jnp.fft.rfft(K_click), n=4)
straight = np.convolve(u_click, K_click)[:4]
print("product of transforms:", [round(float(value), 6) + 0.0 for value in around])
print("causal convolution:   ", straight.tolist())
np.testing.assert_allclose(around, [4, 2, 1, 8], rtol=0, atol=1e-12)
np.testing.assert_allclose(straight, [0, 0, 0, 8])

# %% [markdown]
# ````{admonition} An answer before the question
# :class: warning
#
# `irfft(rfft(u) * rfft(K))` gives $(4, 2, 1, 8)$ where $(0, 0, 0, 8)$ is right. No error is raised, the shapes fit, and the last number is even correct. A model that is trained to predict the next step with such a layer
# sees what it should predict, reaches a wonderful loss, and fails when it has to generate.
# ````
#
# ## Zeros behind the end
#
# The cure is room. Put $L$ zeros behind $u$ and $L$ zeros behind $K$, and use transforms of length $2L$. Everything above holds with $2L$ in the place of $L$:
#
# $$ y_k = \sum_{l=0}^{2L-1} K_l\, u_{(k-l) \bmod 2L} . $$ (conv-padded)
#
# Look at an output $k < L$ and go through the terms:
#
# * $l \ge L$: here $K_l$ is one of the zeros.
# * $l \le k$: the index $k - l$ lies between 0 and $L - 1$. These are the terms that we want.
# * $k < l \le L - 1$: the index is $k - l + 2L$. It is at least $0 - (L - 1) + 2L = L + 1$, so $u$ is one of the zeros there.
#
# What is left is $\sum_{l=0}^{k} K_l u_{k-l}$, the causal sum. Outputs with $k \ge L$ hold the tail (and what comes around), and we cut them off.
#
# One more saving. For real $u$ the conjugate of $\hat u_j$ is $\hat u_{-j \bmod 2L}$, since the conjugate of $z_j$ is $z_{-j}$. So the values with $0 \le j \le L$ are enough. `rfft` computes these alone, and `irfft` goes back. An even and an odd length can have the same number of such values, which is why `irfft` is told the length, `n=2 * L`.


# %%
def causal_convolution(u, K):
    """y_k = sum_{l=0}^k K_l u_{k-l}, by FFTs of length 2 L.
    u, K: (..., L)  ->  y: (..., L)
    """
    L = u.shape[-1]
    u_hat = jnp.fft.rfft(u, n=2 * L)  # n = 2 L puts the zeros behind the end
    K_hat = jnp.fft.rfft(K, n=2 * L)
    return jnp.fft.irfft(u_hat * K_hat, n=2 * L)[..., :L]


np.testing.assert_allclose(
    causal_convolution(u_click, K_click), [0, 0, 0, 8], rtol=0, atol=1e-14
)
for L in (1, 2, 97):
    u, K = np.random.default_rng(L).normal(size=(2, L))
    y = causal_convolution(u, K)
    direct = np.convolve(u, K)[:L]  # an independent direct sum
    np.testing.assert_allclose(y, direct, rtol=0, atol=1e-13)
    packages_own = ssm.causal_convolution(u, K)
    np.testing.assert_allclose(y, packages_own, rtol=0, atol=1e-13)

# %% [markdown]
# On a longer input the difference can be seen. The spring is pushed near the end of 64 steps:

# %%
L = 64
K = kernels["spring"][:L]
u_late = np.zeros(L)
u_late[52:55] = 1.0
around, straight = circular_convolution(u_late, K), causal_convolution(u_late, K)
wrong = np.max(np.abs(around - straight)[:52]) / np.max(np.abs(straight))
print(f"before the push: {wrong:.0%} of the largest right output, where 0 is right")
assert np.max(np.abs(straight[:52])) < 1e-14 and wrong > 0.5

figure, axes = plt.subplots()
axes.axvspan(52, 54, color="0.85", label="push")
axes.plot(straight, label="with zeros behind the end", linewidth=3)
axes.plot(around, marker=".", label="without: circular")
axes.set(xlabel="step, $k$", ylabel="output", ylim=(-0.9, 2.1))
axes.legend(loc="upper left", ncols=3, fontsize=8)
plotting.show(
    figure,
    "Outputs of the spring that is pushed at steps 52 to 54 of 64. With zeros behind the end the output is zero until the push and swings afterwards. Without them the output "
    "swings from step 0 on: the answer to the push has run over the end and come back at the start. From the push on the two nearly coincide.",
)

# %% [markdown]
# Is the transform as causal as the recurrence? In exact arithmetic, yes. In a computer every output of an FFT is a mixture of all inputs, so a later input leaves
# a trace of rounding in an earlier output. And where an input is not a number, the mixture is not a number anywhere:

# %%
k_change = 40
u = jax.random.normal(jax.random.key(2), (L,))
u_changed, u_broken = u.at[k_change].add(1.0), u.at[k_change].set(jnp.nan)

step_by_step = [
    scan_ssm(*systems["spring"], v)[1] for v in (u, u_changed, u_broken)
]
by_transform = [causal_convolution(v, K) for v in (u, u_changed, u_broken)]
for changed in step_by_step[1:]:
    # bit for bit:
    assert np.array_equal(step_by_step[0][:k_change], changed[:k_change])
change = np.abs(by_transform[1] - by_transform[0])
assert change[:k_change].max() < 1e-14 < change[k_change:].max()
assert np.all(np.isnan(by_transform[2]))

jacobian = jax.jacobian(lambda u: causal_convolution(u, K))(u)
assert np.max(np.abs(np.triu(jacobian, 1))) < 1e-14
np.testing.assert_allclose(jacobian, toeplitz(K), rtol=0, atol=1e-14)

# %% [markdown]
# ## One system, two programs
#
# The claim of this chapter is now a check. The same system is run as a recurrence, step by step, and as a convolution, kernel first and then all steps at once. People say *RNN mode* and *CNN mode*, after
# recurrent and convolutional networks.
#
# How close should they be? Both are sums of products in another order, so they should agree up to rounding: about $10^{-16}$ of the largest output in float64, and $10^{-7}$ in
# float32, times a factor that grows slowly with $L$. We ask for $10^{-12}$ and $10^{-5}$. Two of the systems have complex states, as those of Part II will: the spring again, written in the
# basis of its eigenvectors, and a random one whose outputs are complex too. With $\bar A = V G V^{-1}$ and $G$ diagonal,
#
# $$ K_l = C\,(V G V^{-1})^l\, \bar B = (C V)\, G^l\, (V^{-1} \bar B), $$
#
# since $V^{-1} V$ cancels between neighbouring factors: another basis, other matrices, the same kernel. (No conjugate appears: $C V$ and $V^{-1} \bar B$ are plain products.) The input is
# real, and a complex kernel is two real ones, $y = \mathrm{Re}\,K * u + i\; \mathrm{Im}\,K * u$.

# %%
g, V = np.linalg.eig(np.asarray(systems["spring"][0]))
draws = np.random.default_rng(0)
random_A, random_B, random_C = (
    draws.normal(size=(*shape, 2)) @ [1, 1j] for shape in ((6, 6), (6,), (6,))
)
# The largest eigenvalue gets the absolute value 0.95:
random_A *= 0.95 / np.max(np.abs(np.linalg.eigvals(random_A)))
checked = systems | {
    "spring, eigenvectors": (
        np.diag(g),
        np.linalg.solve(V, systems["spring"][1]),
        systems["spring"][2] @ V,
    ),
    "random complex": (random_A, random_B, random_C),
}


def recurrence_by_numpy(Ab, Bb, C, u):
    """x_k = Ab x_{k-1} + Bb u_k, y_k = C x_k as a loop in float64: the oracle.
    u: (L,)  ->  y: (L,)
    """
    x, y = np.zeros_like(Bb), []
    for u_k in u:
        x = Ab @ x + Bb * u_k
        y.append(C @ x)
    return np.array(y)


def convolution_mode(Ab, Bb, C, u):
    """y = K * u with K_l = C Ab^l Bb; real and imaginary parts are convolved apart.
    u: (L,)  ->  y: (L,)
    """
    K = ssm.kernel_by_powers(Ab, Bb, C, u.shape[-1])
    if not jnp.iscomplexobj(K):
        return causal_convolution(u, K)
    return causal_convolution(u, K.real) + 1j * causal_convolution(u, K.imag)


def relative_error(y, right):
    """The largest error, as a share of the largest right value."""
    return float(np.max(np.abs(np.asarray(y) - right)) / np.max(np.abs(right)))


u = np.asarray(jax.random.normal(jax.random.key(3), (512,)))
for name, system in checked.items():
    system = [np.asarray(part) for part in system]
    right = recurrence_by_numpy(*system, u)
    for real, complex_, bound in (
        (np.float64, np.complex128, 1e-12),
        (np.float32, np.complex64, 1e-5),
    ):
        *parts, inputs = (
            jnp.asarray(part, complex_ if np.iscomplexobj(part) else real)
            for part in (*system, u)
        )
        stepped = scan_ssm(*parts, inputs)[1]
        convolved = convolution_mode(*parts, inputs)
        wanted = complex_ if np.iscomplexobj(right) else real
        assert stepped.dtype == convolved.dtype == wanted
        assert relative_error(convolved, stepped) < bound, (name, real)
        for y in (stepped, convolved):
            assert relative_error(y, right) < bound, (name, real)
    print(f"{name:20}  float64: below 1e-12   float32: below 1e-5")

np.testing.assert_allclose(
    ssm.kernel_by_powers(*map(jnp.asarray, checked["spring, eigenvectors"]), 96),
    kernels["spring"],
    rtol=0,
    atol=1e-13,
)

# %% [markdown]
# Ten comparisons of two programs, and each program against a third that is a plain NumPy loop. (`ssm.kernel_by_powers` is derived below.)
#
# ## What the float32 transform loses
#
# The bound above was a share of the *largest* output. That is no accident of the check, it is a property of the FFT. It makes a small output as a sum in which numbers as large as the largest ones cancel, and each of these was rounded. So every output, large or
# small, gets an error of about $10^{-7}$ (in float32) of the *largest* one.
#
# Take the leaky average with $a = 0.9$ and one click. Its true answer $0.1 \cdot 0.9^k$ sinks steadily: $\log_{10} 0.9 = -0.0458$, so 256 steps lower it by $256 \cdot 0.0458 = 11.7$ orders of magnitude. The transform should be lost from
# where the answer falls below $10^{-7}$ of its start, at $k = 7 / 0.0458 = 153$. The recurrence only multiplies, so it should keep its digits all the way.

# %%
L = 256
true = (1 - a) * a ** np.arange(L)
single = np.float32
u_first = np.eye(1, L)[0]
by_fft = np.asarray(causal_convolution(u_first.astype(single), true.astype(single)))
single_system = (part.astype(single) for part in systems["leaky average"])
by_scan = np.asarray(scan_ssm(*single_system, u_first.astype(single))[1])

assert by_fft.dtype == by_scan.dtype == single
assert relative_error(by_fft, true) < 1e-6  # of the largest output: fine
# of itself: the last outputs are noise
assert np.median(np.abs(by_fft - true)[200:] / true[200:]) > 1
assert np.max(np.abs(by_scan - true) / true) < 1e-4  # of itself, everywhere
# in float64 the floor lies nine orders lower
assert relative_error(causal_convolution(u_first, true), true) < 1e-14
print(f"the answer sinks by {np.log10(true[0] / true[-1]):.1f} orders of magnitude")

figure, axes = plt.subplots()
axes.semilogy(
    np.abs(by_fft),
    marker=".",
    markersize=4,
    linestyle="none",
    color=plotting.COLOURS[1],
    label="float32, transform",
)
axes.semilogy(true, label="true", linewidth=3)
axes.semilogy(by_scan, label="float32, recurrence", color="black")
axes.axhline(
    1e-7 * true.max(), color="0.4", linestyle=":", label=r"$10^{-7}$ of the largest"
)
axes.set(xlabel="step, $k$", ylabel="size of the output", ylim=(1e-14, 1))
axes.legend(fontsize=8)
plotting.show(
    figure,
    "Outputs of a leaky average after one click, on a logarithmic scale, over 256 steps. The true line falls from 0.1 to below 1e-12, and the float32 recurrence lies on it. "
    "The float32 transform follows to about step 150; then its values scatter around 1e-9, a floor that does not fall any more.",
)

# %% [markdown]
# ````{admonition} Relative to what?
# :class: warning
#
# `np.testing.assert_allclose(y_fft, y, rtol=1e-5)` asks for five digits of *each* output. In float32 it fails for outputs that have decayed, although nothing is wrong: here the last ones miss by more than their own size.
# Right is a tolerance that is scaled by the largest output, $\max_k |\text{error}_k| < 10^{-5} \max_k |y_k|$. And if the small outputs matter, the transform in float32 is the wrong tool.
# ````
#
# There is a second way to lose digits without noticing, on recent GPUs. They may round the factors of a float32 matrix product to ten bits after the leading one (the format is called TF32), for speed.
# `jax.lax.reduce_precision` does that rounding on any machine. Ten bits are an error of up to $2^{-11}$, about five in ten thousand, for each factor, and the recurrence
# hands its errors on:


# %%
def recurrence_with_rounding(Ab, Bb, C, u, rounding):
    """x_k = Ab x_{k-1} + Bb u_k, y_k = C x_k, with every factor of a matrix
    product rounded first.   u: (L,)  ->  y: (L,)
    """

    def advance(x, u_k):
        x = jnp.matmul(rounding(Ab), rounding(x), precision="highest") + Bb * u_k
        return x, jnp.matmul(rounding(C), rounding(x), precision="highest")

    return jax.lax.scan(advance, jnp.zeros_like(Bb), u)[1]


def ten_bits(value):
    """The nearest number with ten bits behind the leading one."""
    return jax.lax.reduce_precision(value, exponent_bits=8, mantissa_bits=10)


slow_spring = (*discretize(spring_A, spring_B, 1 / 64), jnp.array([1.0, 0.0]))
right = recurrence_by_numpy(*map(np.asarray, slow_spring), u)
*parts, inputs = (jnp.asarray(part, jnp.float32) for part in (*slow_spring, u))
full = relative_error(
    recurrence_with_rounding(*parts, inputs, lambda value: value), right
)
rounded = relative_error(recurrence_with_rounding(*parts, inputs, ten_bits), right)
assert full < 1e-5 and 1e-3 < rounded < 1e-1
print(
    "float32: below 1e-5 of the largest output. "
    "With factors of ten bits: above 1e-3"
)

# %% [markdown]
# This is why the package's products say `precision="highest"`: a check on a GPU should show the error of the algorithm, not that of rounded products.
#
# ## Three ways to the kernel
#
# Now to the kernel itself, $K_l = C \bar A^l \bar B$ for $l < L$. How much work is it?
#
# 1. **Each power on its own**, as in the definition. `matrix_power` squares its way up: $\bar A, \bar A^2, \bar A^4, \dots$, and multiplies those together that make up $l$. Written in binary, $l$ has some number of digits and some number of ones. That takes (digits $-$ 1) squarings and (ones $-$ 1) further products of
#    two matrices, $N^3$ multiplications each. (To keep one running power $\bar A^l$ instead would take one such product for each $l$: $L N^3$ in all.)
# 2. **A vector instead of a matrix.** The power itself is not needed, only $\bar A^l \bar B$. Start from $\bar B$ and multiply the *vector* by $\bar A$ again and again. That is $N^2$ for each step, $L N^2$ in all: $N$ times less than with a running power.
# 3. **The same as a scan.** The arithmetic of the second way, with `jax.lax.scan` in place of the Python loop.
#
# The second and third need the same arithmetic but are not the same program. (As in chapter 1, `jit` records the operations once: a loop $L$ times, a scan once.)


# %%
def kernel_by_matrix_powers(Ab, Bb, C, L):
    """K_l = C Ab^l Bb, each power on its own.   (N, N), (N,), (N,)  ->  (L,)"""
    return jnp.stack([C @ jnp.linalg.matrix_power(Ab, l) @ Bb for l in range(L)])


def kernel_by_loop(Ab, Bb, C, L):
    """x <- Ab x from x = Bb, and K_l = C x, as a loop in Python.
    (N, N), (N,), (N,)  ->  (L,)
    """
    x, K = Bb, []
    for _ in range(L):
        K.append(C @ x)
        x = Ab @ x
    return jnp.stack(K)


def kernel_by_powers(Ab, Bb, C, L):
    """x <- Ab x from x = Bb, and K_l = C x, as a scan.
    (N, N), (N,), (N,)  ->  (L,)
    """

    def advance(x, _):
        K_l = jnp.matmul(C, x, precision="highest")
        return jnp.matmul(Ab, x, precision="highest"), K_l

    return jax.lax.scan(advance, Bb, None, length=L)[1]


for name, system in systems.items():
    np.testing.assert_allclose(
        kernel_by_powers(*system, 96), kernels[name], rtol=0, atol=1e-13
    )
    np.testing.assert_allclose(
        ssm.kernel_by_powers(*system, 96), kernels[name], rtol=0, atol=1e-13
    )
for kernel in (kernel_by_matrix_powers, kernel_by_loop):
    # L is part of the program, not an input:
    compiled = jax.jit(kernel, static_argnums=3)
    np.testing.assert_allclose(
        compiled(*systems["spring"], 12), kernels["spring"][:12], rtol=0, atol=1e-13
    )


# %% [markdown]
# `jax.make_jaxpr` returns the record itself, and each of its lines has the form `name = operation`. So the length of the program can be counted, and it does not depend on the machine.
#
# The first way can be counted by hand. The numbers from 1 to 63 have six binary digits at most: one of them has one digit, two have two, then 4, 8, 16 and 32. The squarings are one fewer than the digits,
# $2 \cdot 1 + 4 \cdot 2 + 8 \cdot 3 + 16 \cdot 4 + 32 \cdot 5 = 258$. Each of the six digits is a one in 32 of the numbers, so there are $6 \cdot 32 = 192$ ones, and the further products are $192 - 63 = 129$. So for $L = 64$ the powers take $258 + 129 = 387$ products of two matrices,
# and the products with $C$ and $\bar B$ another $2 \cdot 64 = 128$: 515 in all. JAX must have recorded exactly these.


# %% tags=["nbval-ignore-output"]
def program_length(kernel, L):
    """The number of operations that JAX records for this kernel of length L."""
    record = jax.make_jaxpr(lambda *system: kernel(*system, L))(*systems["HiPPO"])
    return str(record).count(" = ")


for kernel in (kernel_by_matrix_powers, kernel_by_loop, kernel_by_powers):
    lengths = [program_length(kernel, L) for L in (32, 64, 128, 256)]
    print(f"{kernel.__name__:24} L = 32, 64, 128, 256: {lengths} operations")

scan_lengths = {program_length(kernel_by_powers, L) for L in (32, 256)}
growth = [
    program_length(kernel_by_loop, L + 32) - program_length(kernel_by_loop, L)
    for L in (32, 64, 128, 224)
]
assert len(scan_lengths) == 1  # the scan: one program for every length
# the loop: at least two operations more for each l
assert len(set(growth)) == 1 and growth[0] >= 64

of_matrices = sum((l.bit_length() - 1) + (l.bit_count() - 1) for l in range(1, 64))
first_way = jax.jit(kernel_by_matrix_powers, static_argnums=3)
text = first_way.lower(*systems["HiPPO"], 64).as_text()
products = text.count("stablehlo.dot_general")
print(f"the first way, L = 64: {of_matrices} + 128 by hand, {products} recorded")
assert of_matrices == 387 and products == of_matrices + 2 * 64 == 515

# %% [markdown]
# What that means in seconds differs from machine to machine. The table measures the compiler alone, for short kernels, so that nobody has to wait for the loop:

# %% tags=["nbval-ignore-output"]
seconds = {}
for kernel, lengths in (
    (kernel_by_loop, (8, 16, 24)),
    (kernel_by_powers, (8, 24, 1024)),
):
    for L in lengths:
        recorded = jax.jit(kernel, static_argnums=3).lower(*systems["HiPPO"], L)
        begin = time.perf_counter()
        recorded.compile()
        seconds[kernel.__name__, L] = time.perf_counter() - begin
        print(
            f"{kernel.__name__:18} L = {L:4}: "
            f"{seconds[kernel.__name__, L]:.2f} s to compile"
        )
# A wide bound, since the machine may be busy; the loop at L = 1024 is far beyond it.
assert seconds["kernel_by_powers", 1024] < 10 * seconds["kernel_by_powers", 8] + 5

# %% [markdown]
# ````{admonition} The loop that the compiler sees $L$ times
# :class: warning
#
# A Python loop over time inside `jit` works and gives the right numbers, and the compiler gets a program that is longer with each step: eight times the length, about eight times the program. Nothing warns. If a program needs minutes before it starts, look for
# a `for` over time and make it a `scan`: its program has one length for every $L$.
# ````
#
# ## Powers that explode, and powers that grow first
#
# The spectral radius $\rho$ of $\bar A$, the largest absolute value among its eigenvalues, decides how $\bar A^l$ behaves in the end: it grows like $\rho^l$ or fades like it (up to a power of $l$). A float32 ends near $3.4 \cdot 10^{38}$, that is $10^{38.53}$. So
# with $\rho > 1$ the kernel leaves float32 at
#
# $$ l = \frac{38.53}{\log_{10} \rho} . $$ (conv-overflow)
#
# For $\rho = 1.1$: $\log_{10} 1.1 = 0.04139$, and $38.53 / 0.04139 = 930.9$. The first power that does not fit should be number 931. The other direction is harmless: $0.9^l$ leaves float32 at the lower end and stays at zero or next to it, which misses the truth by far less
# than any rounding error of the larger entries.

# %%
one = jnp.ones(1, jnp.float32)
exploding, fading = (
    np.asarray(kernel_by_powers(rho * one[:, None], one, one, 1024))
    for rho in (1.1, 0.9)
)
assert exploding.dtype == fading.dtype == np.float32
first = int(np.argmax(~np.isfinite(exploding)))
print("the first power of 1.1 that float32 cannot hold:", first)
largest = float(np.finfo(np.float32).max)
assert first == int(np.ceil(np.log10(largest) / np.log10(1.1))) == 931
assert np.all(np.isfinite(fading)) and 0 <= fading[-1] < 1e-37

# %% [markdown]
# So keep $\rho$ below 1 and all is well? In the end, yes. Before the end there may be a hill. The smallest example has two numbers, of which the second feeds the first:
#
# $$ \bar A = \begin{pmatrix} a & 1 \\ 0 & a \end{pmatrix}, \qquad \bar A^l = \begin{pmatrix} a^l & l\,a^{l-1} \\ 0 & a^l \end{pmatrix}. $$ (conv-hump)
#
# (For $l = 1$ that is $\bar A$. Multiply once more by $\bar A$ from the right: the corner becomes $a^l \cdot 1 + l\,a^{l-1} \cdot a = (l + 1)\,a^l$, the diagonal $a^{l+1}$, and the formula holds for $l + 1$.) Both eigenvalues are $a = 0.9$, so every power
# should be smaller than the one before? The corner grows from $l$ to $l + 1$ by the factor $\frac{l+1}{l} a$, which is above 1 as long as $l < \frac{a}{1 - a} = 9$ and equal to 1 at $l = 9$. So it climbs to $9 \cdot 0.9^8 = 3.87$ and only then comes down.

# %%
feeding = np.array([[a, 1.0], [0.0, a]])
corner = [np.linalg.matrix_power(feeding, l)[0, 1] for l in range(100)]
np.testing.assert_allclose(
    corner, [l * a ** (l - 1) for l in range(100)], rtol=1e-12
)
assert np.isclose(max(corner), 9 * 0.9**8) and np.isclose(corner[9], corner[10])
print(f"the corner of the small example climbs to {max(corner):.2f}")

# %% [markdown]
# The eigenvalues do not tell this, because the eigenvectors are not at right angles (here they even coincide). A matrix whose eigenvectors can be chosen at right angles is called *normal*, and with $\rho < 1$ its powers shrink from the first step on.
# HiPPO's matrix is not normal. Discretise it in two ways, by forward Euler and by the bilinear rule, each time with a step for which $\rho < 1$, and look at the largest factor by which $\bar A^l$ can stretch a state (its spectral norm $\|\bar A^l\|$):


# %%
def norms_of_powers(Ab, l):
    """The spectral norms of Ab^l for some powers l.
    Ab: (N, N), l: (number,)  ->  (number,)
    """
    powers = [np.linalg.matrix_power(Ab, power) for power in l]
    return np.linalg.norm(powers, ord=2, axis=(1, 2))


figure, axes = plt.subplots()
l = np.arange(0, 101, 10)
for N, marker, least in ((16, "o", 1e5), (64, "s", 1e23), (128, "^", 3.4e38)):
    A, B = hippo_legs(N)
    Ab, Bb = discretize(A, B, 1.6 / N, method="euler")
    # triangular: the eigenvalues stand on the diagonal
    rho = np.max(np.abs(np.diag(Ab)))
    hill = norms_of_powers(np.asarray(Ab), l)
    axes.semilogy(l, hill, marker=marker, label=f"Euler, N = {N}")
    print(
        f"N = {N:3}: rho = {rho:.4f}, "
        f"and yet the norm climbs to 10^{np.log10(hill.max()):.0f}"
    )
    assert rho < 1 and hill.max() > least

    np.testing.assert_allclose(
        A + A.T, -(np.eye(N) + np.outer(B, B)), rtol=0, atol=1e-12 * N
    )
    for method in ("zoh", "backward_euler", "bilinear"):  # none of them stretches
        one_step = np.asarray(discretize(A, B, 1.6 / N, method)[0])
        assert np.linalg.norm(one_step, 2) < 1 + 1e-11
    bilinear = one_step

axes.semilogy(
    l,
    norms_of_powers(bilinear, l),
    color="black",
    linestyle="--",
    label="bilinear, N = 128",
)
axes.axhline(3.4e38, color="0.4", linestyle=":", label="end of float32")
axes.set(xlabel="power, $l$", ylabel=r"norm of $\bar A^l$", ylim=(1e-6, 1e72))
axes.legend(fontsize=8, ncols=3, loc="upper center")

A, B = A.astype(single), B.astype(single)  # N = 128
Ab, Bb = discretize(A, B, single(1.6 / 128), method="euler")
lost = np.asarray(kernel_by_powers(Ab, Bb, jnp.ones(128, single), 200))
assert not np.all(np.isfinite(lost)), (
    "a stable system, and its float32 kernel is infinite"
)
plotting.show(
    figure,
    "The norm of the powers of HiPPO's matrix on a logarithmic scale over 100 powers. With forward Euler it climbs, although all eigenvalues are below one: to 1e5 for N = 16, 1e24 for N = 64 and "
    "beyond the end of float32, to 1e49, for N = 128. With the bilinear rule it starts at one and never rises.",
)

# %% [markdown]
# With Euler and $N = 128$ a system whose eigenvalues all lie below one has powers that float32 cannot hold, and its float32 kernel is not finite.
#
# With the bilinear rule the norm never rises, and that can be proved. HiPPO's matrix has $A + A^\top = -(I + B B^\top)$, as the cell asserts (chapter 3 reads it off the entries). Take any state and call it $(I - \frac{\Delta}{2} A)\,x$. That is always possible: $A$ is triangular with a negative diagonal, so $I - \frac{\Delta}{2} A$ is triangular with a diagonal above 1 and has an inverse.
# One step multiplies by $\bar A = (I - \frac{\Delta}{2} A)^{-1} (I + \frac{\Delta}{2} A)$. The two factors contain nothing but $A$, so they commute, $I - \frac{\Delta}{2} A$ cancels, and the step makes $(I + \frac{\Delta}{2} A)\,x$ of the state. Write both squared lengths out. The terms $x^\top x$ and
# $\frac{\Delta^2}{4} x^\top A^\top A x$ stand in both and cancel in the difference:
#
# $$\begin{aligned}
# & \left\| (I + \tfrac{\Delta}{2} A)\,x \right\|^2 - \left\| (I - \tfrac{\Delta}{2} A)\,x \right\|^2 \\
# &\quad = \tfrac{\Delta}{2}\, x^\top (A + A^\top)\, x + \tfrac{\Delta}{2}\, x^\top (A + A^\top)\, x \\
# &\quad = -\Delta \left( x^\top x + (B^\top x)^2 \right) \le 0 .
# \end{aligned}$$ (conv-contraction)
#
# No step makes a state longer, so no power does. Nor does the system itself: without an input $\frac{d}{dt} \|x\|^2 = 2\, x^\top A\, x = x^\top (A + A^\top)\, x = -\|x\|^2 - (B^\top x)^2$. So zero-order hold, which follows it exactly, contracts too. So does backward Euler: from $(I - \Delta A)\,x$ to $x$ the squared length falls by $-\Delta\, x^\top (A + A^\top)\, x + \Delta^2 \|A x\|^2 \ge 0$.
# All this is a reason against forward Euler, and none for the bilinear rule in particular. Chapter 8 comes back to what makes HiPPO's matrix so far from normal.
#
# ## What each way costs
#
# Count multiplications, for $L$ steps and a full matrix of size $N$:
#
# * **Recurrence**: $\bar A x$ takes $N^2$, $\bar B u_k$ and $C x$ take $N$ each: $L (N^2 + 2N)$, in $L$ steps that wait for each other. For each sequence anew.
# * **Kernel**, by the scan: $\bar A x$ and $C x$, $L (N^2 + N)$, also one after the other. But only once, for all sequences of a batch.
# * **Direct sum**: $L (L + 1) / 2$ for each sequence.
# * **FFT**: one transform of length $2L$ takes $\frac{2L}{2} \log_2 (2L)$ complex multiplications if $L$ is a power of two {cite:p}`cooley1965fft`. Three transforms and one product of $2L$ numbers make
#   $3 L \log_2(2L) + 2L$. A complex multiplication is four real ones. (With `rfft` it is about half of that.)
#
# For $L = 1024$: $\log_2 2048 = 11$, so the transforms need $3 \cdot 1024 \cdot 11 + 2048 = 35\,840$ complex or $143\,360$ real multiplications, against $1024 \cdot 1025 / 2 = 524\,800$ for the direct sum. With $N = 64$ the recurrence needs
# $1024 \cdot (4096 + 128) = 4\,325\,376$.


# %%
def multiplications(L, N):
    """Real multiplications: recurrence, kernel, direct sum, convolution by FFT."""
    return (
        L * (N**2 + 2 * N),
        L * (N**2 + N),
        L * (L + 1) // 2,
        4 * (3 * L * (2 * L - 1).bit_length() + 2 * L),
    )


assert multiplications(1024, 64) == (4_325_376, 4_259_840, 524_800, 143_360)
print(
    "     L     recurrence         kernel       direct sum"
    "          FFT     (N = 64)"
)
for L in (64, 1024, 16384):
    print(f"{L:6} " + " ".join(f"{count:14,}" for count in multiplications(L, 64)))
recurrence, kernel, direct, fft = multiplications(1024, 64)
print(
    "a batch of 32 at L = 1024: the recurrence needs "
    f"{32 * recurrence / (kernel + 32 * fft):.0f} times what kernel and FFT need"
)

# %% [markdown]
# The convolution needs few products *after the kernel is there*. The kernel costs as much as running the recurrence once. A batch shares it, and that is where the gain in products comes from. A second gain is not in the table: the recurrence is a chain of $L$ steps, each too small to keep a machine busy, while an FFT is one large piece of work
# that a GPU spreads over all of its cores. Measured here, on whatever runs this notebook, for one sequence with the kernel given:

# %% tags=["nbval-ignore-output"]
L, N = 2048, 64
A, B = hippo_legs(N)
Ab, Bb = discretize(A, B, 1 / L)
C = jax.random.normal(jax.random.key(4), (N,)) / N
u = jax.random.normal(jax.random.key(5), (L,))
K = ssm.kernel_by_powers(Ab, Bb, C, L)
ways = {
    "FFT": (jax.jit(causal_convolution), (u, K)),
    "direct sum": (jax.jit(jnp.matmul), (toeplitz(K), u)),
    "recurrence": (jax.jit(lambda *inputs: scan_ssm(*inputs)[1]), (Ab, Bb, C, u)),
}


def fastest(function, inputs, runs=5):
    """The shortest of some runs in seconds.

    JAX returns before it has finished, so wait for the result.
    """
    function(*inputs).block_until_ready()  # the first call compiles
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        function(*inputs).block_until_ready()
        times.append(time.perf_counter() - begin)
    return min(times)


took = {name: fastest(*way) for name, way in ways.items()}
for name in ways:
    print(f"{name:12} {took[name] / took['FFT']:7.1f} times the time of the FFT")
outputs = [np.asarray(function(*inputs)) for function, inputs in ways.values()]
assert max(relative_error(y, outputs[-1]) for y in outputs) < 1e-12

# %% [markdown]
# So which one?
#
# | | recurrence | convolution |
# |---|---|---|
# | the whole input is there (training) | $L$ steps that wait for each other | all steps at once |
# | the input comes one step at a time (generation) | one step, the same cost at any time | all of the past again for each new step |
# | memory of the past | $N$ numbers | all inputs |
# | the system changes from step to step | possible | no kernel exists |
#
# Train as a convolution, generate as a recurrence: the same parameters, read in two ways. It was this pair that made state space models attractive for deep learning {cite:p}`gu2021lssl,gu2022s4`.
#
# ## What we have, and what is missing
#
# A recurrence that starts at zero is a causal convolution with the kernel $K_l = C \bar A^l \bar B$, and `causal_convolution` computes it for all steps at once with $L \log L$ work. The two agree to rounding, for real and complex states. The circle is cured by zeros, and errors are
# measured against the largest output.
#
# Two things are missing. The kernel itself still goes through $L$ powers of $\bar A$, one after the other, at $N^2$ each, and the powers can climb on the way. Part II gets rid of them. And we have not asked which matrix
# $A$ is worth all this. What should a state of $N$ numbers remember? [Chapter 3](03_hippo.ipynb) derives an answer.
#
# ## Exercises

# %% [markdown]
# ````{exercise} A pure delay
# :label: conv-delay
#
# Find $\bar A$, $\bar B$, $C$ whose output is the input of $d$ steps ago, $y_k = u_{k-d}$ (and 0 for $k < d$). How large must the state be? What is the kernel, and what are the eigenvalues of $\bar A$?
# ````

# %% [markdown]
# ````{solution-start} conv-delay
# :class: dropdown
# ````
# Keep the last $d + 1$ inputs as the state and move them on by one place in each step: ones below the diagonal of $\bar A$, $\bar B = (1, 0, \dots, 0)$, and $C$ reads the last place. The kernel is a single one at $l = d$. All eigenvalues are 0 (the matrix is triangular with a zero diagonal), and yet the system remembers perfectly for $d$ steps. Then it forgets at once: $\bar A^{d+1} = 0$.
#
# A state of fewer than $d + 1$ numbers cannot do it. The $d + 1$ vectors $\bar B, \bar A \bar B, \dots, \bar A^d \bar B$ would then be dependent: some sum $\sum_l c_l \bar A^l \bar B$ is zero although not all $c_l$ are. Say the first coefficient that is not zero is $c_s$, and multiply by $C \bar A^{d-s}$ from the left. The term $l = s$ gives
# $c_s K_d = c_s$, and the later ones give $c_l K_{l+d-s} = 0$, since only $K_d$ is not zero. So $c_s = 0$ after all.

# %%
d, L = 5, 20
Ab, Bb, C = np.eye(d + 1, k=-1), np.eye(d + 1)[0], np.eye(d + 1)[d]
K = kernel_by_definition(Ab, Bb, C, L)
assert np.array_equal(K, np.eye(L)[d])
u = np.asarray(jax.random.normal(jax.random.key(6), (L,)))
y = scan_ssm(*map(jnp.asarray, (Ab, Bb, C, u)))[1]
assert np.array_equal(y, np.concatenate([np.zeros(d), u[:-d]]))
assert np.all(np.linalg.eigvals(Ab) == 0) and np.all(
    np.linalg.matrix_power(Ab, d + 1) == 0
)

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Two systems in a row
# :label: conv-series
#
# The output of one system is the input of a second. Show that the two together are one state space model and give its $\bar A$, $\bar B$, $C$. What is its kernel? What changes if the order of the two is exchanged?
# ````

# %% [markdown]
# ````{solution-start} conv-series
# :class: dropdown
# ````
# Mark the systems with $1$ and $2$ at the top, and stack the two states. The second one is fed with $C^1 x^1_k$, and $x^1_k = \bar A^1 x^1_{k-1} + \bar B^1 u_k$ has to be put in:
#
# $$\begin{aligned}
# x^2_k &= \bar A^2 x^2_{k-1} + \bar B^2 C^1 x^1_k \\
# &= \bar A^2 x^2_{k-1} + \bar B^2 C^1 \bar A^1 x^1_{k-1} + \bar B^2 C^1 \bar B^1 u_k ,
# \end{aligned}$$
#
# $$ \bar A = \begin{pmatrix} \bar A^1 & 0 \\ \bar B^2 C^1 \bar A^1 & \bar A^2 \end{pmatrix}, \quad
# \bar B = \begin{pmatrix} \bar B^1 \\ \bar B^2 C^1 \bar B^1 \end{pmatrix}, \quad C = \begin{pmatrix} 0 & C^2 \end{pmatrix}. $$
#
# Its kernel is its answer to one click. The first system answers the click with $K^1$, and the second turns that into $K^2 * K^1$. A convolution does not care for the order ($\sum_l K^2_l K^1_{k-l}$ is the same sum as $\sum_l K^1_l K^2_{k-l}$, read backwards), so the exchanged systems have other matrices and the same kernel.


# %%
def in_series(one, two):
    """One system whose output is that of `two` fed with the output of `one`."""
    (Ab1, Bb1, C1), (Ab2, Bb2, C2) = (
        [np.asarray(part) for part in system] for system in (one, two)
    )
    Ab = np.block(
        [[Ab1, np.zeros((len(Bb1), len(Bb2)))], [np.outer(Bb2, C1 @ Ab1), Ab2]]
    )
    return (
        Ab,
        np.concatenate([Bb1, Bb2 * (C1 @ Bb1)]),
        np.concatenate([np.zeros(len(Bb1)), C2]),
    )


there = kernel_by_definition(
    *in_series(systems["leaky average"], systems["spring"]), 96
)
back = kernel_by_definition(
    *in_series(systems["spring"], systems["leaky average"]), 96
)
np.testing.assert_allclose(
    there,
    causal_convolution(kernels["leaky average"], kernels["spring"]),
    rtol=0,
    atol=1e-14,
)
np.testing.assert_allclose(there, back, rtol=0, atol=1e-14)

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} As few zeros as possible
# :label: conv-padding
#
# We padded with $L$ zeros. Show that $L - 1$ are enough. With $L - 2$, which outputs are wrong, and by how much?
# ````

# %% [markdown]
# ````{solution-start} conv-padding
# :class: dropdown
# ````
# With $d$ zeros the circle has $L + d$ places. A term with $k < l \le L - 1$ reads $u$ at $k - l + L + d$. The smallest of these places, at $k = 0$ and $l = L - 1$, is $d + 1$. All of them fall into the zeros if $d + 1 \ge L$, that is $d \ge L - 1$. With $d = L - 2$ exactly this one
# term reads the place $L - 1$, so $y_0$ is too large by $K_{L-1} u_{L-1}$ and every other output is right. One wrong output of $L$, off by the kernel's last and mostly smallest entry: such a mistake can stay for long, and a test with a kernel that has decayed does not find it. (We use $2L$ since FFTs like lengths with small factors.)


# %%
def convolution_with_padding(u, K, zeros):
    """The product of transforms with that many zeros behind u and K."""
    n = len(u) + zeros
    return np.fft.irfft(np.fft.rfft(u, n=n) * np.fft.rfft(K, n=n), n=n)[: len(u)]


L = 12
u, K = np.random.default_rng(7).normal(size=(2, L))
right = np.convolve(u, K)[:L]
np.testing.assert_allclose(
    convolution_with_padding(u, K, L - 1), right, rtol=0, atol=1e-13
)
error = convolution_with_padding(u, K, L - 2) - right
assert np.isclose(error[0], K[-1] * u[-1]) and abs(error[0]) > 1e-2
assert np.max(np.abs(error[1:])) < 1e-13

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Half-life
# :label: conv-half-life
#
# After how many steps has a kernel fallen to one half, if only the spectral radius $\rho$ of $\bar A$ is known? Compute it for the leaky average with $a = 0.9$ and for the HiPPO memory (whose slowest eigenvalue is $-1$, step 1/32, bilinear). Then measure both far out in the kernel. Why is this number not the memory of the delay in the first exercise?
# ````

# %% [markdown]
# ````{solution-start} conv-half-life
# :class: dropdown
# ````
# Far out the largest eigenvalue alone is left, $K_l \approx \text{const} \cdot \rho^l$ (if it is real and single). Half of it is left after $\ln 2 / (-\ln \rho)$ steps. For $\rho = 0.9$ these are $0.693 / 0.105 = 6.6$ steps. The eigenvalue $-1$ becomes $\rho = (1 - \frac{1}{64}) / (1 + \frac{1}{64})$, whose logarithm is
# close to $-\frac{1}{32}$. So the half-life is $0.693 \cdot 32 = 22.2$ steps, or 0.69 time units, whatever the step.
#
# The delay has $\rho = 0$ and a half-life of zero, and remembers for $d$ steps. The spectral radius speaks about the end of the kernel, never about its beginning.

# %%
for name, rho, expected in (
    ("leaky average", 0.9, 6.6),
    ("HiPPO", (1 - 1 / 64) / (1 + 1 / 64), 22.2),
):
    half_life = np.log(2) / -np.log(rho)
    K = kernel_by_powers(*systems[name], 600)
    measured = 100 / np.log2(float(K[400] / K[500]))  # steps for each halving
    print(f"{name}: {half_life:.1f} steps")
    assert abs(half_life - expected) < 0.05 and abs(measured - half_life) < 0.05

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} What a convolution layer computes
# :label: conv-correlation
#
# The convolution of deep learning frameworks computes $y_k = \sum_l w_l\, u_{k+l}$, with a plus sign (its proper name is a correlation). Use `jax.lax.conv_general_dilated` with input and weights of shape `(1, 1, L)` to compute our $y = K * u$. Which weights and which padding are needed?
# ````

# %% [markdown]
# ````{solution-start} conv-correlation
# :class: dropdown
# ````
# Put $L - 1$ zeros in front of the input, so that the window of output $k$ ends at $u_k$: the layer computes $\sum_l w_l\, u_{k + l - (L - 1)}$, where $u$ is zero at negative places. With the kernel turned around, $w_l = K_{L-1-l}$, and with the name $l$ for $L - 1 - l$ the sum becomes $\sum_l K_l\, u_{k-l}$. A trained layer does not care, as it learns
# its weights turned around. A kernel that we compute does.

# %%
u, K = jax.random.normal(jax.random.key(8), (2, 32))


def layer(weights):
    """A convolution layer of one channel with 31 zeros in front."""
    return jax.lax.conv_general_dilated(
        u[None, None],
        weights[None, None],
        window_strides=(1,),
        padding=[(31, 0)],
        precision="highest",
    )[0, 0]


np.testing.assert_allclose(
    layer(K[::-1]), causal_convolution(u, K), rtol=0, atol=1e-13
)
# not turned around: another answer
assert relative_error(layer(K), np.asarray(causal_convolution(u, K))) > 0.1

# %% [markdown]
# ````{solution-end}
# ````
