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
# # Memory: HiPPO
#
# **How can N numbers remember a whole past?**
#
# [Chapter 1](01_state_space_models.ipynb) made a recurrence out of a differential equation, and [chapter 2](02_convolution.ipynb) made a
# convolution out of the recurrence. Both took $A$ and $B$ as given. Here they are derived, from one demand: the state should be the best
# summary of everything that came in {cite:p}`gu2020hippo`.

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
from fractions import Fraction
from math import comb

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import scipy.linalg
from jax.scipy.linalg import expm
from matplotlib import cbook
from numpy.polynomial import legendre

from annotated_s4 import hippo, plotting, ssm

plotting.use_style()

# %% [markdown]
# ## A walk over a ridge
#
# We walk across the country from west to east and look at the height at every step. At the end somebody asks what the *whole* way looked
# like. We may carry sixteen numbers, no more, and we do not know beforehand how long the walk will be.
#
# The heights are real: one row of a map of the Jacksboro fault in Tennessee, which comes with matplotlib. To have errors in a known unit we
# shift the heights to mean zero and scale them to variance one. They are the input $u_k$ of this chapter.

# %%
terrain = np.load(cbook.get_sample_data("jacksboro_fault_dem.npz", asfileobj=False))
heights = terrain["elevation"][170].astype(float)  # metres
u = (heights - heights.mean()) / heights.std()
L = len(u)
degree = 111.3 * np.cos(np.deg2rad(36.6))  # km, of longitude at 36.6 degrees north
stride = float(terrain["dx"]) * degree
print(
    f"{L} steps of {1000 * stride:.0f} m, "
    f"from {heights.min():.0f} to {heights.max():.0f} m above the sea"
)

# %%
figure, axes = plt.subplots()
axes.plot(np.arange(L), u)
axes.set(xlabel="step k of the walk", ylabel="height u (scaled)")
plotting.show(
    figure,
    "The height along the walk: hills for 150 steps, a higher ridge around step 170, "
    "and a long plain after the drop behind it.",
)

# %% [markdown]
# One number could hold the average height. That says nothing of the ridge. Two numbers could hold an average and a slope. The idea of this
# chapter is to go on like that: $N$ numbers hold the polynomial of degree $N - 1$ that is closest to the past. Two things are not clear yet.
# Which numbers are they? And can they be kept up to date *while* the walk goes on, if the past itself is not stored?
#
# A guess to test later. With one number the best we can do is the average, here 0, and what is left is the spread of the heights, here 1.
# So the error of $N = 1$ should be 1, and more numbers should push it down from there.

# %% [markdown]
# ## The best N numbers
#
# Stop the clock at a time $t$. The past is a function $u(v)$ with $0 \le v \le t$. We measure where in the past we are by a number $r$
# between 0, the beginning, and 1, the present: $v = t\,r$. Then the past is $u(t\,r)$, and it always lives on the interval from 0 to 1,
# however long it is.
#
# Take polynomials $p_0, p_1, \dots$, where $p_n$ has degree $n$, and ask that they are *orthonormal*:
#
# $$ \int_0^1 p_n(r)\, p_m(r)\, dr = \begin{cases} 1 & n = m \\ 0 & n \ne m. \end{cases} $$ (hippo-orthonormal)
#
# (The next section makes them.) We want coefficients $x_0, \dots, x_{N-1}$ with $u(t\,r) \approx \sum_n x_n\, p_n(r)$, and call the best
# those with the least mean squared error
#
# $$ \mathcal E = \int_0^1 \Big( u(t\,r) - \sum_n x_n\, p_n(r) \Big)^2 dr. $$ (hippo-error)
#
# Multiply out. Write $\langle u, p_n \rangle$ for $\int_0^1 u(t\,r)\, p_n(r)\, dr$. The square of the sum is a double sum, of which
# orthonormality leaves the terms with $n = m$, each with the factor one. Then complete the squares:
#
# $$ \begin{aligned}
# \mathcal E &= \int_0^1 u(t\,r)^2\, dr - 2 \sum_n x_n \langle u, p_n \rangle + \sum_n x_n^2 \\
# &= \int_0^1 u(t\,r)^2\, dr - \sum_n \langle u, p_n \rangle^2 \\
# &\qquad + \sum_n \big( x_n - \langle u, p_n \rangle \big)^2.
# \end{aligned} $$
#
# Only the last sum depends on our choice, and it is never negative. So the best choice is $x_n = \langle u, p_n \rangle$:
#
# $$ x_n(t) = \int_0^1 u(t\,r)\, p_n(r)\, dr = \frac 1t \int_0^t u(v)\, p_n\!\Big(\frac vt\Big)\, dv, $$ (hippo-coefficients)
#
# and what is left over is
#
# $$ \mathcal E = \int_0^1 u(t\,r)^2\, dr - \sum_{n<N} x_n^2. $$ (hippo-left-over)
#
# Two things follow without any further work. No coefficient depends on how many there are: $x_3$ is the same for $N = 4$ and for $N = 64$.
# And every further coefficient takes its square away from the error, so the error never rises with $N$.

# %% [markdown]
# ## Polynomials made to order
#
# Which polynomials are orthonormal? Take $1, r, r^2, \dots$ in turn, subtract from each what the earlier ones already
# contain, and scale it to length one. The recipe leaves one freedom, the sign of each. We choose it so that $p_n(1) > 0$. (That $p_n(1)$
# is not zero will come out in a moment.) So every $p_n$ is orthogonal to *all* polynomials of lower degree. Two facts about them carry the
# whole chapter.
#
# **Their value in the present.** Look at the integral of $r\,p_n'\,p_n$. A derivative multiplies the highest power $r^n$ by $n$ and
# lowers it by one, and the factor $r$ lifts it again: $r\,p_n'$ has the same highest term as $n\,p_n$. What they differ by has a lower degree
# and is orthogonal to $p_n$, and so
#
# $$ \int_0^1 r\,p_n'\,p_n\, dr = n \int_0^1 p_n^2\, dr + 0 = n. $$
#
# Now the same integral by parts, with $p_n' p_n = \tfrac12 (p_n^2)'$:
#
# $$ \int_0^1 r\,p_n'\,p_n\, dr = \Big[ \tfrac12\, r\, p_n(r)^2 \Big]_0^1 - \tfrac12 \int_0^1 p_n^2\, dr = \tfrac12\, p_n(1)^2 - \tfrac12 . $$
#
# The two sides are equal, so $p_n(1)^2 = 2n + 1$. It is not zero, and with the sign that we chose
#
# $$ p_n(1) = \sqrt{2n+1}. $$ (hippo-present)
#
# **How they change when they are stretched.** The polynomial $r\,p_n'(r)$ has degree $n$, so it is a sum of $p_0, \dots, p_n$. Call the
# coefficients $\beta_{nm}$. Orthonormality picks each one out, and a partial integration moves the derivative to the other factor:
#
# $$ \begin{aligned}
# \beta_{nm} &= \int_0^1 r\,p_n'\,p_m\, dr \\
# &= \Big[ r\,p_n\,p_m \Big]_0^1 - \int_0^1 p_n\, (r\,p_m)'\, dr \\
# &= p_n(1)\,p_m(1) - \int_0^1 p_n\, p_m\, dr - \int_0^1 p_n\; r\,p_m'\, dr .
# \end{aligned} $$
#
# For $m < n$ both integrals vanish: $p_m$ and $r\,p_m'$ have degree $m$ at most, and $p_n$ is orthogonal to everything below its own
# degree. For $m = n$ we have the value already, it is the $n$ of the first fact. Hence
#
# $$ r\,p_n'(r) = n\, p_n(r) + \sum_{m<n} \sqrt{(2n+1)(2m+1)}\; p_m(r). $$ (hippo-stretch)
#
# These polynomials have a name. Divide $p_n$ by its value in the present and shift the interval from $[0, 1]$ to $[-1, 1]$: what comes out
# is one in the present and orthogonal there, and that is *Legendre's polynomial* $\mathcal P_n$ {cite:p}`szego1939orthogonal`. So
#
# $$ p_n(r) = \sqrt{2n+1}\; \mathcal P_n(2r - 1), $$ (hippo-basis)
#
# and NumPy can evaluate them.


# %%
def legs_basis(N, r):
    """p_n(r) = sqrt(2n+1) P_n(2r - 1) for n < N.
    r: any shape  ->  the same shape and one more axis of N
    """
    legendre_values = legendre.legvander(2 * np.asarray(r) - 1, N - 1)
    return np.sqrt(2 * np.arange(N) + 1) * legendre_values


node, weight = legendre.leggauss(64)  # Gauss's rule on [-1, 1]: exact up to degree 127
node, weight = (node + 1) / 2, weight / 2  # moved to [0, 1]
p = legs_basis(64, node)
# orthonormal, the right value in the present, and like the package's own:
np.testing.assert_allclose(p.T @ (weight[:, None] * p), np.eye(64), rtol=0, atol=1e-12)
present = legs_basis(64, [1.0])[0]
np.testing.assert_allclose(present, np.sqrt(2 * np.arange(64) + 1), rtol=1e-12)
np.testing.assert_allclose(hippo.legs_basis(64, node), p, rtol=1e-12)

# %% [markdown]
# The second fact can be checked without any rounding. With $\mathcal P_n(2r-1)$ in place of $p_n$ the square roots cancel, and the identity
# is one between whole numbers: $r$ times the derivative is $n$ times the polynomial itself plus $2m + 1$ times each one below. The
# coefficients of $\mathcal P_n(2r-1)$ are products of binomials. The cell takes no table's word for that, but verifies with exact fractions
# that the polynomials are orthogonal to all lower powers and are one at $r = 1$, which leaves no other candidate.


# %%
def shifted_legendre(n):
    """The coefficients of P_n(2r - 1) in powers of r, whole numbers, constant first."""
    return [
        (-1) ** (n + power) * comb(n, power) * comb(n + power, power)
        for power in range(n + 1)
    ]


for n in range(21):
    polynomial = shifted_legendre(n)
    assert sum(polynomial) == 1  # its value at r = 1
    for lower in range(n):  # the integral of r^lower P_n(2r - 1) is zero
        terms = [Fraction(c, lower + power + 1) for power, c in enumerate(polynomial)]
        assert sum(terms) == 0
    # r times the derivative, and what the identity says it is:
    stretched = [power * c for power, c in enumerate(polynomial)]
    expansion = [n * c for c in polynomial]
    for m in range(n):
        for power, c in enumerate(shifted_legendre(m)):
            expansion[power] += (2 * m + 1) * c
    assert stretched == expansion
print("n = 0 to 20: orthogonal, one in the present, identity holds, all exactly")

# %%
figure, axes = plt.subplots()
r = np.linspace(0, 1, 301)
for n, mark in enumerate("osv^D"):
    axes.plot(
        r,
        legs_basis(5, r)[:, n],
        marker=mark,
        markevery=(12 * n, 60),
        markersize=5,
        label=f"n = {n}",
    )
axes.set(
    xlabel="r: where in the past (0 the beginning, 1 the present)", ylabel="$p_n(r)$"
)
axes.legend(ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))
plotting.show(
    figure,
    "The first five polynomials on the interval from 0 to 1. p_n crosses zero n times "
    "and ends at the square root of 2n + 1 in the present: 1, 1.7, 2.2, 2.6 and 3. "
    "Towards the ends they swing higher and faster than in the middle.",
)

# %% [markdown]
# ### By hand
#
# Take the ramp $u(v) = v$. At time $t$ it is $u(t\,r) = t\,r$. With $p_0 = 1$ and $p_1 = \sqrt 3\,(2r - 1)$ the coefficients
# {eq}`hippo-coefficients` are
#
# $$ x_0 = t \int_0^1 r\, dr = \frac t2, \qquad x_1 = \sqrt3\, t \int_0^1 (2r^2 - r)\, dr = \frac{t}{2\sqrt3}, $$
#
# and all others are zero, since a ramp needs no higher degree. In code the integral is a weighted sum over the nodes of Gauss's rule.


# %%
def coefficients(u_of, t, N):
    """x_n(t) = integral_0^1 u(t r) p_n(r) dr.
    u_of: a function, t: a number  ->  (N,)
    """
    return (weight * u_of(t * node)) @ legs_basis(N, node)


by_hand = [3 / 2, 3 / (2 * np.sqrt(3)), 0, 0]  # for t = 3
by_rule = coefficients(lambda v: v, 3.0, 4)
np.testing.assert_allclose(by_rule, by_hand, rtol=0, atol=1e-13)

# %% [markdown]
# ## What one more moment changes
#
# Now the clock runs. In the coefficients {eq}`hippo-coefficients`,
#
# $$ x_n(t) = \frac 1t \int_0^t u(v)\, p_n\!\Big(\frac vt\Big)\, dv, $$
#
# the time $t$ stands in three places, and the derivative is the sum of what each of them contributes (Leibniz's rule).
#
# *The factor in front.* The derivative of $1/t$ is $-1/t^2$, which gives
#
# $$ -\frac{1}{t^2} \int_0^t u(v)\, p_n\!\Big(\frac vt\Big)\, dv = -\frac{1}{t}\, x_n(t). $$
#
# The past gets longer, so everything in it gets a smaller share.
#
# *The upper limit.* It gives the integrand there, at $v = t$:
#
# $$ \frac 1t\, u(t)\, p_n(1) = \frac 1t \sqrt{2n+1}\; u(t). $$
#
# The present comes in.
#
# *The inside.* The derivative of $p_n(v/t)$ with respect to $t$ is $-\frac{v}{t^2}\, p_n'(v/t)$. We put $v = t\,r$ and $dv = t\,dr$ and use
# the identity {eq}`hippo-stretch`:
#
# $$ \begin{aligned}
# -\frac 1t \int_0^t &u(v)\, \frac{v}{t^2}\, p_n'\!\Big(\frac vt\Big)\, dv
# = -\frac 1t \int_0^1 u(t\,r)\; r\, p_n'(r)\, dr \\
# &= -\frac 1t \Big( n\, x_n(t) + \sum_{m<n} \sqrt{(2n+1)(2m+1)}\; x_m(t) \Big).
# \end{aligned} $$
#
# The polynomials are stretched over the longer past, and what they were has to be expressed anew in what they are.
#
# Add the three:
#
# $$ \begin{aligned}
# x_n' = \frac 1t \Big( &-(n+1)\, x_n - \sum_{m<n} \sqrt{(2n+1)(2m+1)}\; x_m \\
# &+ \sqrt{2n+1}\; u \Big).
# \end{aligned} $$
#
# Everything on the right is known at time $t$. *The past itself has dropped out*: to keep the best $N$ numbers up to date, it is enough to
# have them and the present input. Apart from the factor in front, that is a state space model:
#
# $$ x'(t) = \frac 1t \big( A\, x(t) + B\, u(t) \big), $$ (hippo-legs-ode)
#
# $$ \begin{aligned}
# A_{nm} &= \begin{cases} -\sqrt{(2n+1)(2m+1)} & n > m \\ -(n+1) & n = m \\ 0 & n < m, \end{cases} \\
# B_n &= \sqrt{2n+1}.
# \end{aligned} $$ (hippo-matrix)
#
# Add the matrix to its transpose. Off the diagonal $A_{nm} + A_{mn} = -B_n B_m$, since one of the two is zero. On it $-2(n+1) = -(1 + B_n^2)$, since $B_n^2 = 2n + 1$. So
#
# $$ A + A^\top = -(I + B B^\top), $$ (hippo-symmetric-part)
#
# which chapter 2 used: no state grows when nothing comes in.
#
# This is HiPPO-LegS: HiPPO for *high-order polynomial projection operators*, LegS for *scaled Legendre*. As code, from the pieces of the derivation:


# %%
def hippo_legs(N):
    """A = -(I + beta),  B_n = p_n(1),  beta as in r p_n' = sum_m beta_nm p_m.
    ->  A (N, N), B (N,)
    """
    n = np.arange(N)
    present = np.sqrt(2 * n + 1)
    beta = np.tril(np.outer(present, present), -1) + np.diag(n)
    return jnp.asarray(-(np.eye(N) + beta)), jnp.asarray(present)


A, B = hippo_legs(4)
s3, s5, s7, s15, s21, s35 = np.sqrt([3, 5, 7, 15, 21, 35])
table = [[-1, 0, 0, 0], [-s3, -2, 0, 0], [-s5, -s15, -3, 0], [-s7, -s21, -s35, -4]]
np.testing.assert_allclose(A, table, rtol=1e-15)
np.testing.assert_allclose(B, [1, s3, s5, s7], rtol=1e-15)
symmetric_part = -(np.eye(4) + np.outer(B, B))
np.testing.assert_allclose(A + A.T, symmetric_part, rtol=0, atol=1e-14)
for ours, theirs in zip(hippo_legs(64), hippo.hippo_legs(64), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-14)

# %% [markdown]
# For $N = 4$, the table that the cell above compares with, entry by entry, is
#
# $$ A = -\begin{pmatrix} 1 & & & \\ \sqrt3 & 2 & & \\ \sqrt5 & \sqrt{15} & 3 & \\ \sqrt7 & \sqrt{21} & \sqrt{35} & 4 \end{pmatrix},
# \qquad B = \begin{pmatrix} 1 \\ \sqrt3 \\ \sqrt5 \\ \sqrt7 \end{pmatrix}. $$
#
# The ramp checks two rows by hand. There $x_0 = t/2$, $x_1 = t/(2\sqrt3)$ and $u = t$, so the right-hand sides are
# $\frac1t(-\frac t2 + t) = \frac12$ and $\frac1t(-\sqrt3\,\frac t2 - 2\,\frac{t}{2\sqrt3} + \sqrt3\,t) = \frac{1}{2\sqrt3}$: the derivatives of
# $t/2$ and of $t/(2\sqrt3)$, as they should be.
#
# For the rest we ask JAX. `jax.jacfwd` turns a function into the function that computes its derivative, here of the coefficients with
# respect to $t$, through the integral. It knows nothing of our algebra.


# %%
def wave(v):
    """An input that is not a polynomial."""
    return jnp.cos(3 * v) + v**2 / 4


A, B = hippo_legs(12)
for t in (0.5, 1.7, 4.0):
    derivative = jax.jacfwd(lambda t: coefficients(wave, t, 12))(t)
    right_side = (A @ coefficients(wave, t, 12) + B * wave(t)) / t
    np.testing.assert_allclose(derivative, right_side, rtol=0, atol=1e-11)

# %% [markdown]
# ## Samples that are held
#
# Our input is not a function but a row of samples, so we do as in chapter 1 and hold each one: $u(t) = u_k$ for $k < t \le k + 1$, one step
# being one unit of time. For a held input the equation {eq}`hippo-legs-ode` can be solved exactly. Two observations do it.
#
# *A constant is kept for ever.* The coefficients of a constant $u$ are $u$ for $n = 0$ and zero for all others: $x = u\,e_0$, where
# $e_0 = (1, 0, \dots, 0)$. If the past has been $u$ and the input is $u$, nothing changes, so $A\,(u\,e_0) + B\,u$ must be zero. And it is:
# $A\,e_0$ is the first column of $A$, which is $-(0+1) = -1$ at the top and $-\sqrt{(2n+1) \cdot 1}$ below. That is
#
# $$ A\, e_0 = -B. $$ (hippo-constant)
#
# *What differs from that constant fades.* During step $k$ call the difference $f = x - u_k\, e_0$. Since $u_k\,e_0$ does not move,
#
# $$ \begin{aligned}
# f' = x' &= \tfrac 1t (A x + B u_k) \\
# &= \tfrac 1t (A f + u_k\, A e_0 + B u_k) = \tfrac 1t A f.
# \end{aligned} $$
#
# The $1/t$ disappears if we read another clock. The derivative of $\log t$ is $1/t$, so $\frac{df}{dt} = \frac{df}{d \log t} \cdot \frac 1t$, and in
# *logarithmic time* the equation reads $\frac{df}{d\log t} = A f$. Its solution is a matrix exponential (chapter 1). Step $k$ lasts from $t = k$ to
# $t = k + 1$, which is $\log(k+1) - \log k = \log\frac{k+1}{k}$ of that time. Back from $f$ to $x$.
#
# From here on two indices meet: $x_k$ is the *whole* state after sample $k$, at time $k + 1$; its $n$-th entry is $x_{n,k}$. So
#
# $$ x_k = e^{A \log\frac{k+1}{k}}\, (x_{k-1} - u_k\, e_0) + u_k\, e_0, \qquad k \ge 1 . $$ (hippo-held)
#
# The first sample is a constant past: the state after it is $u_0\, e_0$, and the recurrence starts from there.
#
# The logarithm is no trick. Each coefficient describes a *share* of the past, and going from 10 steps to 20 changes the shares as much as
# going from 100 to 200. So a new sample is worth much of this time in the beginning and little later: $\log 2 = 0.69$ for the second
# sample, about $1/k$ for sample $k$.
#
# In code the recurrence is a scan: `jax.lax.scan` calls one step after the other, hands the state on, and collects the states.


# %%
def project_legs(u, N):
    """x_k = exp(A log((k+1)/k)) (x_{k-1} - u_k e_0) + u_k e_0, from u_0 e_0 on.
    u: (L,)  ->  x: (L, N)
    """
    A, _ = hippo_legs(N)
    e_0 = jnp.eye(N)[0]

    def advance(x, sample):
        k, u_k = sample
        x = expm(A * jnp.log((k + 1) / k)) @ (x - u_k * e_0) + u_k * e_0
        return x, x

    first = u[0] * e_0
    samples = (jnp.arange(1.0, len(u)), jnp.asarray(u[1:]))
    _, rest = jax.lax.scan(advance, first, samples)
    return jnp.concatenate([first[None], rest])


A, B = hippo_legs(64)
np.testing.assert_allclose(A[:, 0], -B, rtol=1e-15)  # A e_0 = -B
eight = project_legs(u, 8)
packages_own = hippo.project_legs(jnp.asarray(u), 8)
np.testing.assert_allclose(eight, packages_own, rtol=0, atol=1e-12)

# %% [markdown]
# The check must not share any thought with the recurrence. So we go back to the integral {eq}`hippo-coefficients`, with the whole past at
# hand. Held samples make it a sum of integrals over one piece each. Number the samples until now by $i = 0, \dots, k$ (an index, no imaginary unit in this chapter): the piece of sample $i$ lies between the edges $r = i/(k+1)$ and $r = (i+1)/(k+1)$:


# %%
def held_coefficients(u, edges, N):
    """x_n = sum_i u_i integral_{edges[i]}^{edges[i+1]} p_n(r) dr, by Gauss's rule.
    u: (L,), edges: (L + 1,)  ->  (N,)
    """
    node, weight = legendre.leggauss(N // 2 + 1)  # exact for p_n with n < N
    width = np.diff(edges)
    r = edges[:-1, None] + width[:, None] * (node + 1) / 2
    return np.einsum("i,i,q,iqn->n", u, width, weight / 2, legs_basis(N, r))


x = np.asarray(project_legs(u, 64))  # (L, 64): the state after every step of the walk
for k in (0, 1, 10, 100, L - 1):
    edges = np.arange(k + 2) / (k + 1)
    by_integral = held_coefficients(u[: k + 1], edges, 64)
    np.testing.assert_allclose(x[k], by_integral, rtol=0, atol=1e-12)
# The first eight do not depend on the other 56:
np.testing.assert_allclose(x[:, :8], eight, rtol=0, atol=1e-12)
print(f"64 numbers after each of {L} steps: the same as from the whole past")

# %% [markdown]
# The last check says again what the least-squares section showed: no coefficient depends on how many there are. Here it is visible in the
# matrix. $A$ is lower triangular, so row $n$ of the equation contains only the coefficients up to the $n$-th. The chapter computes 64 coefficients once, and
# takes the first few whenever it needs few.

# %% [markdown]
# ````{admonition} Trap: a minus sign that gets lost
# :class: warning
#
# The paper that introduced this matrix {cite:p}`gu2020hippo` prints it without a minus sign, and writes the minus into the differential
# equation. The S4 paper {cite:p}`gu2022s4` writes $x' = Ax + Bu$ and has the minus in the matrix. Take the equation from one and the matrix
# from the other, and the sign is gone; The Annotated S4 {cite:p}`rush2022annotated` prints it so, while its code has the sign. Then the
# eigenvalues are $+1, \dots, +N$. ($A$ is triangular, so its eigenvalues stand on its diagonal.) In logarithmic time they give $e^{N \log t} = t^N$:
# instead of fading, the state grows, for $N = 16$ and our 403 steps by more than forty powers of ten.
# ````
#
# ````{admonition} Trap: off by one
# :class: warning
#
# The diagonal is $-(n+1)$. The $n$ comes from stretching the polynomials, the one from the factor $1/t$ in front. With $-n$, which looks
# natural, the first coefficient never lets anything go. Feed it a constant 1: the right memory says that the average is 1. In the wrong one
# this coefficient has the derivative $u/t$. From 1 at $t = 1$ it goes on to $1 + \log t$, which is 7 at the end of our walk.
# ````

# %%
A, B = hippo_legs(16)
# From time 1 to time L, which is log L of logarithmic time:
right = scipy.linalg.expm(np.asarray(A) * np.log(L))
with_sign_lost = scipy.linalg.expm(-np.asarray(A) * np.log(L))
powers_of_ten = np.log10(np.abs(with_sign_lost).max())
print(
    f"without the minus sign the state grows by "
    f"{16 * np.log10(L):.0f} powers of ten or more"
)
assert powers_of_ten > 16 * np.log10(L) > 40
assert np.abs(right[:, 0]).max() < 1  # with it, the state e_0 fades

A, B = hippo_legs(4)
# -n on the diagonal, and an input of 1 from time 1 to time L:
Ab, Bb = ssm.discretize(A + jnp.eye(4), B, np.log(L), "zoh")
wrong = (Ab[:, 0] + Bb)[0]
np.testing.assert_allclose(wrong, 1 + np.log(L), rtol=1e-10)
print(f"off by one: the average of a constant 1 comes out as {wrong:.1f}")

# %% [markdown]
# ## More numbers, less error
#
# To read the memory, evaluate the polynomial: at step $i$ of $L$, in the middle of its piece, $r = (i + \frac12)/L$. The error is the root
# of the mean squared difference; by the formula for what is left over {eq}`hippo-left-over` it can also be had without reading at all, from the squares of the coefficients.


# %%
def rms(error):
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(error))))


middle = (np.arange(L) + 0.5) / L
sizes = np.arange(1, 65)
readings = np.stack([legs_basis(N, middle) @ x[-1, :N] for N in sizes])  # (64, L)
left_over = np.sqrt(np.mean(u**2) - np.cumsum(x[-1] ** 2))  # by the formula
read = np.array([rms(reading - u) for reading in readings])

assert abs(read[0] - 1) < 1e-6  # the guess: one number leaves the whole spread
assert np.all(np.diff(left_over) < 0)  # every further number helps
# The two differ a little: the middle of a piece is not quite its average.
np.testing.assert_allclose(read, left_over, rtol=0, atol=5e-3)
for N in (1, 2, 4, 8, 16, 32, 64):
    print(f"N = {N:2d}: error {left_over[N - 1]:.2f}")

# %%
figure, axes = plt.subplots()
axes.loglog(sizes, left_over, marker="o", markersize=3)
axes.set(xlabel="N: how many numbers are kept", ylabel="rms error over the whole walk")
axes.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
axes.set_yticks([1, 0.5, 0.2, 0.1], ["1", "0.5", "0.2", "0.1"])
axes.minorticks_off()
plotting.show(
    figure,
    "The error against N, both on logarithmic scales. It starts at 1 for one number "
    "and falls with every further one, slowly at first, to 0.36 for 16, 0.18 for 32 "
    "and 0.10 for 64.",
)

# %% [markdown]
# How the polynomial closes in on the walk is better seen in motion. Each frame adds numbers and leaves the earlier ones as they are.

# %%
chosen = [*range(1, 17), *range(18, 33, 2), *range(36, 65, 4)]
figure, axes = plt.subplots(figsize=(6.4, 2.9))
axes.plot(np.arange(L), u, color="0.6", linewidth=3, linestyle="-", label="the walk")
(line,) = axes.plot(
    np.arange(L),
    readings[0],
    color=plotting.COLOURS[1],
    linestyle="-",
    linewidth=1.5,
    label="read from N numbers",
)
label = axes.text(
    0.99, 0.93, "", transform=axes.transAxes, ha="right", va="top", fontsize=12
)
axes.set(xlabel="step of the walk", ylabel="height (scaled)", ylim=(-2, 3))
axes.legend(loc="lower left", ncols=2, bbox_to_anchor=(0, 1), borderaxespad=0)


def draw(frame):
    N = chosen[frame]
    line.set_ydata(readings[N - 1])
    label.set_text(f"N = {N}, error {left_over[N - 1]:.2f}")


draw(0)
figure.canvas.draw()
figure.set_layout_engine("none")
plotting.animate(
    figure,
    draw,
    frames=len(chosen),
    alt=(
        "The walk and the polynomial that N numbers hold of it, for N from 1 to 64. "
        "One number gives a flat line, sixteen give the ridge and the drop behind it, "
        "and with 64 the small hills are there too. The error falls from 1 to 0.10."
    ),
)

# %% [markdown]
# ## Without the 1/t
#
# The memory with the $1/t$ has a flaw: what it does with a sample depends on how late the sample comes. Such a system has no kernel, and
# chapter 2's convolution cannot run it. S4 drops the factor {cite:p}`gu2022s4` and keeps the *time-invariant* system
#
# $$ x'(t) = A\, x(t) + B\, u(t). $$ (hippo-invariant)
#
# Nobody promises that its state still means anything. The derivation above was for another equation. What are these numbers?
#
# Take chapter 1's exact solution over a step so long that it covers the entire past. The eigenvalues of $A$ are $-1, \dots, -N$, all negative, so
# nothing is left of the state before it, and the state is the input alone, weighted by what the system answers to an impulse that came $\tau$ ago:
#
# $$ x(t) = \int_0^\infty e^{\tau A} B\; u(t - \tau)\, d\tau . $$
#
# So we need the $N$ functions $e^{\tau A} B$. They are
#
# $$ \big( e^{\tau A} B \big)_n = e^{-\tau}\, p_n(e^{-\tau}). $$ (hippo-impulse)
#
# *Proof.* The left side is the solution of $h' = A h$ with $h(0) = B$, and there is only one. So it is enough that the right side starts
# there and obeys the same equation. At $\tau = 0$ it is $p_n(1) = \sqrt{2n+1} = B_n$. For the derivative write $r = e^{-\tau}$, so that
# $\frac{dr}{d\tau} = -r$, and use the identity {eq}`hippo-stretch` once more:
#
# $$ \begin{aligned}
# \frac{d}{d\tau} \big( r\, p_n(r) \big) &= -r \big( p_n(r) + r\, p_n'(r) \big) \\
# &= -r \Big( (n+1)\, p_n(r) + \sum_{m<n} \sqrt{(2n+1)(2m+1)}\; p_m(r) \Big) \\
# &= \sum_{m} A_{nm}\; r\, p_m(r). \qquad \blacksquare
# \end{aligned} $$

# %%
A, B = hippo_legs(32)
for age in (0.0, 0.01, 0.1, 0.5, 1.0, 3.0):
    impulse = scipy.linalg.expm(age * np.asarray(A)) @ np.asarray(B)
    formula = np.exp(-age) * legs_basis(32, [np.exp(-age)])[0]
    np.testing.assert_allclose(impulse, formula, rtol=0, atol=1e-11)

# %%
figure, axes = plt.subplots()
age = np.linspace(0, 5, 301)
for n, mark in enumerate("osv^D"):
    axes.plot(
        age,
        np.exp(-age) * legs_basis(5, np.exp(-age))[:, n],
        marker=mark,
        markevery=(6 + 5 * n, 60),
        markersize=5,
        label=f"n = {n}",
    )
axes.set(xlabel=r"how long ago: the age $\tau$", ylabel="weight in the state")
axes.legend(ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))
plotting.show(
    figure,
    "The weight exp(-tau) p_n(exp(-tau)) with which an input of age tau stands in the "
    "state, for n from 0 to 4. The first decays exponentially. The others start at "
    "the square root of 2n + 1 and swing n times through zero, fast for small ages "
    "and slower and slower for large ones.",
)

# %% [markdown]
# Put the impulse response into the integral, and then $r = e^{-\tau}$ with $dr = -e^{-\tau} d\tau$:
#
# $$ \begin{aligned}
# x_n(t) &= \int_0^\infty u(t - \tau)\, p_n(e^{-\tau})\, e^{-\tau}\, d\tau \\
# &= \int_0^1 u(t + \log r)\, p_n(r)\, dr .
# \end{aligned} $$ (hippo-warped)
#
# Compare it with the coefficients {eq}`hippo-coefficients`: the same polynomials, the same integral, another past. These are again
# least-squares coefficients, of the function $u(t + \log r)$ of $r$. Where the first memory lays a ruler with even marks along the past, this
# one lays a ruler whose marks crowd near the present: $r = e^{-\tau}$ is one for what came in this instant, a half for what came
# $\log 2$ ago, and zero only for the infinitely old. Back in ages, the error that is made as small as possible is
#
# $$ \int_0^\infty e^{-\tau}\, \Big( u(t - \tau) - \sum_n x_n\, p_n(e^{-\tau}) \Big)^2 d\tau, $$
#
# an error that counts less the older it is, with weight $e^{-\tau}$. So the state does mean something: it is the best approximation of the past
# by *exponentially warped* polynomials {cite:p}`gu2023train`.
#
# The step $\Delta$ says how much of this time passes with one sample. The exact solution for held samples is the recurrence {eq}`hippo-held`
# with another clock, $\Delta$ in place of $\log\frac{k+1}{k}$ (nothing in its derivation asks how long the exponential runs), and it starts from
# nothing:
#
# $$ x_k = e^{\Delta A}\, (x_{k-1} - u_k\, e_0) + u_k\, e_0, \qquad x_{-1} = 0. $$ (hippo-invariant-held)


# %%
def invariant_legs(u, N, step):
    """x_k = exp(step A) (x_{k-1} - u_k e_0) + u_k e_0,  x_{-1} = 0.
    u: (L,)  ->  x: (L, N)
    """
    power = expm(step * hippo_legs(N)[0])
    e_0 = jnp.eye(N)[0]

    def advance(x, u_k):
        x = power @ (x - u_k * e_0) + u_k * e_0
        return x, x

    return jax.lax.scan(advance, jnp.zeros(N), jnp.asarray(u))[1]


N, step = 16, 3 / L
x_invariant = np.asarray(invariant_legs(u, N, step))
Ab, Bb = ssm.discretize(*hippo_legs(N), step, "zoh")
# Chapter 1's recurrence gives the same state:
by_recurrence, _ = ssm.scan_ssm(Ab, Bb, jnp.ones(N), jnp.asarray(u))
np.testing.assert_allclose(x_invariant[-1], by_recurrence, rtol=0, atol=1e-12)
# And so does the integral, with the sample of age l between
# exp(-step (l + 1)) and exp(-step l):
edges = np.exp(-step * np.arange(L, -1, -1))
by_integral = held_coefficients(u, edges, N)
np.testing.assert_allclose(x_invariant[-1], by_integral, rtol=0, atol=1e-12)

# %% [markdown]
# ## Each memory with its own ruler
#
# Both memories are read with the same polynomials, $\sum_n x_n\, p_n(r)$, but at different $r$. For a sample that came in $\tau$ ago it is
#
# * $r = 1 - \tau/t$ in the system with the $1/t$, at time $t$, and
# * $r = e^{-\tau}$ in the time-invariant one. So the row that reads it is $C_n = p_n(e^{-\tau})$; with $\tau = 1$ this is the $C$ with which chapter 2 asked for the input of one time unit ago.
#
# A held sample that came $l$ steps ago covers the ages from $l\,\Delta$ to $(l+1)\,\Delta$ (in the first system the step is 1). We read it in the middle, at $\tau = (l + \frac12)\,\Delta$.
#
# Watch the two side by side, with sixteen numbers each. The time-invariant one has $\Delta = 3/L$: the
# weight of a sample falls to $1/e$ within a third of the walk.


# %%
def read_uniform(x, k):
    """sum_n x_n p_n(1 - tau/t), at the k + 1 samples until now.
    x: (N,)  ->  (k + 1,)
    """
    return legs_basis(len(x), (np.arange(k + 1) + 0.5) / (k + 1)) @ x


def read_warped(x, k, step):
    """sum_n x_n p_n(exp(-tau)), at the k + 1 samples until now.
    x: (N,)  ->  (k + 1,)
    """
    return legs_basis(len(x), np.exp(-step * (k + 0.5 - np.arange(k + 1)))) @ x


moments = np.linspace(8, L - 1, 30).astype(int)
figure, both = plt.subplots(2, 1, figsize=(6.4, 3.9), sharex=True)
lines, labels = [], []
for axes, name in zip(
    both, ("with the 1/t, even ruler", "time-invariant, warped ruler"), strict=True
):
    axes.plot(np.arange(L), u, color="0.7", linewidth=3, linestyle="-")
    lines.append(
        axes.plot([], [], color=plotting.COLOURS[1], linestyle="-", linewidth=1.5)[0]
    )
    labels.append(
        axes.text(0.99, 0.95, "", transform=axes.transAxes, ha="right", va="top")
    )
    axes.set(ylabel="height (scaled)", ylim=(-3, 4), xlim=(-5, L + 5))
    axes.set_title(name, loc="left", fontsize=10)
both[1].set_xlabel(
    "step of the walk (grey: the walk; line: what the memory holds of it)"
)


def draw(frame):
    k = moments[frame]
    for line, label, reading in zip(
        lines,
        labels,
        (read_uniform(x[k, :N], k), read_warped(x_invariant[k], k, step)),
        strict=True,
    ):
        line.set_data(np.arange(k + 1), reading)
        error = reading - u[: k + 1]
        label.set_text(
            f"error {rms(error):.2f}, recent half {rms(error[(k + 1) // 2 :]):.2f}"
        )


draw(0)
figure.canvas.draw()
figure.set_layout_engine("none")
plotting.animate(
    figure,
    draw,
    frames=len(moments),
    seconds=9,
    alt=(
        "The walk goes on from left to right, and two memories of sixteen numbers "
        "each are read at every moment. Above, the system with the 1/t treats the "
        "whole past alike: as the past grows, every part of it becomes coarser. "
        "Below, the time-invariant system follows the recent past closely and blurs "
        "what is old, most of all near the beginning of the walk."
    ),
)

# %% [markdown]
# The upper memory spends its numbers evenly, and the finest detail that it can hold gets coarser as the walk gets longer. The lower one is
# sharp near the present and blurred far away. Neither is better in general: over the whole walk the upper one wins, over its last forty
# steps the lower one. But they must not be mixed up, and the next cell does so on purpose.

# %%
k, recent = L - 1, slice(L // 2, None)
right_uniform = read_uniform(x[-1, :N], k) - u
right_warped = read_warped(x_invariant[-1], k, step) - u
mixed_up = read_uniform(x_invariant[-1], k) - u
other_way = read_warped(x[-1, :N], k, step) - u
for name, error in (
    ("1/t,            even ruler  ", right_uniform),
    ("time-invariant, warped ruler", right_warped),
    ("time-invariant, even ruler  ", mixed_up),
    ("1/t,            warped ruler", other_way),
):
    print(
        f"{name}: error {rms(error):.2f}, "
        f"recent half {rms(error[recent]):.2f}, last 40 {rms(error[-40:]):.2f}"
    )
assert rms(right_uniform) < rms(right_warped) < 0.5
assert rms(right_warped[-40:]) < 0.5 * rms(right_uniform[-40:])
# Worse than answering zero, the average, whatever is asked:
assert min(rms(mixed_up), rms(other_way)) > 1.2
assert rms(mixed_up[recent]) > 2 * rms(right_warped[recent])
# The numbers of the warning below:
quoted = (right_warped, mixed_up, other_way)
whole_walk = [rms(error) for error in quoted]
recent_half = [rms(error[recent]) for error in quoted[:2]]
np.testing.assert_allclose(whole_walk, [0.46, 1.25, 1.27], rtol=0, atol=0.006)
np.testing.assert_allclose(recent_half, [0.13, 0.34], rtol=0, atol=0.006)

# %%
figure, axes = plt.subplots()
axes.plot(np.arange(L), u, color="0.7", linewidth=3, linestyle="-", label="the walk")
axes.plot(
    np.arange(L),
    right_warped + u,
    color=plotting.COLOURS[0],
    linestyle="-",
    label="warped ruler (its own)",
)
axes.plot(
    np.arange(L),
    mixed_up + u,
    color=plotting.COLOURS[1],
    linestyle="--",
    label="even ruler (the other's)",
)
axes.set(xlabel="step of the walk", ylabel="height (scaled)", ylim=(-3, 4))
axes.legend(
    loc="lower left", ncols=3, bbox_to_anchor=(0, 1), borderaxespad=0, fontsize=9
)
plotting.show(
    figure,
    "The state of the time-invariant system at the end of the walk, read in two ways. "
    "With its own warped ruler it follows the plain and the drop closely and blurs "
    "the hills of the beginning. With the even ruler of the other system the drop "
    "stands in the wrong place, and the curve has little to do with the walk.",
)

# %% [markdown]
# ````{admonition} Trap: the state of one system, read with the ruler of the other
# :class: warning
#
# The time-invariant state of sixteen numbers, read with its own warped ruler, has an error of 0.46 over the whole walk and 0.13 over its
# recent half. Read with the even ruler, which belongs to the system with the $1/t$, it has 1.25 and 0.34. Over the whole walk that is worse
# than answering "the average" to every question, whose error is 1. The other mix-up has 1.27. The mistake is inviting, since the matrices are the same. An
# animation that shows S4's state as plain Legendre polynomials of the past shows something that is not there.
# ````
#
# ## What the step decides
#
# The time-invariant system has no window; it has a weight, $e^{-\tau}$, and each new sample makes every older one older by $\Delta$. After
# $1/\Delta$ samples the weight has fallen to $1/e = 0.37$, after $\log 2 / \Delta$ to one half. So $1/\Delta$ is the length of the memory, counted
# in samples. It is a choice, and a layer need not make only one: S4 gives every feature a $\Delta$ of its own. The authors' code and a later paper
# {cite:p}`gu2023train` start them between 0.001 and 0.1. That is a range of memories from ten samples to a thousand.

# %%
assert abs(np.exp(-1) - 0.37) < 0.005
for step in (0.1, 0.01, 0.001):
    print(
        f"step {step:5.3f}: the weight is a half after "
        f"{np.log(2) / step:3.0f} samples, 1/e after {1 / step:4.0f}"
    )

figure, panels = plt.subplots(3, 1, figsize=(6.4, 5.0), sharex=True)
whole, newest = {}, {}
for axes, step in zip(panels, (0.1, 0.01, 0.001), strict=True):
    reading = read_warped(np.asarray(invariant_legs(u, N, step))[-1], L - 1, step)
    whole[step], newest[step] = rms(reading - u), rms((reading - u)[-20:])
    axes.plot(np.arange(L), u, color="0.7", linewidth=3, linestyle="-")
    axes.plot(
        np.arange(L), reading, color=plotting.COLOURS[1], linestyle="-", linewidth=1.5
    )
    if 1 / step < L:
        axes.axvline(L - 1 - 1 / step, color="black", linestyle=":")
    axes.set(ylabel="height", ylim=(-3, 4))
    axes.set_title(
        f"step {step}: error {whole[step]:.2f}, last 20 steps {newest[step]:.2f}",
        loc="left",
        fontsize=10,
    )
panels[-1].set_xlabel(
    "step of the walk (dotted: "
    r"$1/\Delta$ samples before its end)"
)
assert newest[0.1] < newest[0.01] < newest[0.001]
assert max(whole[0.01], whole[0.001]) < 1 < whole[0.1]
plotting.show(
    figure,
    "What sixteen numbers hold at the end of the walk for three values of Delta. With 0.1 "
    "the last few tens of samples are followed exactly and the rest is lost. With "
    "0.01 the last two hundred are followed. With 0.001 the whole walk is there, "
    "coarsely.",
)

# %% [markdown]
# The number of coefficients decides how much is kept, the step decides of which past. With the shortest memory the error over the whole walk
# is above 1, with the longest the last twenty steps are the worst of the three. What the right step is depends on what will be asked.
#
# ## What another matrix forgets
#
# Is all of this needed? Any stable $A$ makes a state that contains the past somehow. So take the usual random one, a matrix of Gaussian numbers, with as many states, a slowest part that fades as slowly, and a $B$ as
# long as HiPPO's, and ask both the same question: *how well can we tell the input of $l$ steps ago from the state of now?*
#
# Feed white noise: every $u_k$ is independent of the others and has variance one. No sample can be guessed from its neighbours, so whatever
# is answered must have been remembered. The noise began so long ago that sums may run over all $l$: by chapter 2 the state is $x_k = \sum_{l \ge 0} \bar A^l \bar B\, u_{k-l}$. Two averages follow at once, since the average
# of a product of two inputs is one if they are the same and otherwise zero. The average of $u_{k-l}\, x_k$ is $\bar A^l \bar B$, and the average of $x_k x_k^\top$ is
#
# $$ \Sigma = \sum_{l \ge 0} \bar A^l \bar B\, (\bar A^l \bar B)^\top . $$
#
# Write $a$ for the column $\bar A^l \bar B$ and read the state with a row $C$. The mean squared error of $C x_k$ as an answer is $1 - 2\, C a + C\, \Sigma\, C^\top$, and it is
# smallest where its gradient $-2 a + 2\, \Sigma\, C^\top$ is zero, at $C^\top = \Sigma^{-1} a$. Put that in ($\Sigma$ is symmetric, so $C = a^\top \Sigma^{-1}$):
#
# $$ \begin{aligned}
# 1 - 2\, C a + C\, \Sigma\, C^\top &= 1 - 2\, a^\top \Sigma^{-1} a + a^\top \Sigma^{-1}\, \Sigma\, \Sigma^{-1} a \\
# &= 1 - \eta_l,
# \end{aligned} $$
#
# $$ \eta_l = a^\top \Sigma^{-1} a = (\bar A^l \bar B)^\top\, \Sigma^{-1}\, \bar A^l \bar B . $$ (hippo-recall)
#
# This $\eta_l$ is also the squared correlation between answer and truth. Their covariance is the average of $C x_k\, u_{k-l}$, which is $C a = \eta_l$; the variance of the answer is $C\, \Sigma\, C^\top = \eta_l$, that of the truth is 1, and $\eta_l^2 / (\eta_l \cdot 1) = \eta_l$. It is
# one if the input of $l$ steps ago is known, zero if it is forgotten.
#
# A surprise comes with it. Add up $\eta_l$ over all ages. A number is its own trace, and factors may rotate inside a trace, so
#
# $$ \sum_{l \ge 0} \eta_l = \operatorname{tr}\Big( \Sigma^{-1} \sum_{l \ge 0} \bar A^l \bar B\, (\bar A^l \bar B)^\top \Big) = \operatorname{tr} I = N. $$ (hippo-budget)
#
# *Every* memory of $N$ numbers recalls $N$ samples in all, if $\Sigma$ can be inverted, a random one too. The sum is known in the literature as memory capacity {cite:p}`jaeger2001memory`. So much on paper. The inverse is where it goes
# wrong: if the responses of the states look alike, the difference between them sits in digits that nobody keeps. So scale each state to
# variance one and let it be known to three digits: each carries an error of size $\varepsilon = 10^{-3}$, independent of the rest, which adds $\varepsilon^2 I$ to $\Sigma$.


# %%
def responses(A, B, step, ages=1000):
    """h_l = Ab^l Bb, each state scaled to variance one on white noise.
    ->  (ages, N)
    """
    Ab, Bb = map(np.asarray, ssm.discretize(A, B, step, "zoh"))
    h = [Bb]
    for _ in range(ages - 1):
        h.append(Ab @ h[-1])
    return np.array(h) / np.sqrt(np.sum(np.square(h), axis=0))


def recall(h, digits):
    """eta_l = h_l^T (Sigma + eps^2 I)^-1 h_l,  Sigma = sum_l h_l h_l^T.
    (ages, N)  ->  (ages,)
    """
    covariance = h.T @ h + 10.0 ** (-2 * digits) * np.eye(h.shape[1])
    return np.einsum("ln,nl->l", h, np.linalg.solve(covariance, h.T))


def random_stable(N, seed, speed=1.0):
    """speed times a Gaussian A, shifted until its largest real part is -1;
    B as long as HiPPO's.
    ->  A (N, N), B (N,)
    """
    rng = np.random.default_rng(seed)
    A, B = speed * rng.normal(size=(N, N)) / np.sqrt(N), rng.normal(size=N)
    A = A - (np.linalg.eigvals(A).real.max() + 1) * np.eye(N)
    B = B / np.linalg.norm(B) * np.linalg.norm(hippo_legs(N)[1])
    return jnp.asarray(A), jnp.asarray(B)


step = 0.05
for system in (hippo_legs(4), random_stable(4, 0)):
    # four numbers, known to eight digits: the whole budget
    budget = recall(responses(*system, step), digits=8).sum()
    np.testing.assert_allclose(budget, 4, rtol=1e-3)

N, digits = 32, 3
systems = {"HiPPO": hippo_legs(N)} | {
    f"random {seed}": random_stable(N, seed) for seed in range(5)
}
h = {name: responses(*system, step) for name, system in systems.items()}
eta = {name: recall(h[name], digits) for name in h}
for name in ("HiPPO", "random 0"):
    some = ", ".join(f"{eta[name][l]:.2f}" for l in (5, 10, 20, 40))
    print(
        f"{name:8}: recalls {eta[name].sum():4.1f} samples in all; "
        f"those 5, 10, 20, 40 steps old: {some}"
    )
random_names = [name for name in systems if name != "HiPPO"]
assert eta["HiPPO"].sum() > 0.85 * N
assert max(eta[name].sum() for name in random_names) < 0.3 * N
assert np.all(eta["HiPPO"][:7] > 0.98)
assert all(np.all(eta["HiPPO"][:100] > eta[name][:100]) for name in random_names)

# %% [markdown]
# Thirty-two numbers of HiPPO recall 29 samples, thirty-two of a Gaussian matrix about seven. Before drawing it we check the formula the plain way:
# run both systems on noise, spoil the states in the third digit, fit a readout by least squares on one half of the time, and measure the
# correlation on the other half.


# %%
def measured_recall(A, B, step, digits, l, seed=0):
    """The squared correlation between u_{k-l} and its best linear readout from the
    spoiled x_k, on fresh noise.
    ->  a number
    """
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=20_000)
    Ab, Bb = ssm.discretize(A, B, step, "zoh")

    def advance(x, u_k):
        x = Ab @ x + Bb * u_k
        return x, x

    x = np.asarray(jax.lax.scan(advance, jnp.zeros(len(B)), jnp.asarray(noise))[1])
    x = x / x.std(axis=0)
    x = (x + 10.0**-digits * rng.normal(size=x.shape))[1000:]
    target, half = noise[1000 - l : len(noise) - l], len(x) // 2
    C = np.linalg.lstsq(x[:half], target[:half])[0]
    return np.corrcoef(x[half:] @ C, target[half:])[0, 1] ** 2


for name in ("HiPPO", "random 0"):
    for l in (2, 10, 20):
        measured = measured_recall(*systems[name], step, digits, l)
        assert abs(measured - eta[name][l]) < 0.05

# %%
figure, axes = plt.subplots()
ages = np.arange(100)
for name in random_names:
    label = "Gaussian matrices" if name == "random 0" else None
    axes.plot(
        ages,
        eta[name][:100],
        color=plotting.COLOURS[1],
        linestyle="--",
        linewidth=1,
        label=label,
    )
axes.plot(
    ages,
    eta["HiPPO"][:100],
    color=plotting.COLOURS[0],
    linestyle="-",
    marker="o",
    markersize=3,
    label="HiPPO-LegS",
)
axes.set(xlabel="how many steps ago", ylabel="squared correlation", ylim=(0, 1.05))
axes.legend()
assert all(eta[name][5] < 0.2 for name in random_names)
plotting.show(
    figure,
    "How well the input of l steps ago can be told from 32 states known to three "
    "digits. HiPPO knows the last eight steps almost exactly, then its curve falls "
    "smoothly: 0.4 at 20 steps, 0.2 at 40. Five Gaussian matrices, nearly equal to each "
    "other, start at 0.7 and are below 0.2 after five steps.",
)

# %% [markdown]
# What do the Gaussian matrices lack? Not slowness: their slowest part fades as slowly as HiPPO's. But their eigenvalues lie close together, in a disc about $-2$, so their 32 responses are the same few
# smooth curves, mixed again and again, and a mixture of old curves is no new information.
#
# How different are HiPPO's? By the impulse response {eq}`hippo-impulse` they are $e^{-\tau} p_n(e^{-\tau})$. For a small step the sum $\Sigma$ becomes, up to a common factor, the integral of their products over $\tau$. Put $r = e^{-\tau}$, $dr = -r\, d\tau$:
#
# $$ \begin{aligned}
# \int_0^\infty e^{-2\tau}\, p_n(e^{-\tau})\, &p_m(e^{-\tau})\, d\tau \\
# &= \int_0^1 r\, p_n(r)\, p_m(r)\, dr .
# \end{aligned} $$ (hippo-gram)
#
# Without the factor $r$ this would be the identity. How far from it are we with the factor? Let $r_i$ be one of the $N$ zeros of $p_N$, and take the vector with the entries $p_0(r_i), \dots, p_{N-1}(r_i)$. Row $n$ of the matrix holds the coefficients of $r\,p_n(r)$ in $p_0, \dots, p_{N-1}$. Summed up with these polynomials they give back $r\,p_n(r)$. Only for
# $n = N - 1$ something is missing, the part of degree $N$, and it is a multiple of $p_N$, which is zero at $r_i$. So matrix times vector is $r_i$ times the vector: *the eigenvalues are the zeros of $p_N$*, the nodes of Gauss's rule on $[0, 1]$. The largest is close to 1, and the smallest falls like $1/N^2$. So the quotient of the two grows like $N^2$ and not
# exponentially, and three digits are plenty for $N = 32$. (On the diagonal stands $\frac12$ throughout, since $p_n^2$ is symmetric about the middle. So to scale to variance one is to double the matrix.) Check that, and count: how many directions
# of the state vary by more than the third digit?

# %%
directions = {
    name: int(np.sum(np.linalg.eigvalsh(h[name].T @ h[name]) > 10.0 ** (-2 * digits)))
    for name in h
}
fewest, most = (f(directions[name] for name in random_names) for f in (min, max))
print(f"HiPPO: {directions['HiPPO']} of {N}; Gaussian: {fewest} to {most}")
assert directions["HiPPO"] > 0.85 * N and most < 0.3 * N
for A, _ in systems.values():  # all equally slow
    slowest = np.linalg.eigvals(np.asarray(A)).real.max()
    np.testing.assert_allclose(slowest, -1, rtol=1e-6)
for name in random_names:  # a disc about -2
    from_its_middle = np.linalg.eigvals(np.asarray(systems[name][0])) + 2
    assert np.abs(from_its_middle).max() < 1.3

for size in (4, 8, 16, 32, 64):
    p = legs_basis(size, node)
    gram = p.T @ ((weight * node)[:, None] * p)  # integral of r p_n p_m
    np.testing.assert_allclose(np.diag(gram), 0.5, rtol=0, atol=1e-12)
    of_the_gram = np.linalg.eigvalsh(gram)
    nodes_of_gauss = (legendre.leggauss(size)[0] + 1) / 2
    np.testing.assert_allclose(of_the_gram, nodes_of_gauss, rtol=0, atol=1e-11)
    assert 0.6 < of_the_gram[-1] / of_the_gram[0] / size**2 < 1
# With a step small enough for the fastest state, the covariance of the samples
# agrees, and all 32 directions are there:
fine = responses(*hippo_legs(N), 0.005, ages=4000)
of_the_samples = np.linalg.eigvalsh(fine.T @ fine)
assert np.all(of_the_samples > 10.0 ** (-2 * digits))
smallest_node = (legendre.leggauss(N)[0][0] + 1) / 2
assert abs(of_the_samples[0] / (2 * smallest_node) - 1) < 0.1

# %% [markdown]
# So HiPPO's three lost samples are the step's doing: 0.05 is too long for its fastest states. Does this test single HiPPO out, then? No. It rejects the usual random matrix, and other random ones do better. Take a Gaussian $G$ and from it $G - G^\top$, which is *skew*: its transpose is minus itself, and its eigenvalues are purely
# imaginary. Subtract the identity. Now all parts fade alike, like $e^{-\tau}$, and they turn at many different speeds. The responses are damped waves of many frequencies, another good set of curves. (Speed alone does not do it: in a Gaussian matrix that turns as fast most parts fade fast as well, and it recalls about eleven.)


# %%
def random_skew(N, seed, speed=16.0):
    """A = speed (G - G^T) / sqrt(2 N) - I, G Gaussian; B as long as HiPPO's.
    ->  A (N, N), B (N,)
    """
    rng = np.random.default_rng(seed)
    G, B = rng.normal(size=(N, N)), rng.normal(size=N)
    A = speed * (G - G.T) / np.sqrt(2 * N) - np.eye(N)
    B = B / np.linalg.norm(B) * np.linalg.norm(hippo_legs(N)[1])
    return jnp.asarray(A), jnp.asarray(B)


def recalls(family, **options):
    """eta_l of five random matrices of one kind.   ->  five times (ages,)"""
    kinds = (family(N, seed, **options) for seed in range(5))
    return [recall(responses(*system, step), digits) for system in kinds]


skew, fast = recalls(random_skew), recalls(random_stable, speed=16.0)
totals = [found.sum() for found in skew]
print(
    f"samples recalled: HiPPO {eta['HiPPO'].sum():.1f}, "
    f"skew {min(totals):.1f} to {max(totals):.1f}"
)
assert min(totals) > eta["HiPPO"].sum() + 2  # more in all,
assert all(found[40] > eta["HiPPO"][40] for found in skew)  # more of the old,
assert all(np.all(found[:9] < eta["HiPPO"][:9]) for found in skew)  # less of the new
assert all(np.abs(found[5:21] - 0.5).max() < 0.1 for found in skew)
assert all(10 < found.sum() < 13 for found in fast)  # the fast Gaussian ones

# %% [markdown]
# By this count the skew matrix wins. It recalls nearly all of its 32 samples: the newest less well than HiPPO, those of 5 to 20 steps ago by about a half each, and the old ones better. So recall alone is no reason for exactly this matrix. What HiPPO's derivation gives, and recall does not, is a meaning: the state is the *optimal polynomial
# approximation* of the past, in a basis that is known. So we can read it, at any age, with a ruler and without fitting a readout.

# %% [markdown]
# ````{admonition} Eigenvalues, and a warning about eigenvectors
# :class: note
#
# The eigenvalues of $A$, on its diagonal, are $-1, -2, \dots, -N$. It is tempting to diagonalise it and be done with powers
# of a full matrix. But the eigenvectors are so nearly parallel that from $N$ of about 24 on float64 cannot even tell their condition number: what
# a library prints is rounding. Chapter 8 looks into it and finds the way around.
# ````

# %%
A, _ = hippo_legs(24)
eigenvalues, eigenvectors = np.linalg.eig(np.asarray(A))
np.testing.assert_allclose(np.sort(eigenvalues.real), -np.arange(24, 0, -1), rtol=1e-12)
# float64 keeps 16 digits, so of this condition number hardly any digit is right:
assert np.linalg.cond(eigenvectors) > 1e14

# %% [markdown]
# ## What we have, and what is missing
#
# * $N$ numbers that are the best polynomial of the whole past, kept up to date from themselves and the present input alone. The equation is
#   $x' = \frac1t (Ax + Bu)$, its solution for held samples is exact, and the error falls with every further number.
# * The same $A$ and $B$ without the $1/t$: a system with a kernel, whose state is the best *warped* polynomial of the past. The step sets how far
#   back it reaches, $1/\Delta$ samples.
# * A test of recall: HiPPO keeps its numbers different from each other, where a Gaussian matrix keeps the same few things many times. Other matrices pass it
#   too. What sets HiPPO's apart is that we know what its state means, and can read it.
#
# All of this remembers, and nothing of it learns: the memory does not know which of the past will matter. The row $C$ that reads the state, and the
# step, are for training to find. [Chapter 4](04_first_network.ipynb) puts the pieces into a network and trains it.
#
# ## Exercises

# %% [markdown]
# ````{exercise} One entry by hand
# :label: hippo-entry
#
# Compute $A_{10}$ and $A_{11}$ on paper, from $p_0 = 1$ and $p_1 = \sqrt3\,(2r-1)$, without the general formula.
# ````

# %% [markdown]
# ````{solution-start} hippo-entry
# :class: dropdown
# ````
# The derivative is $p_1' = 2\sqrt3$, so $r\,p_1' = 2\sqrt3\,r = \sqrt3\,(2r - 1) + \sqrt3 = 1 \cdot p_1 + \sqrt3 \cdot p_0$. Hence $\beta_{11} = 1$ and
# $\beta_{10} = \sqrt3$, and with the one from the factor $1/t$ we get $A_{11} = -(1 + 1) = -2$ and $A_{10} = -\sqrt3$.

# %%
r = np.linspace(0, 1, 11)
p_0, p_1 = legs_basis(2, r).T
expansion = p_1 + np.sqrt(3) * p_0
np.testing.assert_allclose(r * 2 * np.sqrt(3), expansion, rtol=0, atol=1e-14)
np.testing.assert_allclose(hippo_legs(2)[0][1], [-np.sqrt(3), -2], rtol=1e-15)

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} A slower walker
# :label: hippo-slower
#
# Somebody walks the same way at a third of the pace and looks three times in every place. Show that the memory with the $1/t$ ends with the same
# coefficients, and that the time-invariant one does not, unless its step is changed. To what?
# ````

# %% [markdown]
# ````{solution-start} hippo-slower
# :class: dropdown
# ````
# The slow walk is $\tilde u(v) = u(v/3)$, and it ends at $3t$. Its coefficients are $\int_0^1 \tilde u(3t\,r)\, p_n(r)\, dr = \int_0^1 u(t\,r)\, p_n(r)\, dr$,
# the same. No unit of time occurs in them. The time-invariant memory has one, the age at which the weight is down to $1/e$. A third of the step
# gives every place the age that it had, and since the solution for held samples is exact, so is the agreement.

# %%
slow = np.repeat(u, 3)
np.testing.assert_allclose(project_legs(slow, 8)[-1], x[-1, :8], rtol=0, atol=1e-12)
fast_state = invariant_legs(u, 8, 0.01)[-1]
slow_state = invariant_legs(slow, 8, 0.01 / 3)[-1]
np.testing.assert_allclose(slow_state, fast_state, rtol=0, atol=1e-12)
assert np.abs(invariant_legs(slow, 8, 0.01)[-1] - fast_state).max() > 0.1

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} The first coefficient
# :label: hippo-first
#
# What does the coefficient $x_{0,k}$ compute in each of the two systems? Write both as a recurrence in it alone.
# ````

# %% [markdown]
# ````{solution-start} hippo-first
# :class: dropdown
# ````
# $p_0 = 1$, so with the $1/t$ the coefficient $x_{0,k}$ is the mean of all samples so far. Row 0 of $A$ is $(-1, 0, \dots)$, so
# $e^{-\log\frac{k+1}{k}} = \frac{k}{k+1}$ is all that the exponential does to it: $x_{0,k} = \frac{k}{k+1}\, x_{0,k-1} + \frac{1}{k+1}\, u_k$, the running mean.
# Without the $1/t$ the factor is the same in every step: $x_{0,k} = e^{-\Delta} x_{0,k-1} + (1 - e^{-\Delta})\, u_k$, a leaky mean.

# %%
running_mean = np.cumsum(u) / np.arange(1, L + 1)
np.testing.assert_allclose(x[:, 0], running_mean, rtol=0, atol=1e-12)
leaky, kept = 0.0, np.exp(-0.01)
for k, state in enumerate(np.asarray(invariant_legs(u, 8, 0.01))):
    leaky = kept * leaky + (1 - kept) * u[k]
    assert abs(state[0] - leaky) < 1e-11

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} How many numbers are enough?
# :label: hippo-enough
#
# The error over the whole walk must be at most 0.25. Find the smallest $N$ without evaluating any polynomial. Is it enough at *every* moment from step 20 on?
# ````

# %% [markdown]
# ````{solution-start} hippo-enough
# :class: dropdown
# ````
# The squared error is the mean of $u^2$ minus the squares of the coefficients {eq}`hippo-left-over`, and both can be kept up to date while walking: the memory knows
# its own error. Take the first $N$ at which it is small enough. At earlier moments the past is shorter and less has happened in it, so the same
# number of coefficients does at least as well here; a rough end of the walk could have made it otherwise.

# %%
energy = np.cumsum(u**2) / np.arange(1, L + 1)
errors = np.sqrt(np.maximum(energy[:, None] - np.cumsum(x**2, axis=1), 0))  # (L, 64)
enough = int(np.argmax(errors[-1] <= 0.25)) + 1
print(
    f"N = {enough} is enough at the end; "
    f"the largest error from step 20 on is {errors[20:, enough - 1].max():.2f}"
)
assert errors[-1, enough - 1] <= 0.25 < errors[-1, enough - 2]
assert errors[20:, enough - 1].max() <= 0.25  # and at every moment from step 20 on

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Forward Euler in the first steps
# :label: hippo-euler
#
# Replace the exact step by forward Euler, $x_k = x_{k-1} + \frac1k (A x_{k-1} + B u_k)$. For which $k$ does the factor of an eigenvalue exceed one? Watch
# what happens for $N = 16$. How many steps have to be taken in another way before Euler is stable?
# ````

# %% [markdown]
# ````{solution-start} hippo-euler
# :class: dropdown
# ````
# The eigenvalue $-(n+1)$ gets the factor $g = 1 - \frac{n+1}{k}$ in step $k$, and $|g| > 1$ as long as $k < \frac{n+1}{2}$. The worst is $n = N - 1$, so
# steps before $k = N/2 = 8$ explode. Is it enough to take those exactly? No eigenvalue grows from there on, but the state does, for a while: the eigenvectors are
# nearly parallel, and a small sum of large parts becomes large when the parts fade at different rates. About another $N$ exact steps are needed before Euler does no harm.

# %%
A, B = map(np.asarray, hippo_legs(16))


def euler(start):
    """The largest |x_n| at any time: exact until step `start`, Euler from there."""
    state, largest = x[start - 1, :16], 0.0
    for k in range(start, L):
        state = state + (A @ state + B * u[k]) / k
        largest = max(largest, np.abs(state).max())
    return largest


exact = np.abs(x[:, :16]).max()
print(f"exact: at most {exact:.1f}")
print(f"Euler from the second sample on: over 10^{int(np.log10(euler(1)))}")
print(f"Euler from sample 8: {euler(8):.0f}; from sample 24: {euler(24):.1f}")
assert euler(1) > 1e6 and 10 * exact < euler(8) < 1e3 and euler(24) <= exact

# %% [markdown]
# ````{solution-end}
# ````
