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
# # Diagonal is enough: DSS and S4D
#
# **Is the low-rank part worth its trouble? What happens if we drop $P$?**
#
# HiPPO's memory is a diagonal matrix minus a column times a row, $A = \Lambda - P P^*$ (chapter 8). The diagonal is what anyone would wish for; the rest of Part II is there because of the column and the row.
# In this chapter we leave them out. What remains fits on one page, and we measure what it has lost.

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
import time
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import scipy.linalg
import scipy.special
from flax import nnx

from annotated_s4 import (
    data,
    diagonal,
    hippo,
    layers,
    model,
    plotting,
    ssm,
    train,
    vandermonde,
)

plotting.use_style()


def in_float64(function, *arguments, **static):
    """function(*arguments, **static) in double precision, as NumPy.

    Compiled, but for functions that take no arrays.
    """
    function = partial(function, **static)
    with jax.enable_x64(True):
        result = (jax.jit(function) if arguments else function)(*arguments)
        return jax.tree.map(np.asarray, result)


def error(ours, right):
    """max |ours - right| / max |right|"""
    return float(np.abs(ours - right).max() / np.abs(right).max())


# %% [markdown]
# ## What is left without P
#
# Whoever comes here from [chapter 4](04_first_network.ipynb) needs one thing of Part II, the diagonalisation in [chapter 8](08_nplr.ipynb): its sections from "Coordinates that do no harm" to "HiPPO in the new coordinates", and "Half the state is enough". Its result, in four lines:
#
# * HiPPO is $A = -\frac12 I + S - P P^\top$ with a skew $S$ (that is, $S^\top = -S$) and $P_n = \sqrt{n + \frac12}$, so $B = \sqrt2\, P$.
# * The normal part $-\frac12 I + S$ has orthonormal eigenvectors, with eigenvalues $\lambda_n = -\frac12 \pm i \mu_n$ in conjugate pairs.
# * The eigenvectors of the positive $\mu_n$ are the $N/2$ columns of $V$. In these coordinates the state is $x_V = V^* x$, the input column is $V^* B$, the row is $C V$. (The star is a conjugate transpose; there is none on $C$.)
# * The other half of the state is the conjugate of this one. So nothing else need be stored, and the output is twice a real part.
#
# As chapter 8 does at its end, we drop the subscript: $\Lambda, B, C$ and $x$ are from here on the $N/2$ complex numbers of one half. Without $P$ every mode is alone, $N/2$ scalar systems side by side that never meet before the output:
#
# $$ \begin{aligned}
# x_n' &= \lambda_n\, x_n + B_n\, u, \\
# y &= 2 \operatorname{Re} \sum_n C_n\, x_n .
# \end{aligned} $$ (diag-modes)
#
# No conjugate occurs here. Twice the real part is right for anything that is a function of time. For a Fourier transform it is wrong, as the partner of a mode is not its conjugate there; [chapter 6](06_cauchy_kernel.ipynb) says what is right.
#
# What does one mode do? It answers an impulse by $e^{\lambda_n \tau} B_n$, a damped oscillation. A guess for the smallest HiPPO, $N = 2$: chapter 8 found $\lambda = -\frac12 + \frac{\sqrt3}{2} i$. So the oscillation has lost a factor $e$ after 2 units of time, and its period is $2\pi / \frac{\sqrt3}{2} \approx 7.3$.
#
# The check does not use any eigenvector: it takes the real matrix $-\frac12 I + S$, of size $N$, and SciPy's exponential.

# %%
def legs(N):
    """Lambda, P, B (N/2,) and V (N, N/2) of HiPPO-LegS, in float64."""
    return in_float64(hippo.dplr_legs, N=N)


def normal_legs(N):
    """-1/2 I + S and B of HiPPO-LegS, real.   ->  (N, N), (N,)"""
    A, B = in_float64(hippo.hippo_legs, N=N)
    return A + np.outer(B, B) / 2, B


print(f"N = 2: the period is {2 * np.pi / legs(2)[0][0].imag:.1f}")
rng = np.random.default_rng(0)
for N in (2, 8):
    (M, B_real), C_real = normal_legs(N), rng.normal(size=N)
    Lambda, _, B, V = legs(N)
    C = C_real @ V
    for age in (0.0, 0.3, 2.0):
        whole = C_real @ scipy.linalg.expm(age * M) @ B_real
        half = 2 * (C * np.exp(age * Lambda) * B).sum().real
        assert abs(whole - half) < 1e-12 * np.abs(C_real @ B_real)
assert round(2 * np.pi / legs(2)[0][0].imag, 1) == 7.3

# %% [markdown]
# ## One step of one mode
#
# S4 had to use the bilinear rule, because its algebra asks for it. Here we are free. [Chapter 1](01_state_space_models.ipynb) had a rule that is exact when the input is held during each step, zero-order hold, and it was the expensive one: it needs the exponential of a matrix. For a scalar that is a plain exponential.
#
# Solve $x_n' = \lambda_n x_n + B_n u$ over one step with $u$ held at $u_k$. What the state was is multiplied by $e^{\Delta\lambda_n}$, and what comes in at a time $t$ before the end of the step fades by $e^{\lambda_n t}$ until then:
#
# $$ \begin{aligned}
# x_{n,k} &= e^{\Delta\lambda_n}\, x_{n,k-1} + \int_0^\Delta e^{\lambda_n t}\, dt\; B_n\, u_k \\
# &= e^{\Delta\lambda_n}\, x_{n,k-1} + \frac{e^{\Delta\lambda_n} - 1}{\lambda_n}\; B_n\, u_k .
# \end{aligned} $$
#
# So
#
# $$ g_n = e^{\Delta\lambda_n}, \qquad \bar B_n = \frac{e^{\Delta\lambda_n} - 1}{\lambda_n}\, B_n . $$ (diag-zoh)
#
# By hand: for $\lambda = -\frac12$ and $\Delta = 0.1$ the factor is $g = e^{-0.05} = 0.951$, and $\bar B / B = 0.049 / 0.5 = 0.098$, a little below the step. Chapter 1's matrix version, with SciPy's exponential, must say the same.

# %%
g, Bb = np.exp(-0.05), (np.exp(-0.05) - 1) / -0.5
print(f"g = {g:.3f}, Bb / B = {Bb:.3f}")
# chapter 1: the exponential of step [[A, B], [0, 0]] holds both
both = scipy.linalg.expm(0.1 * np.array([[-0.5, 1], [0, 0]]))
assert np.abs(both - [[g, Bb], [0, 1]]).max() < 1e-14

# %% [markdown]
# Now the second formula in float32, the precision in which we train. For a small step, $e^{\Delta\lambda_n}$ is close to 1, and next to 1 the float32 numbers are $2^{-23} = 1.19 \cdot 10^{-7}$ apart. Take the exponent $v = 10^{-6}$. It is 8.4 of these distances, so $e^v$ is rounded
# to 1 plus 8 or 9 of them, and after the 1 has been subtracted, 8 or 9 are left where 8.4 would be right. The quotient $(e^v - 1)/v$ should be 1.0000005. It will be 5 % too small or 7 % too large.
#
# ````{admonition} Trap: a small exponent, minus one, divided by itself
# :class: warning
#
# At $v = 10^{-6}$, $(e^v - 1)/v$ in float32 is 5 or 7 % wrong. Right is 1.0000005. A better function for the numerator, `expm1`, mends the value for every $v$ but 0, where it is $0/0$.
#
# A `where` that puts 1 in at $v = 0$ mends the value there, and not the gradient. The derivative of a `where` is the derivative of *both* branches, each times 0 or 1, and $0 \cdot \mathrm{NaN}$ is NaN. The derivative at 0 is $\frac12$. With the plain quotient, the `where` gives NaN at 0 and noise of thousands or more at $10^{-6}$.
# If the division is made safe but the series is left out, it gives 0 at 0: a number, and wrong.
# ````

# %%
def plain(v):
    """(exp(v) - 1) / v, as it stands."""
    return (jnp.exp(v) - 1) / v


def guarded(v):
    """The same, with 1 put in at v = 0."""
    return jnp.where(v == 0, 1.0, plain(v))


def safe_division(v):
    """expm1(v) / v, with 1 put in at v = 0, and never 0 / 0."""
    return jnp.where(v == 0, 1.0, jnp.expm1(v) / jnp.where(v == 0, 1.0, v))


v, zero = jnp.float32(1e-6), jnp.float32(0)
off = abs(float(plain(v)) - 1.0000005)
assert min(abs(off - 0.046), abs(off - 0.073)) < 0.002
assert np.isnan(float(jax.grad(guarded)(zero)))
assert abs(float(jax.grad(guarded)(v))) > 1000
assert float(jax.grad(safe_division)(zero)) == 0
print("exponent 1e-6: the value is off by about a twentieth, and of the")
print("gradients none is 1/2: NaN, noise above a thousand, 0")

# %% [markdown]
# The remedy is a series where the exponent is small, and the quotient elsewhere. From $e^v = 1 + v + \frac{v^2}{2} + \frac{v^3}{6} + \dots$, take away the 1 and divide by $v$:
#
# $$ \begin{aligned}
# \operatorname{exprel}(v) = \frac{e^v - 1}{v} &= 1 + \frac v2 + \frac{v^2}{6} + \frac{v^3}{24} + \dots \\
# &= 1 + \frac v2 \Big( 1 + \frac v3 \Big( 1 + \frac v4 \big( 1 + \dots \big) \Big) \Big) .
# \end{aligned} $$ (diag-exprel)
#
# The name is SciPy's. With $|v| < \frac12$, fifteen terms are more than float64 can see: the first one left out is below $2^{-15} / 16!$. And each branch must get only exponents that it can bear, so that neither makes a NaN that the other branch's gradient would meet.
#
# With it $\bar B_n = \Delta\, B_n \operatorname{exprel}(\Delta\lambda_n)$, and nothing is divided by $\lambda_n$ any more. A mode with $\lambda_n = 0$ is no exception.


# %%
def exprel(v):
    """(exp(v) - 1) / v = 1 + v/2 (1 + v/3 (1 + ...)).   any shape"""
    small = jnp.abs(v) < 0.5
    near, far = jnp.where(small, v, 0), jnp.where(small, 1, v)
    series = jnp.ones_like(v)
    for n in range(15, 1, -1):
        series = 1 + near / n * series
    return jnp.where(small, series, jnp.expm1(far) / far)


assert 2.0**-15 / scipy.special.factorial(16) < 1e-17
size = np.logspace(-12, 1, 200)
v = np.concatenate([-size, [0.0], size])
right = scipy.special.exprel(v)
assert np.abs(in_float64(exprel, v) / right - 1).max() < 1e-14
v_32 = jnp.asarray(v, jnp.float32)
ours = np.asarray(jax.jit(exprel)(v_32))
exact = scipy.special.exprel(np.asarray(v_32, np.float64))
assert np.abs(ours / exact - 1).max() < 1e-6
assert np.abs(ours / jax.jit(diagonal.exprel)(v_32) - 1).max() < 1e-6
slope = np.asarray(jax.jit(jax.vmap(jax.grad(exprel)))(v_32))
assert slope[200] == 0.5  # at 0
near_zero = np.abs(v) < 1e-3
series = 1 / 2 + v / 3 + v**2 / 8
assert np.abs(slope - series)[near_zero].max() < 1e-6
lopsided = rng.normal(size=50) + 1j * rng.normal(size=50)
complex_ones = in_float64(exprel, lopsided) - np.expm1(lopsided) / lopsided
assert np.abs(complex_ones).max() < 1e-14

# %% [markdown]
# ## The kernel is a Vandermonde product
#
# Each mode is the scalar recurrence $x_{n,k} = g_n\, x_{n,k-1} + \bar B_n u_k$, and its answer to a single one, $l$ steps later, is $g_n^l\, \bar B_n$. Read by $C$ and completed by the partners, the kernel is
#
# $$ K_l = 2 \operatorname{Re} \sum_n C_n \bar B_n\, g_n^{\,l}, \qquad g_n^{\,l} = e^{l \Delta \lambda_n} . $$ (diag-kernel)
#
# There is nothing else to derive. The powers $G_{ln} = g_n^l$ are a matrix with $L$ rows and $N/2$ columns in which column $n$ holds the powers of one number; such a matrix is called a Vandermonde matrix. The kernel is this matrix times a vector, $K = 2 \operatorname{Re}\, G\, (C \bar B)$, with the products $C_n \bar B_n$ taken mode by mode.


# %%
def kernel_diagonal(Lambda, B, C, step, L):
    """K_l = 2 Re sum_n C_n Bb_n g_n^l, zero-order hold.

    Lambda, B, C: (N/2,) complex, step: a number  ->  K: (L,)
    """
    exponents = step * Lambda  # log g
    Bb = step * B * exprel(exponents)
    powers = jnp.exp(jnp.arange(L)[:, None] * exponents[None])  # (L, N/2)
    return 2 * (powers * (C * Bb)[None]).sum(1).real


# %% [markdown]
# The powers can be looked at. Sixteen modes with evenly spaced frequencies, $\lambda_n = -\frac12 + i\pi n$, at the step $\frac{1}{32}$: mode $n$ turns by $\pi n / 32$ in each step.

# %%
N, L, step = 32, 96, 1 / 32
Lambda = in_float64(hippo.s4d_lin, N=N)
powers = np.exp(np.arange(L)[:, None] * step * Lambda)
figure, axes = plt.subplots(figsize=(6.4, 2.9))
image = axes.imshow(
    powers.real.T, aspect="auto", vmin=-1, vmax=1, cmap="PuOr"
)
axes.set(xlabel="steps ago, $l$", ylabel="mode $n$", yticks=range(0, 16, 3))
axes.grid(False)
figure.colorbar(image, label=r"$\mathrm{Re}\; g_n^{\,l}$")
assert abs(np.angle(powers[1, 8]) - np.pi / 4) < 1e-12
assert np.allclose(np.abs(powers[64]), np.exp(-1), rtol=0, atol=1e-12)
plotting.show(
    figure,
    "The real part of the powers of 16 modes as an image, modes from top to "
    "bottom, steps from left to right. The first row fades without swinging. "
    "Each further row swings faster, the last one with about two steps for "
    "each half period. All rows fade alike, from 1 to about a fifth at the "
    "right end.",
)

# %% [markdown]
# A kernel is a weighted sum of the rows of this picture. All rows fade alike, since all real parts are $-\frac12$; they differ in how fast they swing.
#
# Is it right? First against the recurrence, in float64 NumPy, one step after the other. Then against the package's `kernel_diagonal` in its three forms: as above, as the last exercise has it, and that of 2022. And against two functions for Vandermonde products below it: one takes half of the state, and the other, the form of 2022, all of it.

# %%
def draw_system(N, seed):
    """Random Lambda with Re < 0, B, C.   ->  three arrays (N/2,)"""
    rng = np.random.default_rng(seed)
    decay, frequency, *parts = rng.normal(size=(6, N // 2))
    B, C = parts[0] + 1j * parts[1], parts[2] + 1j * parts[3]
    return -0.1 - np.abs(decay) + 5j * frequency, B, C


def answer_to_one(g, Bb, C, L):
    """y_k = 2 Re C x_k, x_k = g x_{k-1} + Bb u_k, u = (1, 0, 0, ...)."""
    x, y = Bb, []
    for _ in range(L):
        y.append(2 * (C * x).sum().real)
        x = g * x
    return np.array(y)


L, step = 200, 0.05
Lambda, B, C = draw_system(16, seed=1)
g, Bb = np.exp(step * Lambda), B * np.expm1(step * Lambda) / Lambda
right = answer_to_one(g, Bb, C, L)
system = Lambda, B, C, step
K = in_float64(kernel_diagonal, *system, L=L)
assert error(K, right) < 1e-12
package = partial(in_float64, diagonal.kernel_diagonal, *system, L=L)
for method in ("dense", "two_level", "textbook"):
    theirs = package(method=method)
    assert error(theirs, right) < 1e-12
products, exponents = C * Bb, step * Lambda
half = in_float64(
    vandermonde.vandermonde_pairs, products, exponents, L=L
)
both = lambda half: np.concatenate([half, half.conj()])
full = in_float64(
    vandermonde.vandermonde_textbook, both(products), both(exponents), L=L
)
assert error(half, right) < 1e-12
assert error(full, right) < 1e-12  # complex; its imaginary part is 0
in_32 = [jnp.asarray(part, jnp.complex64) for part in (Lambda, B, C)]
assert error(kernel_diagonal(*in_32, step, L), right) < 1e-5
print("half the state, all of it, and the recurrence: to 1e-12 the same")

# %% [markdown]
# Compare this with the road through Part II. There is no generating function, no FFT on the way to the kernel, no Woodbury. The row $C$ is the row itself: no $\tilde C$. So *the kernel belongs to no length*: a kernel for 200 steps begins with the kernel for 100.
#
# The price is $L \cdot N/2$ complex exponentials, where S4 has four times $(L/2 + 1) \cdot N$ quotients and a transform. It is the same order. Written as above, all $L \cdot N/2$ of them are stored for each feature, which is chapter 4's complaint about memory once more; the last exercise shows the idea by which Part IV mends it.

# %%
shorter = in_float64(kernel_diagonal, *system, L=100)
assert error(shorter, K[:100]) < 1e-14

# %% [markdown]
# ### The other rule
#
# The bilinear rule replaces two expressions and nothing else. From chapter 1, for a scalar,
#
# $$ g_n = \frac{1 + \frac\Delta2 \lambda_n}{1 - \frac\Delta2 \lambda_n}, \qquad \bar B_n = \frac{\Delta}{1 - \frac\Delta2 \lambda_n}\, B_n . $$ (diag-bilinear)
#
# For the powers we need the logarithm of $g_n$. Since $\log\frac{1+w}{1-w} = 2 \operatorname{artanh} w$, the exponent is $2 \operatorname{artanh}(\frac\Delta2\lambda_n)$ in place of $\Delta\lambda_n$, and $\frac{1}{1 - \Delta\lambda_n/2}$ takes the place of $\operatorname{exprel}(\Delta\lambda_n)$. (A logarithm taken of the rounded $g_n$ would lose the digits that $g_n$, a number close to 1, cannot hold.)


# %%
def kernel_bilinear(Lambda, B, C, step, L):
    """As kernel_diagonal, with the bilinear g and Bb."""
    exponents = 2 * jnp.arctanh(step / 2 * Lambda)  # log g
    Bb = step * B / (1 - step / 2 * Lambda)
    powers = jnp.exp(jnp.arange(L)[:, None] * exponents[None])
    return 2 * (powers * (C * Bb)[None]).sum(1).real


g = (1 + step / 2 * Lambda) / (1 - step / 2 * Lambda)
Bb = step * B / (1 - step / 2 * Lambda)
right = answer_to_one(g, Bb, C, L)
K = in_float64(kernel_bilinear, *system, L=L)
assert error(K, right) < 1e-12
assert error(kernel_bilinear(*in_32, step, L), right) < 1e-5
for method in ("dense", "textbook"):
    theirs = package(discretization="bilinear", method=method)
    assert error(theirs, right) < 1e-12

# %% [markdown]
# When does it matter which? Look at how far a mode turns in one step. It should turn by $\Delta\mu$, and with zero-order hold it does, exactly. With the bilinear rule and $\operatorname{Re}\lambda = 0$ it turns by $2 \arctan(\Delta\mu/2)$, which never reaches half a turn. For small angles the two agree up to $(\Delta\mu)^3 / 12$. Beyond half a turn per step, zero-order hold
# cannot be trusted either: a wheel that turns by $2\pi - 0.1$ between two pictures seems to turn backwards by 0.1.

# %%
turn = np.linspace(0, 3 * np.pi, 400)
figure, axes = plt.subplots()
held = (turn + np.pi) % (2 * np.pi) - np.pi
held[1:][np.abs(np.diff(held)) > np.pi] = np.nan  # no line at a jump
axes.plot(turn, held, label="zero-order hold")
axes.plot(turn, 2 * np.arctan(turn / 2), label="bilinear")
axes.set(xlabel=r"angle of one step, $\Delta\mu$", ylabel="angle of $g$")
axes.set_xticks(np.pi * np.arange(4), ["0", r"$\pi$", r"$2\pi$", r"$3\pi$"])
axes.set_yticks([-np.pi, 0, np.pi], [r"$-\pi$", "0", r"$\pi$"])
axes.legend()
small = 0.1
assert abs(small - 2 * np.arctan(small / 2) - small**3 / 12) < 1e-6
plotting.show(
    figure,
    "How far a mode seems to turn in one step against how far it should. With "
    "zero-order hold the line is the diagonal up to half a turn, then it jumps "
    "to minus half a turn and rises again: fast modes look slow. The bilinear "
    "curve follows the diagonal for small angles, bends, and approaches half a "
    "turn without reaching it.",
)

# %% [markdown]
# The frequencies of a layer reach far: the fastest of 32 evenly spaced modes is $31\pi \approx 97$. At the step 0.1, the upper end of the usual range, it should turn by 9.7 in each step, one and a half turns. So at coarse steps most modes are folded back. Does that do harm? The factor $\operatorname{exprel}(\Delta\lambda_n)$ in $\bar B_n$ is small for them (its size is
# at most $2 / |\Delta\lambda_n|$, since $|e^v - 1| \le 2$ when $\operatorname{Re} v < 0$): zero-order hold listens to the mean of a step, and a fast oscillation has nearly none. How far are the two kernels apart, with one and the same random $C$?

# %%
Lambda = in_float64(hippo.s4d_lin, N=64)
B, C = np.ones(32), draw_system(64, seed=2)[2]
apart = {}
held, bilinear = (
    partial(in_float64, jax.jit(partial(rule, L=1000)))
    for rule in (kernel_diagonal, kernel_bilinear)
)
for step in (0.1, 0.03, 0.01, 0.003, 0.001):
    system = Lambda, B, C, step
    apart[step] = error(bilinear(*system), held(*system))
    print(f"step {step:5.3f}: the two kernels differ by {apart[step]:.2f}")
assert apart[0.1] > 0.3 and apart[0.001] < 0.1
v = 0.1 * Lambda
assert np.all(np.abs(np.expm1(v) / v) <= 2 / np.abs(v))

# %% [markdown]
# At small steps they agree, at coarse steps they are two different filters. Neither is "the" right one, since a network learns its $C$ for the rule that it has. But a model must be run with the rule that it was trained with.
#
# ## One step at a time
#
# The recurrence needs no Woodbury, no matrix, nothing: $x_{n,k} = g_n x_{n,k-1} + \bar B_n u_k$ *is* the step. In float32 there is one thing to mind, and it is [chapter 9](09_recurrence.ipynb)'s. With a small step $g_n$ is close to 1, and a number a little below 1 is rounded by up to $2^{-25} = 3 \cdot 10^{-8}$, however small its distance from 1 is. Over the $1/\Delta$ steps
# of one unit of time the same rounding error is made each time, so the guess is up to $3 \cdot 10^{-8} / \Delta$: for the step $1/16384$, up to $5 \cdot 10^{-4}$, and less where the rounding is lucky. Write the step as a change of the state instead:
#
# $$ x_{n,k} = x_{n,k-1} + \big( (g_n - 1)\, x_{n,k-1} + \bar B_n u_k \big) . $$ (diag-change)
#
# It is the same step, but the number that is rounded now, $g_n - 1$, is as small as the step, and so is the error that is made of it. And $g_n - 1 = \Delta\lambda_n \operatorname{exprel}(\Delta\lambda_n)$, so that no digit is lost in computing it.


# %%
def prepare(Lambda, B, step):
    """g - 1 = step Lambda exprel(step Lambda),  Bb = step B exprel(...)"""
    factor = exprel(step * Lambda)
    return step * Lambda * factor, step * B * factor


def by_change(change, Bb, x, u_k):
    """x + ((g - 1) x + Bb u)"""
    return x + (change * x + Bb * u_k)


def as_written(change, Bb, x, u_k):
    """g x + Bb u"""
    return (1 + change) * x + Bb * u_k


@partial(jax.jit, static_argnums=0)
def run(advance, change, Bb, C, u):
    """y_k = 2 Re C x_k.   u: (L,)  ->  y: (L,)"""

    def one(x, u_k):
        x = advance(change, Bb, x, u_k)
        return x, 2 * (C * x).sum().real

    return jax.lax.scan(one, jnp.zeros_like(C), u)[1]


lost, L = {}, 16384
u = np.random.default_rng(3).normal(size=L)
ones = jnp.ones(32, jnp.complex64)
Lambda_32, C_32 = (jnp.asarray(z, jnp.complex64) for z in (Lambda, C))
prepare_32, kernel = jax.jit(prepare), partial(kernel_diagonal, L=L)
for per_unit in (1024, 16384):  # steps in one unit of time
    step = 1 / per_unit
    K = in_float64(kernel, Lambda, B, C, step)
    spectrum = np.fft.rfft(K, 2 * L) * np.fft.rfft(u, 2 * L)
    right = np.fft.irfft(spectrum)[:L]
    exact = in_float64(prepare, Lambda, B + 0j, step)
    for advance in (as_written, by_change):
        with jax.enable_x64(True):
            y = run(advance, *exact, C, u)
        assert error(np.asarray(y), right) < 1e-11
        pair = prepare_32(Lambda_32, ones, step)
        y = run(advance, *pair, C_32, jnp.asarray(u, jnp.float32))
        lost[advance, per_unit] = error(np.asarray(y), right)
theirs = diagonal.discretize_diagonal(Lambda_32, ones, step)
assert error(np.asarray(theirs.change), exact[0]) < 1e-6
assert error(np.asarray(theirs.Bb), exact[1]) < 1e-6

# %% tags=["nbval-ignore-output"]
for per_unit in (1024, 16384):
    written, changed = lost[as_written, per_unit], lost[by_change, per_unit]
    print(f"step 1/{per_unit}: ", end="")
    print(f"as written {written:.0e}, by change {changed:.0e}")
    assert changed < 1e-5
assert 10 * lost[by_change, 16384] < lost[as_written, 16384] < 1e-3

# %% [markdown]
# As written, the smaller the step, the larger the error. By change it stays where it was.
#
# ## Weights that add up to one
#
# The first diagonal model that was reported to do as well as S4 is DSS {cite:p}`gupta2022dss`, and its formula looks different. It has a **softmax** in it: of numbers $a_0, \dots, a_{L-1}$ it makes weights that add up to one,
#
# $$ \operatorname{softmax}_l(a) = \frac{e^{a_l}}{e^{a_0} + \dots + e^{a_{L-1}}} . $$
#
# Can we get there from ours? Start with S4D's kernel, put {eq}`diag-zoh` in, and let every mode be divided by the sum of its powers over the $L$ steps. That sum is a geometric series,
#
# $$ 1 + g_n + \dots + g_n^{L-1} = \frac{g_n^L - 1}{g_n - 1} . $$
#
# The softmax of $a_l = \Delta\lambda_n l$ has the powers $e^{a_l} = g_n^l$ over this sum, so
#
# $$ \operatorname{softmax}_l(\Delta\lambda_n l) = g_n^{\,l}\, \frac{g_n - 1}{g_n^L - 1} . $$ (diag-softmax)
#
# In the kernel stands $\bar B_n g_n^l = B_n \frac{g_n - 1}{\lambda_n} g_n^l$. The factor $g_n - 1$ is already there! Only $g_n^L - 1$ is missing, so we multiply and divide by it:
#
# $$ \begin{aligned}
# K_l &= 2 \operatorname{Re} \sum_n C_n B_n\, \frac{g_n - 1}{\lambda_n}\, g_n^{\,l} \\
# &= 2 \operatorname{Re} \sum_n \frac{C_n B_n\, (g_n^L - 1)}{\lambda_n} \cdot g_n^{\,l}\, \frac{g_n - 1}{g_n^L - 1} .
# \end{aligned} $$
#
# With one row $W_n$ for what stands in front,
#
# $$ \begin{aligned}
# K_l &= 2 \operatorname{Re} \sum_n \frac{W_n}{\lambda_n} \operatorname{softmax}_l(\Delta\lambda_n l), \\
# W_n &= C_n B_n\, (e^{L \Delta \lambda_n} - 1) .
# \end{aligned} $$ (diag-dss)
#
# That is DSS (proposition 1 of its paper; there without the factor 2: the paper takes the real part of modes that need not come in pairs). No conjugate occurs. **DSS is S4D with zero-order hold, whose row is stored in a form that belongs to one length.** It is what $\tilde C = C (I - \bar A^L)$ is for S4: on a diagonal system, $\tilde C_n = C_n (1 - g_n^L)$, so $W_n = -\tilde C_n B_n$.
#
# The function follows the paper: write down all powers, divide each column by its sum.


# %%
def kernel_dss(Lambda, W, step, L):
    """K_l = 2 Re sum_n W_n / Lambda_n softmax_l(step Lambda_n l).

    Lambda, W: (N/2,) complex, step: a number  ->  K: (L,)
    """
    powers = jnp.exp(jnp.arange(L)[:, None] * (step * Lambda)[None])
    softmax = powers / powers.sum(0)[None]  # each column adds up to one
    return 2 * (softmax * (W / Lambda)[None]).sum(1).real


L, step = 200, 0.05
Lambda, B, C = draw_system(16, seed=1)
W = C * B * np.expm1(L * step * Lambda)
by_s4d = in_float64(kernel_diagonal, Lambda, B, C, step, L=L)
by_dss = in_float64(kernel_dss, Lambda, W, step, L=L)
assert error(by_dss, by_s4d) < 1e-12
# and the way back: a random W, and the C that S4D needs for it
W = draw_system(16, seed=4)[2]
C_back = W / np.expm1(L * step * Lambda)
ones = np.ones(8, complex)
by_s4d = in_float64(kernel_diagonal, Lambda, ones, C_back, step, L=L)
by_dss = in_float64(kernel_dss, Lambda, W, step, L=L)
assert error(by_dss, by_s4d) < 1e-12
package = partial(in_float64, diagonal.kernel_dss, Lambda, W, step, L=L)
for method in ("dense", "textbook"):
    theirs = package(method=method)
    assert error(theirs, by_dss) < 1e-12
print("DSS and S4D: the same kernel, to 1e-12, from C to W and from W to C")

# %% [markdown]
# ### The same row at another length
#
# What do the same $W_n$ mean at twice the length? Mode by mode the kernel gets the factor
#
# $$ \frac{g_n^{L} - 1}{g_n^{2L} - 1} = \frac{1}{g_n^L + 1} , $$ (diag-length)
#
# since $g^{2L} - 1 = (g^L - 1)(g^L + 1)$. By hand for the evenly spaced $\lambda_n = -\frac12 + i\pi n$ and a window of $L\Delta = 1$: then $g_n^L = e^{\lambda_n} = (-1)^n e^{-1/2} = \pm 0.607$. So even modes are multiplied by $1/1.607 = 0.62$, odd ones by $1/0.393 = 2.54$. That is no scaling, it is another filter.

# %%
L, N = 64, 16
Lambda = in_float64(hippo.s4d_lin, N=N)
factors = np.expm1(Lambda) / np.expm1(2 * Lambda)
print(f"even modes times {factors[0].real:.2f}", end=", ")
print(f"odd modes times {factors[1].real:.2f}")
W = draw_system(N, seed=5)[2]
K_64 = in_float64(kernel_dss, Lambda, W, 1 / L, L=L)
K_128 = in_float64(kernel_dss, Lambda, W, 1 / L, L=2 * L)
between = error(K_128[:L], K_64)
print(f"one random row: the two kernels differ by {between:.0%}")
assert abs(factors[0] - 0.62) < 0.005 and abs(factors[1] - 2.54) < 0.005
assert between > 0.3
C_128 = W / np.expm1(Lambda)  # the right way: C, which has no length
system = Lambda, ones, C_128, 1 / L
longer = in_float64(kernel_diagonal, *system, L=2 * L)
assert error(longer[:L], K_64) < 1e-12

# %% [markdown]
# ### Why a softmax at all
#
# In one of the two variants of the DSS paper nothing kept $\operatorname{Re}\lambda_n$ negative. Once an update makes it positive, the powers grow. With $\Delta\lambda = 0.1$ and $L = 1024$ the last power is $e^{102} \approx 10^{44}$, and float32 ends near $3 \cdot 10^{38}$. A softmax bounds this by construction: the weights of a mode
# add up to one, whether it grows or fades, and whatever its speed. (The function above still overflows on the way there. The first exercise does without.) So each mode starts with the same total weight, a slow one as well as a fast one.
#
# If $\operatorname{Re}\lambda_n < 0$ is *kept* by construction, as below, then nothing can grow and the softmax is not needed for that. What it costs, the tie to one length, is not needed either. This is the step from DSS to S4D {cite:p}`gu2022s4d`.

# %%
powers = np.exp(0.1 * np.arange(1024))
print(f"the last power: {powers[-1]:.0e}, float32 ends at", end=" ")
print(f"{np.finfo(np.float32).max:.0e}")
growing = kernel_dss(jnp.array([0.1 + 0j]), jnp.ones(1), 1.0, 1024)
assert np.isnan(np.asarray(growing)).any()  # infinity over infinity
for value in (0.1, -0.1, -3 + 1j):
    powers = np.exp(value * np.arange(300))
    assert abs((powers / powers.sum()).sum() - 1) < 1e-12

# %% [markdown]
# ## What HiPPO loses without P
#
# Which $\lambda_n$? The first idea is HiPPO's own: keep the $\Lambda$ of chapter 8, drop the column and the row. Is what remains still HiPPO?
#
# Take the low-rank part apart. With $B = \sqrt2\, P$ it is $P P^\top x = \frac12 B\, (B^\top x)$. So, with $M = -\frac12 I + S$ for the normal part,
#
# $$ \begin{aligned}
# x' = A x + B u &= M x - \tfrac12 B\, (B^\top x) + B u \\
# &= M x + \tfrac12 B\, \big( 2u - B^\top x \big) .
# \end{aligned} $$ (diag-feedback)
#
# What is $B^\top x$? In [chapter 3](03_hippo.ipynb) the row $C_n = p_n(e^{-\tau})$ reads what the memory holds of the input $\tau$ ago, and $B_n = \sqrt{2n+1} = p_n(1)$ is that row for $\tau = 0$. So $B^\top x$ is *what the memory believes the present to be*. If it is a good memory, that is nearly $u$. Then the bracket is $2u - u = u$, and
#
# $$ x' \approx M x + \tfrac12 B\, u . $$ (diag-half-B)
#
# The low-rank part, on good days, does nothing but halve $B$. So we drop $P$ *and halve $B$*. (A layer that learns its $C$ does not even need the half.)
#
# How good must the memory be? Ask with a tone, $u = e^{i\omega t}$. (Here $\omega$ is its frequency.) Every state then swings with the tone, $x(t) = e^{i\omega t} X$ with a fixed vector $X$, and $x' = A x + B u$ becomes $i\omega X = A X + B$. So $X = (i\omega - A)^{-1} B$, and for the normal system $(i\omega - M)^{-1} \frac12 B$.


# %%
def tone(A, B, omega):
    """X = (i omega - A)^-1 B: the states that a tone keeps swinging."""
    return np.linalg.solve(1j * omega * np.eye(len(B)) - A, B)


print("        error of the normal part, for a tone of frequency")
print("          1     N/16    N/4")
for N in (16, 64, 256):
    M, B = normal_legs(N)
    A = M - np.outer(B, B) / 2
    errors = []
    for omega in (1, N / 16, N / 4):
        full, part = tone(A, B, omega), tone(M, B / 2, omega)
        errors.append(np.linalg.norm(part - full) / np.linalg.norm(full))
        # by the feedback equation, all states are off by one factor:
        ratio = 1 / (2 - B @ full)
        assert error(part, ratio * full) < 1e-9
        assert abs(errors[-1] - omega / N) < 0.25 * omega / N
    print(f"N = {N:3d}   " + "   ".join(f"{e:.3f}" for e in errors))

# %% [markdown]
# The error is close to $\omega / N$: a tone of frequency 1 is off by 6 % with sixteen states and by 0.4 % with 256. Larger memories know the present better, so they need the low-rank part less. (The check inside the loop is the feedback equation {eq}`diag-feedback` once more: $B^\top X$ is one number, so the two answers differ by one factor for all states, $1/(2 - B^\top X)$.)
#
# This is theorem 3 of the S4D paper {cite:p}`gu2022s4d`: with $B/2$ the functions of the normal part approach those of HiPPO as $N$ grows. Chapter 3 drew these functions. Entry $n$ of $e^{\tau A} B$ is $e^{-\tau} p_n(e^{-\tau})$. In which sense are they approached? We draw one of them ($n = 2$) next to the same entry of $e^{\tau M} \frac12 B$, and
# also what a system with zero-order hold gets to see of the latter, its mean over each step of 0.1. By {eq}`diag-zoh` that mean is $\bar B$ in place of $B$, over the step.


# %%
def legs_functions(tau, rows=3):
    """e^{-tau} p_n(e^{-tau}), n < rows.   tau: (...)  ->  (..., rows)"""
    values = in_float64(hippo.legs_basis, N=rows, r=np.exp(-tau))
    return np.exp(-tau)[..., None] * values


def normal_functions(tau, N, step=None, rows=3):
    """Entries of e^{tau M} B / 2, or their means over [tau, tau + step]."""
    Lambda, _, B, V = legs(N)
    if step is not None:
        B = B * np.expm1(step * Lambda) / (step * Lambda)
    modes = np.exp(tau[:, None] * Lambda[None]) * (B / 2)[None]
    return 2 * (modes @ V[:rows].T).real


def rms(values):
    """The root of the mean square over time, for each function."""
    return np.sqrt((values**2).mean(axis=0))


step = 0.1
fine, coarse = np.linspace(0, 5, 2001), step * np.arange(50)
points, weights = np.polynomial.legendre.leggauss(8)
inside = coarse[:, None] + step * (points + 1) / 2
means = (legs_functions(inside) * weights[None, :, None] / 2).sum(axis=1)
pointwise, averaged = {}, {}
for N in (16, 64, 256):
    difference = normal_functions(fine, N) - legs_functions(fine)
    pointwise[N] = rms(difference) / rms(legs_functions(fine))
    difference = normal_functions(coarse, N, step) - means
    averaged[N] = rms(difference) / rms(means)
    print(f"N = {N:3d}: curves differ by {pointwise[N][0]:.2f}", end=", ")
    print(f"their means over a step by {averaged[N][0]:.3f} (n = 0)")
    assert 0.65 < pointwise[N][0] < 0.75
    start = normal_functions(fine[:1], N)  # half of the height
    assert error(2 * start, legs_functions(fine[:1])) < 1e-9
assert np.all(averaged[64] < 0.4 * averaged[16])
assert np.all(averaged[256] < 0.25 * averaged[64])

# %%
shared = {"sharex": True, "sharey": True}
figure, three = plt.subplots(1, 3, figsize=(7, 3.1), **shared)
for axes, N in zip(three, (16, 64, 256), strict=True):
    axes.plot(
        fine, normal_functions(fine, N)[:, 2],
        color="#bbbbbb", linewidth=0.7, linestyle="-", label="normal part",
    )
    axes.plot(
        coarse + step / 2, normal_functions(coarse, N, step)[:, 2],
        color=plotting.COLOURS[1], linestyle="", marker="o", markersize=3,
        label="its means",
    )
    axes.plot(
        fine, legs_functions(fine)[:, 2],
        color=plotting.COLOURS[0], linestyle="-", label="HiPPO",
    )
    axes.set_title(f"N = {N}", loc="left", fontsize=10)
    axes.set(ylim=(-2.6, 4), xlim=(0, 4))
three[1].set_xlabel(r"how long ago: the age $\tau$")
three[0].set_ylabel("function $n = 2$")
handles, names = three[0].get_legend_handles_labels()
figure.legend(handles, names, loc="outside upper center", ncols=3)
plotting.show(
    figure,
    "The third of HiPPO's functions and the same entry of the normal part with "
    "half of B, for N = 16, 64 and 256. The normal part swings around HiPPO's "
    "curve with wiggles that become denser and not smaller. Its means over "
    "steps of 0.1 are scattered around the curve for N = 16, near it for 64, "
    "and on it for 256.",
)

# %% [markdown]
# The wiggles do not get smaller. They get *faster*: the difference of the functions themselves stays at 0.7 of their size, for every $N$ that we tried. What shrinks is what is left of it after a short mean, or for an input that is not too fast. So the theorem is best read for inputs, as the table above does. A system that takes steps takes such means. At $\tau = 0$ one can see the half: the functions of the normal part start at half of the
# height, in the middle between HiPPO's value and the zero before the present.
#
# ## Which frequencies?
#
# So the real parts are all $-\frac12$, and the imaginary parts are what is left to choose. `s4d_legs` takes those of chapter 8, from `eigh`. The S4D paper offers two formulas in their place (section 4.3).
#
# **S4D-Lin.** Evenly spaced,
#
# $$ \lambda_n = -\tfrac12 + i \pi n, \qquad n = 0, \dots, \tfrac N2 - 1 . $$ (diag-lin)
#
# A kernel $2 \operatorname{Re} \sum_n C_n e^{\lambda_n \tau}$ is then $e^{-\tau/2}$ times a Fourier series with the period $2\pi/\pi = 2$. On a window of two units of time it can be anything that such a series can be. After two units it comes again, with the factor $e^{-1}$.
#
# ````{admonition} Trap: the mode that is its own partner
# :class: warning
#
# For $n = 0$ the frequency is 0 and $\lambda_0 = -\frac12$ is real: its conjugate is itself. Formula {eq}`diag-kernel` counts it twice, like every mode, so the full state has this mode two times. Nothing breaks, since $C_0$ is learned. But whoever computes $C$ by hand, as from a Fourier series, must halve $C_0$; without it a constant comes out twice too large.
# ````

# %%
one = np.eye(16)[0] + 0j  # C = (1, 0, 0, ...)
Lambda = in_float64(hippo.s4d_lin, N=32)
assert abs(Lambda[0] + 0.5) < 1e-14
tau = np.linspace(0, 2, 100)
kernel_of = lambda C: 2 * (np.exp(tau[:, None] * Lambda[None]) @ C).real
assert error(kernel_of(one), 2 * np.exp(-tau / 2)) < 1e-14  # twice
assert error(kernel_of(one / 2), np.exp(-tau / 2)) < 1e-14
C = draw_system(32, seed=6)[2]
again = 2 * (np.exp((tau + 2)[:, None] * Lambda[None]) @ C).real
assert error(again, np.exp(-1) * kernel_of(C)) < 1e-12

# %% [markdown]
# **S4D-Inv.** A formula for HiPPO's own frequencies. Chapter 8 guessed, with integrals in place of sums, that the fast ones are $\frac{N^2}{\pi}$ divided by $1, 3, 5, \dots$, and found that the guess is good for those and too large for the slow ones. There are $N/2$ frequencies, $n = 0$ to $\frac N2 - 1$, so the list should run out where $2n + 1$ reaches $N$. The guess does not: it is $\frac N\pi$ there. Subtract that:
#
# $$ \mu_n = \frac{N^2}{\pi\,(2n+1)} - \frac N\pi = \frac N\pi \Big( \frac{N}{2n+1} - 1 \Big) . $$ (diag-inv)
#
# Here $N$ is the full size, not the number of modes that are kept. The last one, at $2n + 1 = N - 1$, is $\frac{N}{\pi (N-1)}$, close to $1/\pi = 0.32$. This is a motive and not a proof. How close is it?


# %%
def s4d_lin(N):
    """Lambda_n = -1/2 + i pi n.   ->  (N/2,)"""
    return -0.5 + 1j * np.pi * np.arange(N // 2)


def s4d_inv(N):
    """Lambda_n = -1/2 + i N/pi (N / (2n+1) - 1).   ->  (N/2,)"""
    n = np.arange(N // 2)
    return -0.5 + 1j * N / np.pi * (N / (2 * n + 1) - 1)


for N in (16, 64, 256):
    assert error(s4d_lin(N), in_float64(hippo.s4d_lin, N=N)) < 1e-14
    assert error(s4d_inv(N), in_float64(hippo.s4d_inv, N=N)) < 1e-14
    true = np.sort(legs(N)[0].imag)[::-1]
    # the same numbers from the real matrix, without its eigenvectors
    all_true = np.linalg.eigvals(normal_legs(N)[0])
    assert np.abs(all_true.real + 0.5).max() < 1e-9
    assert error(np.sort(all_true.imag)[: N // 2 - 1 : -1], true) < 1e-10
    off = s4d_inv(N).imag / true - 1
    print(f"N = {N:3d}: off by {off[0]:+.1%} at the fastest", end=", ")
    print(f"{off[N // 8]:+.0%} at n = N/8, {off[-1]:+.0%} at the slowest")
    assert abs(off[0]) < 0.06 and np.abs(off[: -N // 16]).max() < 0.23

# %%
N, n = 64, np.arange(32)
true = np.sort(legs(N)[0].imag)[::-1]
figure, axes = plt.subplots()
axes.semilogy(n, true, marker="o", markersize=4, linestyle="", label="legs")
axes.semilogy(n, s4d_inv(N).imag, linestyle="--", label="inv")
axes.semilogy(
    n[:-1], s4d_lin(N).imag[:0:-1],
    marker="s", markersize=4, linestyle="", label="lin (without its 0)",
)
axes.set(xlabel="from the fastest to the slowest")
axes.set_ylabel(r"frequency $\mu_n$")
axes.legend()
assert s4d_inv(N).imag[0] > 10 * s4d_lin(N).imag[-1]
three = true, s4d_inv(N).imag, s4d_lin(N).imag
slow = [int(sum(mu < 10)) for mu in three]
print("modes with a frequency below 10: ", end="")
print("legs {}, inv {}, lin {} of 32".format(*slow))
assert min(slow[:2]) > 2 * slow[2]
plotting.show(
    figure,
    "The 32 frequencies of three initialisations for N = 64 on a logarithmic "
    "scale, sorted. Those of legs fall from 1300 to 0.3; inv lies close to "
    "them, a little below in the middle and above at the end. The evenly "
    "spaced ones of lin reach only to 97, cross the others after a few modes, "
    "and have few members below 10.",
)

# %% [markdown]
# The fastest is hit within a few per cent, the middle is up to a fifth too slow, and the last ones are too fast, by more the larger $N$ is (half for $N = 256$). As a place to *start* learning it does: a fifth is nothing that training could not mend. An exercise finds the exact equation of HiPPO's frequencies.
#
# Here is what the modes look like: $\operatorname{Re} e^{\lambda_n \tau}$, three of each.

# %%
chosen = {
    "lin": s4d_lin(64)[[0, 1, 4]],
    "inv": s4d_inv(64)[[31, 28, 20]],
    "legs": legs(64)[0][[0, 3, 11]],
}
tau = np.linspace(0, 6, 601)
figure, three = plt.subplots(3, 1, figsize=(6.4, 5), sharex=True)
for axes, (name, Lambda) in zip(three, chosen.items(), strict=True):
    for lam in Lambda:
        curve = np.exp(lam * tau).real
        axes.plot(tau, curve, label=f"$\\mu$ = {lam.imag:.1f}")
    envelope = np.exp(-tau / 2)
    assert np.all(np.abs(np.exp(lam * tau)) <= envelope + 1e-12)
    axes.fill_between(tau, -envelope, envelope, color="#777777", alpha=0.12)
    axes.set_title(name, loc="left", fontsize=10)
    axes.legend(ncols=3, loc="lower right", fontsize=9)
    axes.set(ylim=(-1.45, 1.1))
three[2].set_xlabel(r"how long ago: the age $\tau$")
plotting.show(
    figure,
    "Three modes of each initialisation over six units of time. All fade "
    "inside the same envelope, exp(-tau/2). Those of lin swing with whole "
    "multiples of one frequency, so all repeat after two units. Those of inv "
    "and legs have no common period; their slowest does not complete a "
    "single oscillation before it has faded.",
)

# %% [markdown]
# **One real part for all.** Every mode forgets at the same rate: $e^{-1}$ in two units of time. So within one feature there are no slow and fast memories, only slow and fast *oscillations*. How long a feature remembers is decided by its step alone: $2/\Delta$ steps, 20 for the step 0.1 and 2000 for 0.001. That is why features start with steps from this range, and why the step is the first thing to look at when a task needs longer memory.
#
# **What each can make.** Which kernels can be had by choosing $C$? Try it: a bump at a given age, as "what came in then?", approximated by least squares with the 64 real functions of each family. Next to the three stand frequencies drawn from a normal distribution, and real, evenly spaced decays $-1, -3, \dots, -63$, like those of chapter 4's real diagonal.


# %%
def misfit(Lambda, age, width, window):
    """The smallest |K - bump| / |bump| over the window, over all C."""
    t = window * (np.arange(800) + 0.5) / 800
    bump = np.exp(-(((t - age) / width) ** 2) / 2)
    modes = np.exp(t[:, None] * Lambda[None])
    functions = np.c_[modes.real, modes.imag]
    E, size, _ = np.linalg.svd(functions, full_matrices=False)
    E = E[:, size > 1e-6 * size[0]]  # no C larger than a million
    return np.linalg.norm(bump - E @ (E.T @ bump)) / np.linalg.norm(bump)


draw = np.random.default_rng(0)
families = {
    "legs": legs(64)[0],
    "inv": s4d_inv(64),
    "lin": s4d_lin(64),
    "normal frequencies": -0.5 + 1j * draw.normal(size=32),
    "real decays": -np.arange(1, 65, 2) + 0j,
}
bumps = {  # age, width, window
    "sharp new": (0.1, 0.02, 2),
    "sharp old": (1, 0.05, 2),
    "smooth": (1, 0.2, 2),
    "smooth long": (3, 0.4, 6),
}
print(" " * 18 + "".join(f"{name:>12}" for name in bumps))
misfits = {}
for name, Lambda in families.items():
    misfits[name] = [misfit(Lambda, *bump) for bump in bumps.values()]
    print(f"{name:18}" + "".join(f"{m:12.2f}" for m in misfits[name]))
for name in ("legs", "inv"):
    assert misfits[name][0] < 0.3 and max(misfits[name][1:]) < 0.05
assert max(misfits["lin"][:3]) < 0.1 and misfits["lin"][3] > 0.8
assert misfits["normal frequencies"][1] > 0.6
assert misfits["real decays"][1] > 0.6

# %% [markdown]
# Read it by rows. **legs** and **inv** make what is smooth at any age, and what is sharp as well unless it is both sharp and very recent. **lin** makes all of it, within its window of two units, and fails on a longer one, since it must repeat itself. It is the choice for a window whose length is known (choose the step $2/L$), the other two for when it is not.
# **Frequencies drawn from a normal distribution** lie between $-3$ and $3$: nothing in them is fast, nothing sharp can be made, and many of them are nearly the same function. What is wrong is more the spread than the randomness: drawn evenly over the range of lin they do far better, as the next cell shows. They still miss what falls into the gaps that chance leaves.

# %%
spread = np.pi * 32 * np.random.default_rng(0).uniform(size=32)
wide = [misfit(-0.5 + 1j * spread, *bump) for bump in bumps.values()]
print("random, spread:   " + "".join(f"{m:12.2f}" for m in wide))
assert misfits["lin"][1] < wide[1] < misfits["normal frequencies"][1] / 2

# %% [markdown]
# ## A layer in thirty lines
#
# Now a layer like chapter 4's, with this kernel. Two things are new in how parameters are stored. A complex parameter is a pair of real ones, real and imaginary part on a last axis of length 2, because Adam on complex numbers goes the wrong way ([the primer](00_primer.ipynb) shows it). And the real part of $\lambda_n$ is not stored but its logarithm, `Re Lambda = -exp(log_decay)`:
# every number that can be stored stands for a mode that fades, as `log_step` made every step positive.
#
# $B$ starts as ones. Only the products $C_n B_n$ occur in the kernel, so one of the two could be left out; an exercise looks at that. $C$ is drawn with $E|C_n|^2 = 1$: two normal numbers of variance $\frac12$. What shapes the memory is marked `Slow`, a kind of parameter of the package: $\Lambda$, $B$ and the step learn at a lower rate and are not decayed, as a small change of one of them changes the entire kernel.


# %%
class DiagonalLayer(nnx.Module):
    """y = K * u + D u with A = diag(Lambda).   u, y: (batch, L, H)"""

    def __init__(self, H, N, rngs):
        Lambda, modes = hippo.s4d_lin(N), (H, N // 2)
        like = lambda row: jnp.broadcast_to(row, modes)
        self.log_decay = layers.Slow(like(jnp.log(-Lambda.real)))
        self.frequency = layers.Slow(like(Lambda.imag))
        self.B = layers.Slow(jnp.stack([like(1.0), like(0.0)], axis=-1))
        C = jax.random.normal(rngs.params(), (*modes, 2)) / jnp.sqrt(2)
        self.C = nnx.Param(C)
        self.D = nnx.Param(jnp.ones(H))
        between = {"minval": jnp.log(0.001), "maxval": jnp.log(0.1)}
        steps = jax.random.uniform(rngs.params(), (H,), **between)
        self.log_step = layers.Slow(steps)

    def system(self):
        """Lambda, B, C (H, N/2) and the steps (H,)."""
        pair = lambda part: jax.lax.complex(part[..., 0], part[..., 1])
        decay = jnp.exp(self.log_decay[...])
        Lambda = jax.lax.complex(-decay, self.frequency[...])
        B, C = pair(self.B[...]), pair(self.C[...])
        return Lambda, B, C, jnp.exp(self.log_step[...])

    def __call__(self, u):
        u = jnp.moveaxis(u, 1, -1)  # (batch, H, L): time last
        kernel = partial(kernel_diagonal, L=u.shape[-1])
        K = jax.vmap(kernel)(*self.system())  # one feature like the other
        y = ssm.causal_convolution(u, K[None])
        return jnp.moveaxis(y + self.D[...][None, :, None] * u, -1, 1)


@nnx.jit
def call(module, u):
    """module(u), compiled."""
    return module(u)


H, N, L = 64, 64, 1024
layer = DiagonalLayer(H, N, nnx.Rngs(0))
u = jax.random.normal(jax.random.key(1), (2, L, H))
y = call(layer, u)
system = [np.asarray(part).astype(complex) for part in layer.system()]
Lambda, B, C, steps = system
g = np.exp(steps[:, None] * Lambda)  # the oracle: NumPy, step by step
Bb, now = (g - 1) / Lambda * B, np.asarray(u, np.float64)
x, right = np.zeros((2, H, N // 2), complex), []
for k in range(L):
    x = g[None] * x + Bb[None] * now[:, k, :, None]
    right.append(2 * (C[None] * x).sum(-1).real + now[:, k])
right = np.stack(right, axis=1)
assert error(np.asarray(y), right) < 2e-5

# %% [markdown]
# The last line of the oracle has $D = 1$ in it, as the layer starts. With the same parameters the package's layer `S4D` must say the same: `nnx.state` lists the arrays, `nnx.update` writes them into the other one.

# %%
ours, theirs = layer, layers.S4D(H, N, L, rngs=nnx.Rngs(7))
y = np.asarray(y)
before = np.asarray(call(theirs, u))
assert error(before, y) > 0.1  # other parameters, another answer
nnx.update(theirs, nnx.state(layer))
assert error(np.asarray(call(theirs, u)), y) < 1e-5

# %% [markdown]
# The package's layers all have one interface: `layer(u)` is the convolution, and `layer.as_recurrence()` gives the recurrence, with the state in our hands. Do both modes of the two layers of this chapter agree? And which numbers do they train, next to `SSM`, chapter 4's layer, and `S4`, that of [chapter 10](10_s4_layer.ipynb)?

# %%
classes = (layers.SSM, layers.S4, layers.DSS, layers.S4D)
numbers, made = {}, {}
for kind in classes:
    name, layer = kind.__name__, kind(H, N, L, rngs=nnx.Rngs(0))
    trained = nnx.to_flat_state(nnx.state(layer, nnx.Param))
    sizes = {path[0]: box[...].size // H for path, box in trained}
    made[name], numbers[name] = layer, sum(sizes.values())
    print(f"{name}: {numbers[name]} numbers,", end=" ")
    print(", ".join(sorted(sizes)))
for name, rows in {"SSM": 2, "S4": 4, "DSS": 2, "S4D": 3}.items():
    assert numbers[name] == rows * N + 2
for layer in (made["DSS"], made["S4D"]):
    rnn = layer.as_recurrence()
    y, _ = jax.jit(rnn.run)(u, rnn.initial_state(2))
    assert error(np.asarray(y), np.asarray(call(layer, u))) < 2e-5

# %% [markdown]
# ## Four layers in one table
#
# Everything so far, side by side. $N$ is the full size of the state.
#
# | | SSM (chapter 4) | S4 (chapter 10) | DSS | S4D |
# |---|---|---|---|---|
# | matrix $A$ | full, fixed | $\Lambda - P P^*$ | $\Lambda$ | $\Lambda$ |
# | starts as | HiPPO | HiPPO | HiPPO without $P$ | lin, inv, or HiPPO without $P$ |
# | trained, for each feature | $B, C, D, \Delta$ | $\Lambda, P, B, \tilde C, D, \Delta$ | $\Lambda, W, D, \Delta$ | $\Lambda, B, C, D, \Delta$ |
# | real numbers trained | $2N + 2$ | $4N + 2$ | $2N + 2$ | $3N + 2$ |
# | step rule | bilinear | bilinear | zero-order hold | either |
# | kernel | $C \bar A^l \bar B$ by powers | inverse FFT of four sums | $2 \operatorname{Re} \sum \frac{W_n}{\lambda_n} \operatorname{softmax}_l$ | $2 \operatorname{Re} \sum C_n \bar B_n g_n^l$ |
# | belongs to one $L$ | nothing | $\tilde C$ | $W$ | nothing |
# | cost of a kernel | $L N^2$, in $L$ steps | $2 L N$ quotients, one FFT | $L N / 2$ exponentials | $L N / 2$ exponentials |
# | products in a step | $N^2 + 2N$ | $10 N$ | $4 N$ | $4 N$ |
# | stable | as $A$ is fixed | always, as $Q = P$ | always | always |
#
# Where the step's counts come from: a complex product takes four real ones. A mode of S4D needs $(g - 1) x$, four, and $\bar B u$, two; reading the real part of $C x$ takes two. That is eight for each of $N/2$ modes, $4N$. ([Chapter 9](09_recurrence.ipynb) counts S4's.) "Always stable" means: whatever the parameters hold. S4, DSS and S4D all store the logarithm of $-\operatorname{Re}\lambda_n$.
#
# Let us not trust the line about stability, and fill the parameters with large random numbers. The spectral radius of the discrete system must stay below 1. For the diagonal layers it is the largest $|g_n|$.

# %%
rng = np.random.default_rng(10)
for name in ("S4D", "DSS"):
    wild = nnx.clone(made[name])
    for box in (wild.log_decay, wild.frequency):
        box[...] = box[...] + 5 * rng.normal(size=(H, N // 2))
    steps, Lambda = np.asarray(wild.step, float), np.asarray(wild.Lambda)
    radius = np.abs(np.exp(steps[:, None] * Lambda.astype(complex)))
    assert radius.max() < 1
print("random decays and frequencies: every mode still fades")

# %% [markdown]
# And the time? We take the kernels of 64 features, with $L = 1024$ and $N = 64$, and their gradients in all parameters: the four layers of the package, and S4D with the function that this chapter wrote. The times are those of the machine that ran this.

# %% tags=["nbval-ignore-output"]
def seconds(function, *arguments, repeat=2):
    """The fastest of several calls, compiled before."""
    times = []
    for _ in range(repeat + 1):
        begin = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def by_this_chapter(layer, L):
    """The kernels of S4D by this chapter's function."""
    return jax.vmap(partial(kernel_diagonal, L=L))(*layer.system())


kernels_of = {name: type(layer).kernel for name, layer in made.items()}
kernels_of["as written"], made["as written"] = by_this_chapter, ours
taken = {}
for name, kernels in kernels_of.items():
    graph, params, rest = nnx.split(made[name], nnx.Param, ...)

    def number(params, graph=graph, rest=rest, kernels=kernels):
        return (kernels(nnx.merge(graph, params, rest), 1024) ** 2).sum()

    both = jax.jit(jax.value_and_grad(number))
    taken[name] = 1000 * seconds(both, params)
    print(f"{name:10} {taken[name]:5.0f} ms for kernels and gradient")
assert taken["S4D"] < taken["as written"] and taken["S4D"] < taken["SSM"]
assert taken["S4D"] < 3 * taken["S4"]

# %%
figure, axes = plt.subplots(figsize=(6.4, 2.4))
bars = axes.barh(list(taken), list(taken.values()), color="#0072B2")
axes.bar_label(bars, fmt="%.0f", padding=3)
axes.invert_yaxis()
axes.margins(x=0.1)
axes.grid(False)
axes.set_xlabel("milliseconds, kernels and their gradient")
plotting.show(
    figure,
    "The time of kernels and gradient as bars, at L = 1024, N = 64 and 64 "
    "features, on the machine that ran this. S4, DSS and S4D of the package "
    "are close together. The powers of SSM and the kernel as this chapter "
    "writes it take several times as long.",
)

# %% [markdown]
# S4, DSS and S4D are close together. So speed is not what tells them apart. They are also several times faster than the kernel as we wrote it, although it is the same formula: the package computes it from two thin matrices (the last exercise), in blocks, without ever writing down the $L \cdot N/2 \cdot H$ powers. What that takes, for S4 as well as for S4D, is the subject of Part IV. The formula alone says little about the time.
# What dropping $P$ has bought is not speed but the page of algebra that is not there.
#
# ## A short race
#
# Does a network mind the loss of $P$? Two small networks, equal in all but the layer, on chapter 4's digits: one block, 32 features, $N = 32$, eight epochs. (DSS has the kernels of S4D, as we have proved. Whoever wants to see it run adds `"dss"` to the list.) `train.grouped_adamw` is chapter 4's AdamW with a group of its own for what is marked `Slow`.

# %% tags=["nbval-ignore-output"]
digits = data.load("digits-classification")
reached = {}
for name in ("s4", "s4d"):
    begin = time.perf_counter()
    network = model.SequenceModel(
        name, d_input=1, d_output=10, d_model=32, n_layers=1,
        ssm_n=32, l_max=64, rngs=nnx.Rngs(0),
    )
    rates = {"learning_rate": 0.03, "slow_rate": 0.003}
    optimizer = train.grouped_adamw(**rates, weight_decay=0.01)
    for loss in train.fit(
        network, digits.train, epochs=8, batch_size=25, optimizer=optimizer
    ):
        pass
    reached[name] = train.accuracy(network, digits.validation)
    print(f"{name:4} loss {loss:.2f}", end=", ")
    print(f"validation accuracy {reached[name]:.3f}", end=", ")
    print(f"{time.perf_counter() - begin:.0f} s, most of it compiling")
assert min(reached.values()) > 0.75
assert abs(reached["s4"] - reached["s4d"]) < 0.15

# %% [markdown]
# Both read about nine of ten digits after eight epochs, and they are close together. Which one is ahead depends on the seed and the learning rate: there are 200 validation digits, so one digit is half a per cent, and one seed proves nothing. What it does show is that nothing breaks when $P$ is dropped. The comparison with several seeds, each layer at its own learning rate and on data that are harder, belongs to the next chapter.
#
# ## What we have, and what is missing
#
# We have a state space layer without any matrix: a sum of damped oscillations, whose kernel is one line and whose recurrence is another.
#
# * The low-rank part of HiPPO feeds the memory's own picture of the present back into it. For a good memory this halves $B$ and does little else: without it, a tone of frequency $\omega$ comes out wrong by about $\omega/N$.
# * DSS is S4D whose row is stored as $W = C B\,(g^L - 1)$. Its softmax was needed because $\operatorname{Re}\lambda$ was free, and it ties $W$ to one length.
# * S4D-Lin is a Fourier series that fades, for a window whose length is known. S4D-Inv and HiPPO without $P$ have many slow and a few very fast modes. All forget at one rate; the step decides how many samples that is.
# * Near zero, $(e^v - 1)/v$ needs a series, for the value and for the gradient.
#
# What is missing is training done properly: real data to the end, learning rates by group, several seeds and a test set that is opened once. That is chapter 12. And the array of $L \cdot N/2 \cdot H$ powers is too large for long sequences. The last exercise has the idea by which the package's layers do without it; chapter 15 makes a kernel of it whose memory does not depend on $N$.
#
# ## Exercises

# %% [markdown]
# ````{exercise} A softmax that cannot overflow
# :label: diag-mirror
#
# Let $\operatorname{Re} \lambda_n > 0$ in DSS. Rewrite $\operatorname{softmax}_l(\Delta\lambda_n l)$ so that only powers that fade occur. Which kernel is it, compared with the one for $-\lambda_n$?
# ````

# %% [markdown]
# ````{solution-start} diag-mirror
# :class: dropdown
# ````
# Multiply numerator and denominator of {eq}`diag-softmax` by $g^{-L}$, and write $g^{l-L} (g - 1) = g^{l-L+1} (1 - g^{-1})$:
#
# $$ g^l\, \frac{g - 1}{g^L - 1} = \big(g^{-1}\big)^{L-1-l}\; \frac{1 - g^{-1}}{1 - g^{-L}} = \operatorname{softmax}_{L-1-l}(-\Delta\lambda\, l) . $$
#
# All powers are of $g^{-1}$, which fades. It is the softmax of $-\lambda$ read from the end: a mode that grows remembers the *beginning* of the window best. Such a kernel can be computed safely, but it is no memory that a recurrence could keep, since its state would grow.

# %%
def mirrored(v, L):
    """softmax_l(v l) for Re v > 0, made of powers that fade."""
    faded = jnp.exp(-v * jnp.arange(L - 1, -1, -1))
    return faded / faded.sum()


v = 0.03 + 0.5j
powers = np.exp(v * np.arange(256))
assert error(in_float64(mirrored, v, L=256), powers / powers.sum()) < 1e-12
long = mirrored(jnp.complex64(0.1 + 0.5j), 1024)  # the plain form is NaN
assert np.isfinite(np.asarray(long)).all()
assert abs(complex(long.sum()) - 1) < 1e-5

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} A delay from a Fourier series
# :label: diag-delay
#
# Take S4D-Lin with $N = L$ and the step $2/L$, so that the window is one period. Which $C$ (with $B = 1$) makes the kernel a pure delay by a quarter of the window, $K_l = 1$ at $l = L/4$ and 0 elsewhere? How exact is it? Mind the mode with $n = 0$.
# ````

# %% [markdown]
# ````{solution-start} diag-delay
# :class: dropdown
# ````
# With $\Delta = 2/L$, $g_n^l = e^{-l/L}\, e^{2\pi i n l / L}$. Choose $C_n \bar B_n = \frac1L\, g_n^{-L/4}$, half of it for $n = 0$. Then
#
# $$ K_l = e^{-(l - L/4)/L}\; \frac1L \sum_{|n| < L/2} e^{2\pi i n (l - L/4)/L} . $$
#
# The sum over *all* $L$ frequencies would be $L$ at $l = L/4$ and 0 elsewhere. One is missing, $n = L/2$, whose term is $(-1)^{l - L/4}$. So $K_{L/4} = 1 - \frac1L$, and elsewhere stands $\mp\frac1L$ times a factor of at most $e^{1/4}$: with 64 states a delay that is right to 2 %.

# %%
L = 64
Lambda, step, quarter = s4d_lin(L), 2 / L, L // 4
g = np.exp(step * Lambda)
weights = g**-quarter / L
weights[0] /= 2
C = weights * Lambda / (g - 1)  # C Bb = weights, with B = 1
K = in_float64(kernel_diagonal, Lambda, np.ones(32), C, step, L=L)
target = np.eye(L)[quarter]
print(f"at a quarter {K[quarter]:.3f}, elsewhere at most", end=" ")
print(f"{np.abs(K - target)[target == 0].max():.3f}")
assert abs(K[quarter] - (1 - 1 / L)) < 1e-12
assert np.abs(K - target).max() < 1.3 / L

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} One row too many
# :label: diag-redundant
#
# Show that the kernel of S4D does not change if $B_n$ is multiplied and $C_n$ divided by any number, for each mode. So $B$ could stay 1. Does training see a difference? Look at the gradient in $C$ when $B$ is ten times as large. And does S4 have this freedom?
# ````

# %% [markdown]
# ````{solution-start} diag-redundant
# :class: dropdown
# ````
# In {eq}`diag-kernel` only $C_n \bar B_n$ occurs, and $\bar B_n$ is $B_n$ times a number. The gradient in $C_n$ has the factor $\bar B_n$: ten times $B$ makes it ten times as large. Plain gradient descent moves the product $C_n B_n$ by a hundred times as much. Adam divides by the gradient's size and moves $C_n$ as before, so the product by ten times as much. So the scale of $B$ acts like a learning rate, and a trained $B$ is like a rate for
# each mode that is learned. DSS does without. In S4 the modes are coupled. New coordinates that multiply $x_n$ and $B_n$ by $s$ multiply $P_n$ by $s$ too, and divide $C_n$ and $Q_n^*$ by it. With $Q = P$ kept, $Q_n^* = \overline{P_n}$ is also multiplied by $\bar s$ (both bars are conjugates), so $s \bar s = 1$: only the phase of each mode is free.

# %%
Lambda, B, C = draw_system(16, seed=7)
scale = draw_system(16, seed=8)[1]
kernel = partial(kernel_diagonal, L=100)
K = in_float64(kernel, Lambda, B, C, 0.05)
same = in_float64(kernel, Lambda, scale * B, C / scale, 0.05)
assert error(same, K) < 1e-12


def slope_in_C(factor):
    """The gradient in Re C of sum K_l, with B times the factor."""
    parts = [jnp.asarray(z, jnp.complex64) for z in (Lambda, factor * B)]
    total = lambda real: kernel(*parts, real + 0j, 0.05).sum()
    return jax.jit(jax.grad(total))(jnp.ones(8))


assert error(slope_in_C(10.0), 10 * np.asarray(slope_in_C(1.0))) < 1e-5

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} HiPPO's frequencies, exactly
# :label: diag-frequencies
#
# The eigenvectors $v$ of $S$ obey $P_n \big( \sum_{m>n} w_m - \sum_{m<n} w_m \big) = i\mu\, v_n$ with $w_m = P_m v_m$ (chapter 8). Divide row $n$ by $P_n$, subtract row $n+1$ from row $n$, and follow $b_n = w_n \big(1 + i\mu/P_n^2\big)$ from row to row. Show that the positive $\mu$ are the solutions of
#
# $$ \sum_{n=0}^{N-1} \arctan \frac{n + \frac12}{\mu} = \pi \big( j + \tfrac12 \big), \qquad j = 0, 1, \dots, \tfrac N2 - 1 . $$
#
# What becomes of it for large $\mu$?
# ````

# %% [markdown]
# ````{solution-start} diag-frequencies
# :class: dropdown
# ````
# Row $n$ over $P_n$ says $\sum_{m>n} w_m - \sum_{m<n} w_m = i\mu\, w_n / P_n^2$. Subtract row $n+1$: the left sides differ by $w_{n+1} + w_n$, so $w_{n+1} + w_n = i\mu\, (w_n / P_n^2 - w_{n+1} / P_{n+1}^2)$, or
#
# $$ w_{n+1} \Big( 1 + \frac{i\mu}{P_{n+1}^2} \Big) = -\, w_n \Big( 1 - \frac{i\mu}{P_n^2} \Big) . $$
#
# On the left stands $b_{n+1}$. On the right, $-\frac{1 - i\mu/P_n^2}{1 + i\mu/P_n^2}\, b_n$, and this factor is a pure phase. Its numerator and denominator are conjugates, so with $\varphi = \arctan(\mu / P_n^2)$ it is $-e^{-2i\varphi} = e^{i(\pi - 2\varphi)} = e^{2i \arctan(P_n^2/\mu)}$. Let $b_N$ be what one more such step would give. The two ends: row 0 says $\sum_m w_m = w_0 (1 + i\mu/P_0^2) = b_0$,
# row $N-1$ says $\sum_m w_m = w_{N-1} (1 - i\mu/P_{N-1}^2) = -b_N$. So $b_N = -b_0$: the phases $2 \arctan(P_n^2/\mu)$ add up to an odd multiple of $\pi$, and $P_n^2 = n + \frac12$. The sum falls from $\frac N2 \pi$ to 0 as $\mu$ grows, so there is one solution for each of the $N/2$ values of $j$.
#
# For large $\mu$ the arc tangent is its argument, the sum of $n + \frac12$ is $\frac{N^2}{2}$, and $\mu = \frac{N^2}{\pi (2j + 1)}$: chapter 8's guess.

# %%
for N in (4, 16, 64):
    mu = np.sort(legs(N)[0].imag)[::-1]
    angles = np.arctan((np.arange(N)[:, None] + 0.5) / mu[None]).sum(axis=0)
    assert np.abs(angles / np.pi - (np.arange(N // 2) + 0.5)).max() < 1e-10
# for N = 2: arctan(1 / (2 mu)) + arctan(3 / (2 mu)) = pi / 2 says
# 1 / (2 mu) = 2 mu / 3, so mu = sqrt(3) / 2, as chapter 8 found
assert abs(legs(2)[0][0].imag - np.sqrt(3) / 2) < 1e-14
print("the phases of N = 4, 16, 64 add up to odd multiples of pi")

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Two thin matrices in place of one
# :label: diag-two-level
#
# Write $l = T i + j$ with $0 \le j < T$. (Here $i$ counts blocks of $T$ steps and is no imaginary unit, $j$ counts steps within one.) Then $g_n^l = (g_n^T)^i\, g_n^j$. How many exponentials does the kernel need if it is computed like this, and what is the best $T$? Which operation takes their place? Check it for $L = 1024$.
# ````

# %% [markdown]
# ````{solution-start} diag-two-level
# :class: dropdown
# ````
# $L/T$ powers of $g_n^T$ and $T$ powers of $g_n$ for each mode, $(L/T + T)\, N/2$ in all instead of $L N/2$. It is smallest at $T = \sqrt L$, where both parts are equal: 64 instead of 1024 for each mode here. The sum over the modes, $K_{Ti+j} = 2 \operatorname{Re} \sum_n \big( C_n \bar B_n\, g_n^{Ti} \big)\, g_n^{j}$, is a matrix product, of size $(L/T, N/2)$ times $(N/2, T)$. So there are as many multiplications as before, but they are done by the operation that machines are best at, and the array of $L N/2$ powers never exists.

# %%
def two_level(Lambda, B, C, step, L, T):
    """K_{T i + j} = 2 Re sum_n (C Bb g^{T i})_n g_n^j, T divides L."""
    exponents = step * Lambda
    Bb = step * B * exprel(exponents)
    blocks = jnp.exp(T * jnp.arange(L // T)[:, None] * exponents[None])
    within = jnp.exp(jnp.arange(T)[:, None] * exponents[None])
    product = partial(jnp.matmul, precision="highest")
    return 2 * product(blocks * (C * Bb)[None], within.T).real.reshape(L)


system = *draw_system(64, seed=9), 0.01
K = in_float64(kernel_diagonal, *system, L=1024)
thin = in_float64(two_level, *system, L=1024, T=32)
assert error(thin, K) < 1e-12
counts = {T: 1024 // T + T for T in (8, 16, 32, 64, 128)}
print("exponentials for each mode: ", end="")
print(", ".join(f"T = {T}: {count}" for T, count in counts.items()))
assert min(counts, key=counts.get) == 32 and counts[32] == 64

# %% [markdown]
# ````{solution-end}
# ````
