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
# # Generating functions
#
# **The kernel is made of the powers $\bar A^0, \dots, \bar A^{L-1}$. Can all of it be had without a single power?**
#
# Part I ended with a network that works and a kernel that takes $L$ steps one after the other, each a product with an $N$ by $N$ matrix. Part II replaces that computation. In this chapter the powers are put into one function of one complex number and disappear into an inverse. It will be slower than before, and it opens the door to what is fast.

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
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import scipy.signal

from annotated_s4 import dplr, generating, plotting, ssm
from annotated_s4.hippo import dplr_legs, hippo_legs, legs_basis
from annotated_s4.ssm import discretize

plotting.use_style()

# %% [markdown]
# ## A sequence as one function
#
# A list of numbers can be kept in a polynomial: the number at place $l$ becomes the coefficient of $z^l$. For the kernel $K_0, \dots, K_{L-1}$ that is
#
# $$ \hat K(z) = \sum_{l=0}^{L-1} K_l\, z^{\,l}, $$ (gen-definition)
#
# its **generating function**. In the same way the inputs become $\hat u(z) = \sum_k u_k z^k$ and the outputs $\hat y(z)$. For now $z$ is a mark that says at which step a number comes. Later it will be a complex number, and the marks are read off again.
#
# What does such a mark do? Two things.
#
# **To multiply by $z$ is to wait one step.** In $z\,\hat u(z) = \sum_k u_k z^{k+1}$ the number $u_k$ stands at place $k + 1$: everything comes one step later. To multiply by $z^3$ is to wait three steps.
#
# **To multiply two polynomials is to convolve.** A term of the kernel at place $l$ and a term of the input at place $k'$ meet at place $l + k'$. Collect what meets at place $k$: these are the pairs with $k' = k - l$ (and $u$ is zero at negative places), so
#
# $$\begin{aligned}
# \hat K(z)\,\hat u(z) &= \sum_{l} \sum_{k'} K_l\, u_{k'}\, z^{\,l + k'} \\
# &= \sum_{k} \Big[ \sum_{l} K_l\, u_{k-l} \Big] z^k .
# \end{aligned}$$ (gen-product)
#
# The bracket is the convolution of [chapter 2](02_convolution.ipynb). Try it by hand with the leaky average that keeps one half. Its kernel begins with $\frac12, \frac14, \frac18$, and the input is $8, 0, 4$:
#
# $$ \left( \tfrac12 + \tfrac14 z + \tfrac18 z^2 \right) \left( 8 + 4 z^2 \right) = 4 + 2z + 3z^2 + z^3 + \tfrac12 z^4 . $$
#
# The first three coefficients are the outputs $4, 2, 3$ that chapter 2 got step by step.

# %%
multiply = np.polynomial.polynomial.polymul
product = multiply([1 / 2, 1 / 4, 1 / 8], [8, 0, 4])
print("the product's coefficients:", product.tolist())
assert product.tolist() == [4, 2, 3, 1, 0.5]
later = multiply([0, 1], [8, 0, 4])  # z times the input: one step later
assert later.tolist() == [0, 8, 0, 4]

# %% [markdown]
# Now the step itself. Mark each line of the recurrence $x_k = \bar A x_{k-1} + \bar B u_k$ with $z^k$ and add all the lines up. On the left stands $\hat x(z) = \sum_k x_k z^k$, a polynomial whose coefficients are vectors. On the right the
# state before appears, which is the state one step late. With $x_{-1} = 0$,
#
# $$ \sum_k x_{k-1} z^k = z \sum_k x_{k-1} z^{k-1} = z\, \hat x(z) . $$
#
# So the whole recurrence, all steps at once, is one equation. It is solved like any linear equation:
#
# $$\begin{aligned}
# \hat x(z) &= z \bar A\, \hat x(z) + \bar B\, \hat u(z) \\
# (I - z \bar A)\, \hat x(z) &= \bar B\, \hat u(z) \\
# \hat y(z) = C \hat x(z) &= C\,(I - z \bar A)^{-1} \bar B\;\, \hat u(z) .
# \end{aligned}$$ (gen-solved)
#
# Compare the last line with the product {eq}`gen-product`: the generating function of the kernel must be $C (I - z \bar A)^{-1} \bar B$. The powers are gone. In their place stands *one* inverse, called the **resolvent**, at one number $z$.
#
# That was quick, and two debts remain. We added up the steps without an end, so we have to say when that sum means something. And we want $L$ numbers, not endlessly many.
#
# ## The series, with and without an end
#
# Multiply the sum of the first $L$ powers by $I - z \bar A$:
#
# $$\begin{aligned}
# (I - z \bar A) \sum_{l=0}^{L-1} z^l \bar A^l &= \sum_{l=0}^{L-1} z^l \bar A^l - \sum_{l=0}^{L-1} z^{l+1} \bar A^{l+1} \\
# &= \sum_{l=0}^{L-1} z^l \bar A^l - \sum_{l=1}^{L} z^{l} \bar A^{l} \\
# &= I - z^L \bar A^L .
# \end{aligned}$$ (gen-telescope)
#
# In the second line $l + 1$ got the name $l$. The two sums then share all terms from $l = 1$ to $L - 1$, which cancel. What is left is the first term of the first sum and the last term of the second.
#
# **When can we divide?** If $g$ is an eigenvalue of $\bar A$, then $1 - z g$ is one of $I - z \bar A$. The inverse exists as long as none of these is zero, that is, as long as $z$ is not $1/g$ for an eigenvalue $g \ne 0$. A stable system has $\rho < 1$, so all the forbidden numbers $1/g$ lie outside the unit circle. Divide from the left:
#
# $$ \sum_{l=0}^{L-1} z^l \bar A^l = (I - z \bar A)^{-1} (I - z^L \bar A^L) = (I - z^L \bar A^L)\,(I - z \bar A)^{-1} . $$ (gen-series)
#
# The two factors may change places. Both $I - z \bar A$ and $I - z^L \bar A^L$ are made of powers of one matrix, so they commute. Multiply $(I - z^L \bar A^L)(I - z \bar A) = (I - z \bar A)(I - z^L \bar A^L)$ by the inverse from both sides, and the claim stands there.
#
# **Without an end.** Let $L$ grow. If $|z|\,\rho < 1$, the matrix $z \bar A$ has a spectral radius below 1, and its powers $z^L \bar A^L$ go to zero. Then the series converges, and
#
# $$ \hat K_\infty(z) = \sum_{l=0}^{\infty} K_l\, z^l = C\,(I - z \bar A)^{-1} \bar B, \qquad |z|\,\rho < 1 . $$ (gen-untruncated)
#
# This is what the quick way found. It pays the first debt: the quick way was right for $|z| < 1/\rho$. Further out the formula still has a value and the series has none. For the leaky average that keeps one half, $\bar A = \bar B = \frac12$, $C = 1$ and $z = 4$, the series is $\frac12 + 1 + 2 + 4 + \dots$, and the formula says $\frac12 / (1 - 2) = -\frac12$.
#
# **With an end.** Put $C$ before and $\bar B$ behind the sum {eq}`gen-series`:
#
# $$ \hat K(z) = \sum_{l=0}^{L-1} C \bar A^l \bar B\, z^l = C\,(I - z^L \bar A^L)\,(I - z \bar A)^{-1} \bar B . $$ (gen-truncated)
#
# This pays the second debt, and it is plain algebra. Nothing had to converge, and it holds inside the circle, on it and outside, wherever the inverse exists. At $z = 4$ and $L = 3$ the sum is $\frac12 + 1 + 2 = 3.5$, and the formula gives $(1 - 4^3 \cdot \frac18) \cdot \frac{1}{1 - 2} \cdot \frac12 = (-7)(-1)\frac12 = 3.5$.
#
# The kernel by powers, as a plain loop in NumPy, is the measure for everything in this chapter. Then the definition and the formula, each as a function of one number $z$:


# %%
def kernel_by_powers(Ab, Bb, C, L):
    """K_l = C Ab^l Bb, one step after the other.   ->  (L,)"""
    x, K = Bb, []
    for _ in range(L):
        K.append(C @ x)
        x = Ab @ x
    return np.array(K)


def relative_error(ours, right):
    """The largest error, as a share of the largest right value."""
    ours, right = np.asarray(ours), np.asarray(right)
    return np.max(np.abs(ours - right)) / np.max(np.abs(right))


def generating_by_sum(Ab, Bb, C, L, z):
    """K_hat(z) = sum_{l<L} z^l C Ab^l Bb, term by term, for one z.

    Ab: (N, N), Bb: (N,), C: (N,), z: a number  ->  a number
    """
    x, total = np.asarray(Bb, complex), 0
    for _ in range(L):
        total, x = total + C @ x, z * (Ab @ x)
    return total


def generating_by_resolvent(Ab, Bb, C, L, z):
    """K_hat(z) = C (I - z^L Ab^L) (I - z Ab)^-1 Bb, for one z.

    Ab: (N, N), Bb: (N,), C: (N,), z: a number  ->  a number
    """
    identity = np.eye(len(Bb))
    row = C @ (identity - np.linalg.matrix_power(z * Ab, L))
    return row @ np.linalg.solve(identity - z * Ab, Bb)


half = np.array([[0.5]]), np.array([0.5]), np.array([1.0])
assert generating_by_sum(*half, 3, 4) == 3.5
assert generating_by_resolvent(*half, 3, 4) == 3.5

# %% [markdown]
# One number proves little. So take the three systems of chapter 2 and, as a fourth, a random complex one of size 4 with $\rho = 0.95$, and compare the two functions at random complex $z$ inside and outside the circle:

# %%
spring_A = jnp.array([[0.0, 1.0], [-((2 * jnp.pi) ** 2), -1.0]])
spring_B = jnp.array([0.0, (2 * jnp.pi) ** 2])
hippo_A, hippo_B = hippo_legs(16)
one_unit_ago = legs_basis(16, np.exp([-1.0]))[0]

draws = np.random.default_rng(0)
random_A, random_B, random_C = (
    draws.normal(size=(*shape, 2)) @ [1, 1j]
    for shape in ((4, 4), (4,), (4,))
)
random_A *= 0.95 / np.max(np.abs(np.linalg.eigvals(random_A)))

position = np.array([1.0, 0.0])  # the spring's C
systems = {
    "leaky average": (np.array([[0.9]]), np.array([0.1]), np.ones(1)),
    "spring": (*discretize(spring_A, spring_B, 1 / 16), position),
    "HiPPO": (*discretize(hippo_A, hippo_B, 1 / 32), one_unit_ago),
    "random complex": (random_A, random_B, random_C),
}
systems = {
    name: tuple(np.asarray(part) for part in system)
    for name, system in systems.items()
}
rho = {
    name: np.max(np.abs(np.linalg.eigvals(Ab)))
    for name, (Ab, _, _) in systems.items()
}

radii, angles = draws.uniform(0.3, 1.3, 40), draws.uniform(0, 2 * np.pi, 40)
for name, system in systems.items():
    largest = 1.0 if name == "HiPPO" else 1.3  # see below
    z_anywhere = np.minimum(radii, largest) * np.exp(1j * angles)
    for L in (1, 9, 32):
        K = kernel_by_powers(*system, L)
        terms = np.abs(K) @ np.abs(z_anywhere) ** np.arange(L)[:, None]
        for z, size in zip(z_anywhere, terms, strict=True):
            by_sum = generating_by_sum(*system, L, z)
            by_resolvent = generating_by_resolvent(*system, L, z)
            polynomial = np.polynomial.polynomial.polyval(z, K)
            assert abs(by_sum - polynomial) < 1e-12 * size
            assert abs(by_resolvent - polynomial) < 1e-10 * size
    package = ssm.kernel_by_powers(*map(jnp.asarray, system), L)
    assert relative_error(package, K) < 1e-12
    print(f"{name:14}  rho = {rho[name]:.3f}: sum and formula agree")

hippo_poles = 1 / np.diag(systems["HiPPO"][0])  # the matrix is triangular
print(f"HiPPO's poles: {hippo_poles.min():.2f} to {hippo_poles.max():.2f}")
assert round(hippo_poles.min(), 2) == 1.03
assert round(hippo_poles.max(), 2) == 1.67

# %% [markdown]
# (The tolerance is a share of the sum of the absolute values of all terms. It is wider for the formula: near a $1/g$ both of its factors get extreme, one large and one small. HiPPO's matrix is far from normal and has sixteen poles on the real axis, from 1.03 to 1.67. Among them float64 loses most of its digits, so HiPPO is compared up to
# $|z| = 1$. We shall not go further.)
#
# And the series without an end: where $|z|\,\rho < 1$, enough terms come as close to the resolvent as one likes. Where $|z|\,\rho > 1$, more terms take it further away.

# %%
random_system = systems["random complex"]
for z in (0.9, 0.9j, -0.9):
    endless = generating_by_sum(*random_system, 400, z)
    Ab, Bb, C = random_system
    resolvent = C @ np.linalg.solve(np.eye(4) - z * Ab, Bb)
    assert abs(endless - resolvent) < 1e-12 * abs(resolvent)

z = 1.2  # |z| rho = 1.14
resolvent = C @ np.linalg.solve(np.eye(4) - z * Ab, Bb)
misses = [
    abs(generating_by_sum(*random_system, L, z) - resolvent)
    for L in (50, 100, 200)
]
print("outside, the series misses by", [f"{miss:.0e}" for miss in misses])
assert misses[0] > 100 and misses[0] < misses[1] < misses[2]

# %% [markdown]
# ````{admonition} Trap: the other z
# :class: warning
#
# Signal processing and control theory write $z^{-1}$ for the delay {cite:p}`oppenheim2010signals`. Their *z-transform* of the kernel is $\sum_l K_l z^{-l}$, so their $z$ is our $1/z$. In their books the poles of a stable system, the eigenvalues $g$ of $\bar A$, lie *inside* the unit circle. In ours the poles are at $1/g$ and lie *outside*. Their formula
# for the kernel is $C (z I - \bar A)^{-1} \bar B$ for a system whose output waits for one step, and ours is their $z$ times that:
# $(I - \frac1z \bar A)^{-1} = z\,(z I - \bar A)^{-1}$. Mixing the two turns time around. This book uses the delay, as the S4 paper does {cite:p}`gu2022s4`, since then a kernel is a polynomial.
# ````
#
# SciPy uses the other $z$, which makes it an independent check. At the angle $\theta$ it puts $e^{i\theta}$ for its $z$, and that is our $z = e^{-i\theta}$. SciPy's state is ours of one step before, $y_k = C \bar A x_{k-1} + C \bar B u_k$:

# %%
Ab, Bb, C = systems["spring"]
theirs = scipy.signal.StateSpace(
    Ab, Bb[:, None], (C @ Ab)[None], [[C @ Bb]], dt=1
)
angles, response = scipy.signal.dfreqresp(theirs, w=np.linspace(0, 3, 20))
for angle, value in zip(angles, response, strict=True):
    z = np.exp(-1j * angle)
    ours = C @ np.linalg.solve(np.eye(2) - z * Ab, Bb)
    assert abs(ours - value) < 1e-12 * np.max(np.abs(response))

g = np.linalg.eigvals(Ab)
print(f"the spring: |g| = {abs(g[0]):.2f}, and 1/|g| = {1 / abs(g[0]):.2f}")
assert np.all(np.abs(theirs.poles) < 1) and np.all(np.abs(1 / g) > 1)

# %% [markdown]
# ## Where the power goes away
#
# The formula {eq}`gen-truncated` still has a power in it, and even one that depends on $z$: the row in front is $C\,(I - z^L \bar A^L)$. But we may choose $z$. What if $z^L = 1$? There are $L$ such numbers, the **roots of unity** that chapter 2 already met:
#
# $$ z_j = e^{-2 \pi i j / L}, \qquad j = 0, \dots, L - 1, \qquad z_j^L = e^{-2\pi i j} = 1 . $$ (gen-roots)
#
# At every one of them the row in front is the same,
#
# $$ \tilde C = C\,(I - \bar A^L), $$ (gen-tilde)
#
# and the generating function is one resolvent between a fixed row and a fixed column:
#
# $$ \hat K(z_j) = \tilde C\,(I - z_j \bar A)^{-1} \bar B . $$ (gen-resolvent)
#
# This is the step on which S4 is built; the S4 paper has it in its appendix C.3 {cite:p}`gu2022s4`. The $L$ powers are replaced by $L$ inverses of the same shape, and the end of the kernel has moved into $\tilde C$.
#
# $\tilde C$ is one row *at the roots of unity*, and nowhere else. Halfway between two roots $z^L$ is $-1$, and the row is $C\,(I + \bar A^L)$. By hand, for the leaky average with $a = 0.9$ and $L = 8$: $0.9^8 = 0.43$, so the row is $0.57$ at the roots and $1.43$ between them. As functions:


# %%
def roots_of_unity(L):
    """z_j = exp(-2 pi i j / L), clockwise from 1.   ->  (L,) complex"""
    return jnp.exp(-2j * jnp.pi * jnp.arange(L) / L)


@jax.jit
def generating_function(Ab, Bb, C_tilde, z):
    """K_hat(z) = C_tilde (I - z Ab)^-1 Bb, one solve for each z.

    Ab: (N, N), Bb: (N,), C_tilde: (N,), z: (points,)  ->  (points,)
    """
    identity = jnp.eye(len(Bb))
    column = jnp.asarray(Bb, complex)

    def at(z_j):
        return C_tilde @ jnp.linalg.solve(identity - z_j * Ab, column)

    return jax.lax.map(at, z)


def row_in_front(Ab, C, L, z):
    """C (I - z^L Ab^L), for one z.   (N, N), (N,), a number  ->  (N,)"""
    return C - z**L * (C @ np.linalg.matrix_power(Ab, L))


L = 8
z_root, z_between = np.exp(-2j * np.pi * np.array([3, 3.5]) / L)
Ab, Bb, C = systems["leaky average"]
for place, z in (("at a root", z_root), ("between two roots", z_between)):
    row = row_in_front(Ab, C, L, z)[0]
    print(f"{place:17}: {row.real:.2f}")
    assert abs(row - (1 - round((z**L).real) * 0.9**8)) < 1e-14

# %% [markdown]
# (`jax.jit` compiles the function at its first call for each new shape, and keeps the program. `jax.lax.map` takes the entries of `z` one at a time, so one matrix of size $N$ by $N$ exists at a time. `jax.vmap` would give the same numbers and build all $L$ matrices at once.)
#
# The check: at the roots the resolvent must be the polynomial, and so the DFT of the kernel, since chapter 2 defined $\hat K_j$ as the polynomial's value at $z_j$.

# %%
for name, system in systems.items():
    Ab, Bb, C = system
    for L in (1, 9, 32):
        K = kernel_by_powers(*system, L)
        z = roots_of_unity(L)
        C_tilde = C @ (np.eye(len(Bb)) - np.linalg.matrix_power(Ab, L))
        values = generating_function(Ab, Bb, C_tilde, z)
        z = np.asarray(z)
        for z_j in z:  # one row for all roots
            row = row_in_front(Ab, C, L, z_j)
            assert relative_error(row, C_tilde) < 1e-11
        by_sum = [generating_by_sum(*system, L, z_j) for z_j in z]
        assert relative_error(values, by_sum) < 1e-12
        assert relative_error(values, np.fft.fft(K)) < 1e-12
print("at the roots of unity one resolvent is the whole sum")

# %% [markdown]
# Where are these points? For the spring with $L = 16$, the picture shows the size of $\hat K_\infty$ in the plane, the sixteen roots and the two poles $1/g$.

# %%
Ab, Bb, C = systems["spring"]
plane = np.linspace(-1.45, 1.45, 241)
z_plane = plane[None, :] + 1j * plane[:, None]  # (241, 241)
values = generating_function(Ab, Bb, C, jnp.asarray(z_plane.ravel()))
size = np.log10(np.abs(np.asarray(values))).reshape(z_plane.shape)

z = np.asarray(roots_of_unity(16))
poles = 1 / np.linalg.eigvals(Ab)


def xy(points):
    """Real and imaginary parts, to draw complex numbers as points."""
    return points.real, points.imag


figure, axes = plt.subplots(figsize=(5.2, 4.2))
levels = np.linspace(-1.5, 1.5, 13)
filled = axes.contourf(plane, plane, size, levels, extend="both")
circle = np.exp(1j * np.linspace(0, 2 * np.pi, 200))
axes.plot(*xy(circle), color="white", linestyle="-", lw=1)
style = {"linestyle": "none", "mec": "black"}
orange = plotting.COLOURS[1]
axes.plot(*xy(poles), "X", ms=13, mfc=orange, label="poles $1/g$", **style)
axes.plot(*xy(z), "o", ms=5, mfc="white", label="roots $z_j$", **style)
for j in (0, 1, 2, 3, 15):
    axes.text(*xy(0.8 * z[j]), f"$z_{{{j}}}$", color="white", ha="center")
axes.set(xlabel="real part of $z$", ylabel="imaginary part of $z$")
axes.set_aspect("equal")
axes.grid(False)
axes.legend(fontsize=8, loc="lower left", frameon=True)
figure.colorbar(filled, label=r"$\log_{10} |\hat K_\infty(z)|$")
plotting.show(
    figure,
    "The complex plane with the unit circle and the sixteen roots of unity on it, numbered clockwise from 1. Shading shows the size of the spring's generating function: it is largest "
    "around two poles, which lie a little outside the circle next to the roots 1 and 15, and small on the left side. The values at the roots are large where a root comes near a pole.",
)
nearest = np.abs(z[:, None] - poles[None, :]).min(axis=1)
assert set(np.argsort(nearest)[:2].tolist()) == {1, 15}

# %% [markdown]
# The poles stand a little outside the circle, next to $z_1$ and $z_{15}$. There the spring answers most: one swing takes about sixteen steps, and $z_1$ is one turn in sixteen steps.
#
# ## Back to the kernel
#
# We have $L$ values and want $L$ coefficients. Chapter 2 proved the way back, the inverse DFT:
#
# $$ K_l = \frac1L \sum_{j=0}^{L-1} \hat K(z_j)\, z_j^{-l} . $$ (gen-back)
#
# The inverse FFT computes it for all $l$ in $L \log L$ operations. The sign in the exponent is the FFT's own: `fft` uses $e^{-2\pi i jl/L}$, so with $z_j = e^{-2\pi i j/L}$ there is nothing to turn around.


# %%
def kernel_from_values(values):
    """K_l = 1/L sum_j K_hat(z_j) z_j^-l.   (L,)  ->  (L,), complex"""
    return jnp.fft.ifft(values)


def kernel_by_resolvent(Ab, Bb, C_tilde, L):
    """All K_l, l < L, given C_tilde.   (N, N), (N,), (N,)  ->  (L,)"""
    z = roots_of_unity(L)
    return kernel_from_values(generating_function(Ab, Bb, C_tilde, z))


for name, system in systems.items():
    Ab, Bb, C = system
    for L in (1, 9, 32):
        C_tilde = C @ (np.eye(len(Bb)) - np.linalg.matrix_power(Ab, L))
        K = kernel_by_powers(*system, L)
        ours = kernel_by_resolvent(Ab, Bb, C_tilde, L)
        assert relative_error(ours, K) < 1e-12, (name, L)

    # The package's own, at the last length
    z = generating.roots_of_unity(L)
    parts = map(jnp.asarray, (Ab, Bb, C_tilde))
    values = generating.generating_function(*parts, z)
    package = generating.kernel_from_values(values)
    assert relative_error(package, ours) < 1e-12
    print(f"{name:14}: the kernel by one resolvent for each frequency")

# %% [markdown]
# Given the row $\tilde C$, that is the chapter's question answered: a kernel by powers and a kernel by resolvents, and they differ by less than $10^{-12}$ of the largest entry. Four systems, three lengths, real and complex.
#
# ````{admonition} Trap: four ways to print it wrong
# :class: warning
#
# This formula is short, and several wrong versions of it are in print. For the leaky average with $a = 0.9$ and $L = 8$, where the right kernel begins with $0.100, 0.090, 0.081$:
#
# * **$(I - \bar A)^{-1}$ without the $z$.** All frequencies get the same value, and the inverse FFT makes $0.570, 0, 0$ of it: the sum of the kernel at place 0, and silence.
# * **Roots of unity without the $i$.** $e^{2\pi j/L}$ is a real number between 1 and 244, and its $L$-th power is not 1. The kernel begins with $0.060, 0.067, 0.073$, and an imaginary part comes with it.
# * **$C\,(I - z^L \bar A^L)$ called a constant.** True at the roots alone. Halfway between two of them $1.43$ is right and the constant is $0.57$.
# * **The other sign, $e^{+2\pi i j/L}$.** The kernel runs backwards after its first entry: $0.100, 0.048, 0.053$.
# ````

# %%
Ab, Bb, C = systems["leaky average"]
L = 8
C_tilde = C * (1 - 0.9**L)
j = jnp.arange(L)
resolvent_without_z = complex(C_tilde @ Bb / (1 - 0.9))
right = 0.1 * 0.9 ** np.arange(L)
versions = {
    "right": generating_function(Ab, Bb, C_tilde, roots_of_unity(L)),
    "without z": jnp.full(L, resolvent_without_z),
    "without i": generating_function(
        Ab, Bb, C_tilde, jnp.exp(2 * jnp.pi * j / L) + 0j
    ),
    "other sign": generating_function(
        Ab, Bb, C_tilde, jnp.exp(2j * jnp.pi * j / L)
    ),
}
first_three = {}
for name, values in versions.items():
    K = np.asarray(kernel_from_values(values))
    first_three[name] = K[:3].real
    print(f"{name:11}", [round(float(K_l), 3) + 0.0 for K_l in K[:3].real])

for name, expected, tolerance in (
    ("right", right[:3], 1e-13),
    ("without z", [right.sum(), 0, 0], 1e-13),
    ("without i", [0.060, 0.067, 0.073], 1e-2),
    ("other sign", right[[0, 7, 6]], 1e-13),
):
    assert relative_error(first_three[name], expected) < tolerance
imaginary = kernel_from_values(versions["without i"]).imag
assert np.max(np.abs(imaginary)) > 5e-3
assert round(float(np.exp(2 * np.pi * 7 / 8))) == 244

# %% [markdown]
# The third mistake is worth a picture, since at the roots nobody sees it. The true generating function is a polynomial and defined on the whole circle. Take the spring with $L = 24$ and walk along the circle from $z_0$ to $z_6$, once with the polynomial and once with $\tilde C$ held fixed:

# %%
Ab, Bb, C = systems["spring"]
L = 24
C_tilde = C @ (np.eye(2) - np.linalg.matrix_power(Ab, L))
fine = np.linspace(0, 6, 241)  # between the roots, in units of j
z_fine = np.exp(-2j * np.pi * fine / L)
K = kernel_by_powers(*systems["spring"], L)
true = np.abs(np.polynomial.polynomial.polyval(z_fine, K))
constant = np.abs(generating_function(Ab, Bb, C_tilde, jnp.asarray(z_fine)))
assert relative_error(constant[::40], true[::40]) < 1e-12  # the roots
worst = relative_error(constant, true)
assert round(np.max(true), 1) == 3.4
assert round(float(np.max(constant)), 1) == 9.5
print(f"between the roots it misses by up to {worst:.1f} times the peak")
assert worst > 1

figure, axes = plt.subplots()
axes.plot(fine, true, label="the polynomial", linewidth=3)
axes.plot(fine, constant, label=r"$\tilde C$ held constant")
axes.plot(fine[::40], true[::40], "ko", label="at the roots")
axes.set(xlabel="frequency, $j$", ylabel=r"$|\hat K(z)|$", ylim=(0, None))
axes.legend(fontsize=8)
plotting.show(
    figure,
    "The size of the spring's generating function for L = 24 along the circle, frequencies 0 to 6. The polynomial is a hill of height 3.4 between the frequencies 1 and 2 with small side lobes. The curve with C-tilde held constant meets it at the seven roots of unity, marked by dots, "
    "and is far away from it in between: its peak reaches 9.5. The short formula is right at the roots alone.",
)

# %% [markdown]
# ### Half of the frequencies
#
# A real kernel has a saving. Conjugate the definition; $\overline{K_l} = K_l$, and the conjugate goes to the $z$ alone:
#
# $$ \overline{\hat K(z)} = \sum_{l} \overline{K_l}\;\overline{z}^{\,l} = \sum_l K_l\, \overline{z}^{\,l} = \hat K(\overline z) . $$ (gen-conjugate)
#
# (Here the bar is a conjugate, over numbers.) On the circle $\overline{z_j} = z_{L-j}$, so the values at $j$ and $L - j$ are conjugates of each other. It is enough to compute $j = 0, \dots, \lfloor L/2 \rfloor$, and `irfft` knows how to go back from there. It must be told the length. For $L = 9$ there are $\lfloor 9/2 \rfloor + 1 = 5$ values, for $L = 8$ there are $8/2 + 1 = 5$ as well:


# %%
def real_kernel_by_resolvent(Ab, Bb, C_tilde, L):
    """All K_l of a real system, l < L, from half of the frequencies.

    Ab: (N, N), Bb: (N,), C_tilde: (N,), all real  ->  (L,) real
    """
    z = roots_of_unity(L)[: L // 2 + 1]
    return jnp.fft.irfft(generating_function(Ab, Bb, C_tilde, z), n=L)


for L in (9, 32):
    for name in ("leaky average", "spring", "HiPPO"):
        Ab, Bb, C = systems[name]
        C_tilde = C @ (np.eye(len(Bb)) - np.linalg.matrix_power(Ab, L))
        ours = real_kernel_by_resolvent(Ab, Bb, C_tilde, L)
        assert ours.shape == (L,)
        assert relative_error(ours, kernel_by_powers(Ab, Bb, C, L)) < 1e-12
        values = generating_function(Ab, Bb, C_tilde, roots_of_unity(L))
        partners = jnp.conj(values[-jnp.arange(L) % L])  # at L - j
        assert relative_error(values, partners) < 1e-12

# %% [markdown]
# ````{admonition} Trap: a kernel of nine that comes back with eight
# :class: warning
#
# `jnp.fft.irfft(values)` without `n=L` assumes an even length. From the five values of a kernel with $L = 9$ it makes eight numbers. They have the wrong length *and* are wrong from the first one on: for the leaky average 0.108 where 0.100 is right. With `n=9` all nine are right.
# ````

# %%
Ab, Bb, C = systems["leaky average"]
L = 9
values = generating_function(
    Ab, Bb, C * (1 - 0.9**L), roots_of_unity(L)[: L // 2 + 1]
)
told, untold = jnp.fft.irfft(values, n=L), jnp.fft.irfft(values)
print(f"told:   {told.shape[0]} numbers, the first is {told[0]:.3f}")
print(f"untold: {untold.shape[0]} numbers, the first is {untold[0]:.3f}")
assert told.shape == (9,) and untold.shape == (8,)
assert relative_error(told, 0.1 * 0.9 ** np.arange(9)) < 1e-12
assert round(float(untold[0]), 3) == 0.108

# %% [markdown]
# ## The answer to a tone
#
# The values $\hat K(z_j)$ were a means to an end, but they say something themselves. Feed the system with a tone, $u_k = z^{-k}$ with $z = e^{-i\theta}$: a point that turns by the angle $\theta$ at each step. Once the start is forgotten, the output is
#
# $$ y_k = \sum_{l=0}^{\infty} K_l\, z^{-(k - l)} = z^{-k} \sum_{l=0}^{\infty} K_l\, z^l = \hat K_\infty(z)\, u_k . $$ (gen-tone)
#
# The same tone comes out, larger or smaller by $|\hat K_\infty(z)|$ and turned by its angle. So $|\hat K|$ on the circle is the **frequency response**: what the system lets through. If the kernel has died out within $L$ steps, $\hat K$ and $\hat K_\infty$ are nearly the same on the circle.
#
# Guess it for two systems and $L = 256$. The spring swings once in 16 steps. In 256 steps these are 16 swings, so its peak should be at $j = 16$. The HiPPO memory was asked for its input of one time unit ago, which is 32 steps. If it does that well, it is a delay, and $\hat K(z)$ should be close to $z^{32}$, of size 1, for slow tones. A memory of 16 numbers cannot do that for all tones. It must fail somewhere.

# %%
L = 256
j = np.arange(L // 2 + 1)
z = np.asarray(roots_of_unity(L))[: L // 2 + 1]
spectra = {}
for name in ("spring", "HiPPO"):
    Ab, Bb, C = systems[name]
    C_tilde = C @ (np.eye(len(Bb)) - np.linalg.matrix_power(Ab, L))
    spectra[name] = np.asarray(generating_function(Ab, Bb, C_tilde, z))

loudness = np.abs(spectra["spring"])
peak = loudness.argmax()
for name, values in spectra.items():  # a long tone at that frequency
    tone = z[peak] ** -np.arange(1000.0)
    y = np.convolve(kernel_by_powers(*systems[name], 1000), tone)[999]
    assert abs(y / tone[-1] - values[peak]) < 0.01 * abs(values[peak])
print(f"the spring's peak: {loudness[peak]:.1f} at j = {peak}")
delay = np.abs(spectra["HiPPO"] - z**32)
print("the memory's distance from a delay of 32 steps:")
print(f"  at most  {delay[:8].max():.2f} for j < 8")
print(f"  at least {delay[24:].min():.2f} for j > 23")
assert peak == 16 and delay[:8].max() < 0.2 and delay[24:].min() > 0.5

figure, axes = plt.subplots()
for (name, values), marker in zip(spectra.items(), "os", strict=True):
    axes.semilogy(j, np.abs(values), marker=marker, ms=3, label=name)
axes.axvline(16, color="0.4", linestyle=":", label="one swing in 16 steps")
axes.set(xlabel="frequency, $j$ turns in 256 steps")
axes.set(ylabel=r"$|\hat K(z_j)|$")
axes.legend(fontsize=8)
plotting.show(
    figure,
    "Frequency responses of the spring and the HiPPO memory, on a logarithmic scale, for frequencies 0 to 128. The spring starts at one, has a sharp peak at frequency 16 and falls steeply after it. The memory stays near one up to about frequency 12 and then falls. "
    "Both let slow tones through and stop fast ones; the spring amplifies one tone.",
)

# %% [markdown]
# Both guesses hold. The spring amplifies its own tone, and the memory is a delay for slow tones and lets fast ones go.
#
# ## One row to make, and one power left
#
# $\tilde C = C\,(I - \bar A^L)$ contains one power. How much work is it? Squaring doubles the exponent: $\bar A, \bar A^2, \bar A^4, \bar A^8, \dots$. Written in binary, $L$ says which of these have to be multiplied together.
#
# Take $L = 1000$. In binary it is $1111101000$, since $1000 = 512 + 256 + 128 + 64 + 32 + 8$: ten digits, six of them ones. The squares up to $\bar A^{512}$ take nine products. To multiply six of them together takes five more. Fourteen products, where one after the other would take 999. In general it is (digits $-$ 1) $+$ (ones $-$ 1). The number of digits is $\lfloor \log_2 L \rfloor + 1$ and there are no more ones than digits, so the count is at most $2 \log_2 L$ (here 19.9).


# %%
def power_by_squaring(Ab, L):
    """Ab^L and the number of products of matrices that it took, L >= 1."""
    result, square, products = None, Ab, 0
    for digit in range(L.bit_length()):
        if digit > 0:
            square, products = square @ square, products + 1  # Ab^(2^digit)
        if L >> digit & 1 and result is None:
            result = square
        elif L >> digit & 1:
            result, products = result @ square, products + 1
    return result, products


Ab = systems["random complex"][0]
for L in (1, 2, 9, 1000, 1023, 1024):
    power, products = power_by_squaring(Ab, L)
    digits, ones = L.bit_length(), L.bit_count()
    print(f"L = {L:4}: {L:>10b} in binary, {products:2} products")
    assert products == (digits - 1) + (ones - 1) <= 2 * np.log2(L)
    right = np.eye(4)
    for _ in range(L):
        right = right @ Ab
    np.testing.assert_allclose(power, right, rtol=0, atol=1e-13)

# %% [markdown]
# So $C$ becomes $\tilde C$ with one power and a product. The way back is one linear system. Call $M = I - \bar A^L$. From $\tilde C = C M$ follows, transposed, $M^\top C^\top = \tilde C^\top$ (a plain transpose; a conjugate has no business here), and that can be solved as long as $M$ has an inverse: no eigenvalue of $\bar A$ may be an $L$-th root of unity. For $\rho < 1$ none is.


# %%
def to_tilde(C, Ab, L):
    """C_tilde = C (I - Ab^L).   C: (N,), Ab: (N, N)  ->  (N,)"""
    return C - C @ power_by_squaring(Ab, L)[0]


def from_tilde(C_tilde, Ab, L):
    """C = C_tilde (I - Ab^L)^-1.   C_tilde: (N,), Ab: (N, N)  ->  (N,)"""
    M = np.eye(len(C_tilde)) - power_by_squaring(Ab, L)[0]
    return np.linalg.solve(M.T, C_tilde)


for name, (Ab, Bb, C) in systems.items():
    for L in (1, 9, 96):
        C_tilde = to_tilde(C, Ab, L)
        back = from_tilde(C_tilde, Ab, L)
        assert relative_error(back, C) < 1e-10, (name, L)

# %% [markdown]
# The package's functions of the same name take a system in the form of the coming chapters, $A = \Lambda - P Q^*$, a diagonal matrix minus a column times a row. ($Q^*$ is the conjugate transpose of $Q$, the only conjugate in this formula.) Its numbers come in conjugate pairs, and one of each pair is given. Here we take such numbers as they fall, random and complex with $P \ne Q$, and write the full state out:

# %%
Lambda = -0.2 - draws.uniform(size=4) + 3j * draws.normal(size=4)
P, Q, C_half = (draws.normal(size=(3, 4, 2)) @ [1, 1j]) * 0.2


def full(half):
    """One of each conjugate pair -> both.   (N/2,)  ->  (N,)"""
    return np.concatenate([half, half.conj()])


A = np.diag(full(Lambda)) - np.outer(full(P), full(Q).conj())
step, L = 0.05, 100
Ab = np.linalg.solve(np.eye(8) - step / 2 * A, np.eye(8) + step / 2 * A)
ours = to_tilde(full(C_half), Ab, L)
assert np.max(np.abs(np.linalg.eigvals(Ab))) < 1
assert relative_error(ours[4:], ours[:4].conj()) < 1e-12

parts = [jnp.asarray(part) for part in (Lambda, P, Q)]
package = generating.to_tilde(jnp.asarray(C_half), *parts, step, L)
assert relative_error(package, ours[:4]) < 1e-12
back = generating.from_tilde(package, *parts, step, L)
assert relative_error(back, C_half) < 1e-10
print("C~ comes in conjugate pairs as well, and C comes back")

# %% [markdown]
# ## What happens without the tilde
#
# Suppose someone forgets the tilde and uses $C$ at the $L$ roots of unity. Nothing fails. Which kernel comes out? At a root $z_j$ the formula with $C$ is $\hat K_\infty(z_j)$, the series without an end. Sort its terms: every place is $l + wL$ with $l$ from 0 to $L - 1$ and $w = 0, 1, 2, \dots$ turns, and $z_j^{\,l + wL} = z_j^{\,l}$. So
#
# $$ \hat K_\infty(z_j) = \sum_{l=0}^{L-1} \sum_{w=0}^{\infty} K_{l + wL}\; z_j^{\,l + wL} = \sum_{l=0}^{L-1} \Big[ \sum_{w=0}^{\infty} K_{l + wL} \Big] z_j^{\,l} . $$ (gen-wrapped)
#
# The inverse FFT returns the bracket: the endless kernel wound around a circle of $L$ places, everything added that lands on the same place (called *aliasing*). With $\sum_w \bar A^{wL} = (I - \bar A^L)^{-1}$, the series {eq}`gen-untruncated` for the matrix $\bar A^L$ at $z = 1$, the bracket is
#
# $$ \sum_{w=0}^{\infty} K_{l+wL} = C\,\Big[ \sum_{w=0}^{\infty} \bar A^{wL} \Big] \bar A^l \bar B = C\,(I - \bar A^L)^{-1} \bar A^l \bar B . $$ (gen-bracket)
#
# Now it can be seen what the tilde is for. Winding puts a factor $(I - \bar A^L)^{-1}$ behind the row. $\tilde C = C\,(I - \bar A^L)$ carries the opposite factor, and the two cancel: what is left is $C \bar A^l \bar B = K_l$. With the tilde the tail is subtracted before it comes around. (If the kernel has died out within $L$ steps, there is no tail, and $\tilde C$ is nearly $C$.)
#
# How wrong is it for the leaky average with $L = 32$? One turn keeps $0.9^{32} = 0.034$, so its kernel is too large by the factor $1/(1 - 0.034)$: 4 %. The others have longer tails.
#
# The same happens with the right polynomial and too few points: at $L' < L$ roots of unity the coefficient $K_{l}$ lands on place $l \bmod L'$. By hand: $(1, 2, 4, 8, 16)$ on three points gives $(1 + 8,\; 2 + 16,\; 4)$.

# %%
few = np.polynomial.polynomial.polyval(
    np.asarray(roots_of_unity(3)), [1, 2, 4, 8, 16]
)
assert relative_error(kernel_from_values(few), [9, 18, 4]) < 1e-14

L = 32
figure, axes = plt.subplots()
for name, (Ab, Bb, C) in systems.items():
    long = kernel_by_powers(Ab, Bb, C, 40 * L)
    K, wound = long[:L], long.reshape(40, L).sum(axis=0)
    untilded = kernel_by_resolvent(Ab, Bb, C, L)
    tilded = kernel_by_resolvent(Ab, Bb, to_tilde(C, Ab, L), L)
    changed = from_tilde(C, Ab, L)  # the row C (I - Ab^L)^-1
    bracket = kernel_by_powers(Ab, Bb, changed, L)
    assert relative_error(untilded, wound) < 1e-12
    assert relative_error(bracket, wound) < 1e-12
    assert relative_error(tilded, K) < 1e-12
    wrong = relative_error(untilded, K)
    print(f"{name:14}  without the tilde off by {wrong:.0%}")
    assert wrong > 0.02
    if name == "leaky average":
        assert abs(wrong - 0.9**L / (1 - 0.9**L)) < 1e-12
    if name == "spring":
        axes.plot(long[: 2 * L], label="the kernel, with its tail", lw=3)
        axes.plot(untilded.real, marker="s", ms=3, label="from $C$")
        axes.plot(tilded.real, "ko", ms=4, label=r"from $\tilde C$")
axes.axvline(L - 0.5, color="0.4", linestyle=":", linewidth=1)
axes.annotate("$L = 32$", (L, -0.7))
axes.set(xlabel="steps ago, $l$", ylabel="kernel", ylim=(-0.8, 0.8))
axes.legend(fontsize=8, loc="upper right")
plotting.show(
    figure,
    "The spring's kernel over 64 steps, still swinging after step 32. What is computed at 32 roots of unity with C-tilde lies on its first 32 entries. What is computed with the plain C swings more widely than the true kernel, since the tail "
    "after step 32 has been added at the beginning.",
)

# %% [markdown]
# ## A row that belongs to one length
#
# In the S4 paper's model, and in this book's S4 layer, $\tilde C$ itself is the parameter that training changes. $C$ does not occur, so no power is computed in training at all. The one power was only needed to get from a given $C$ to the row; whoever learns the row does not need it. (After training, when the recurrence asks for $C$, one solve gives it. That is chapter 9.)
#
# The price: the same numbers $\tilde C$ mean another system at another length. By {eq}`gen-bracket`, with $\tilde C$ in the place of $C$, the kernel that comes from a row $\tilde C$ at $L$ points is
#
# $$ K_l = \tilde C\,(I - \bar A^L)^{-1} \bar A^l \bar B , $$ (gen-length)
#
# and the factor in the middle depends on $L$. How much? Take HiPPO with $N = 8$ and the step $1/64$, and for $\tilde C$ the first unit vector $e_0$. The first row of HiPPO's $A$ is $(-1, 0, \dots, 0)$, so $e_0 A = -e_0$, and the row $e_0$ sees one number that decays with the rate 1. It keeps a share $g$ close to $e^{-1/64}$ in each step, so $g^{64}$ is about $e^{-1} = 0.368$. Then
#
# $$ \frac{K_l \text{ for } L = 128}{K_l \text{ for } L = 64} = \frac{1 - g^{64}}{1 - g^{128}} = \frac{1 - g^{64}}{(1 - g^{64})(1 + g^{64})} = \frac{1}{1 + g^{64}} = 0.731 . $$
#
# The kernel made for 128 should be smaller by $1 - 0.731 = 26.9\,\%$. Or, seen from the other side, the one for 64 should be larger by $g^{64} = 36.8\,\%$.

# %%
A, B = hippo_legs(8)
Ab, Bb = (np.asarray(part) for part in discretize(A, B, 1 / 64))
e_0 = np.eye(8)[0]
np.testing.assert_allclose(e_0 @ A, -e_0, rtol=0, atol=1e-15)


def two_lengths(C_tilde):
    """The first 64 entries for L = 64 and for L = 128 from one row."""
    K_64 = real_kernel_by_resolvent(Ab, Bb, C_tilde, 64)
    K_128 = real_kernel_by_resolvent(Ab, Bb, C_tilde, 128)
    return np.asarray(K_64), np.asarray(K_128[:64])


K_64, K_128 = two_lengths(e_0)
from_64 = relative_error(K_128, K_64)
from_128 = relative_error(K_64, K_128)
print(f"the kernels differ by {from_64:.1%} of the one for L = 64,")
print(f"                   or {from_128:.1%} of the one for L = 128")
assert round(100 * from_64, 1) == 26.9 and round(100 * from_128, 1) == 36.8
by_powers = kernel_by_powers(Ab, Bb, from_tilde(e_0, Ab, 64), 64)
assert relative_error(K_64, by_powers) < 1e-11

others = []
for C_tilde in np.eye(8)[1:]:
    short, long = two_lengths(C_tilde)
    others.append(relative_error(long, short))
print(f"other unit vectors: {min(others):.0%} to {max(others):.0%}")
assert 0.03 < min(others) and max(others) < 0.27

# The same system in the modes that chapter 8 derives: e_0 becomes e_0 V.
Lambda, P, B_modes, V = dplr_legs(8)
in_modes = [
    np.asarray(dplr.kernel_dplr(Lambda, P, P, B_modes, V[0], 1 / 64, L))
    for L in (64, 128)
]
assert relative_error(in_modes[0], K_64) < 1e-11
assert relative_error(in_modes[1][:64], K_128) < 1e-11

# %% [markdown]
# ````{admonition} Trap: the same parameters at another length
# :class: warning
#
# A model whose parameter is $\tilde C$ was trained at $L = 64$. Evaluated at 128 points without a conversion it runs, and it is another filter: here the kernel is off by 26.9 %. Right: make the kernel at the $L$ it was trained for. A shorter sequence takes the first entries of that kernel, and that is exact. A longer one needs $C$ (from `from_tilde` with the old $L$), or the recurrence.
# ````
#
# ## What it costs now
#
# Powers: one scan, $L\,(N^2 + N)$ multiplications (chapter 2). Resolvents: for each frequency a linear system of size $N$, whose elimination takes about $N^3/3$ complex multiplications, four real ones each. For $L = 1024$ and $N = 64$ that is $1024 \cdot \frac{64^3}{3} \cdot 4 = 358$ million, against $1024 \cdot 4160 = 4.3$ million: 84 times as many. With half of the frequencies, 42 times.
#
# So nothing was gained? In this form, nothing but the end of the chain: no frequency waits for another. But the shape of the problem has changed. Look at what stands between the row and the column, once $\bar A$ is a diagonal matrix with $g_1, \dots, g_N$ on its diagonal:
#
# $$ (I - z \bar A)^{-1} = \begin{pmatrix} \frac{1}{1 - z g_1} & & \\ & \ddots & \\ & & \frac{1}{1 - z g_N} \end{pmatrix}, \qquad \hat K(z) = \sum_{n=1}^{N} \frac{\tilde C_n \bar B_n}{1 - z g_n} . $$ (gen-diagonal)
#
# The inverse of a diagonal matrix is $N$ divisions. A kernel costs $L N$ of them, and no longer $L N^2$ or $L N^3$. The spring in the basis of its eigenvectors (chapter 2) is such a system:

# %%
L, N = 1024, 64
resolvents, powers = 4 * L * N**3 / 3, L * (N**2 + N)
print(f"resolvents: {resolvents / 1e6:.0f} million products,", end=" ")
print(f"{resolvents / powers:.0f} times as many as powers")
assert round(resolvents / 1e6) == 358 and round(resolvents / powers) == 84
assert round(resolvents / powers * (L // 2 + 1) / L) == 42


def diagonal_generating_function(g, Bb, C_tilde, z):
    """K_hat(z) = sum_n C_tilde_n Bb_n / (1 - z g_n).

    g, Bb, C_tilde: (N,), z: (points,)  ->  (points,)
    """
    return (C_tilde * Bb / (1 - z[:, None] * g)).sum(-1)  # (points, N)


Ab, Bb, C = systems["spring"]
g, V = np.linalg.eig(Ab)
L = 96
C_tilde = (C @ V) * (1 - g**L)
Bb_modes = np.linalg.solve(V, Bb)
z = roots_of_unity(L)
values = diagonal_generating_function(g, Bb_modes, C_tilde, z)
K = kernel_by_powers(Ab, Bb, C, L)
assert relative_error(kernel_from_values(values), K) < 1e-12
print("N divisions for each frequency: the same kernel")

# %% [markdown]
# Two fair questions. For a diagonal matrix the powers are cheap as well, $K_l = \sum_n C_n \bar B_n g_n^{\,l}$, so why the detour? And HiPPO's matrix is not diagonal. Both have one answer, and it is what the next chapters are about. In suitable coordinates HiPPO's matrix is a diagonal one minus a column times a row (chapter 8). The *powers* of such a difference are a tangle, in which the correction multiplies with itself again and again. Its *inverse* is the diagonal inverse plus one correction, by an
# identity of Woodbury that chapter 7 derives. That is why we wanted an inverse and no powers.
#
# ## Two nearly equal numbers
#
# A warning for later. When the step is small, $\bar A$ is close to $I$, and $I - \bar A^L$ and $I - z \bar A$ at $z = 1$ are differences of nearly equal numbers. How many digits remain?
#
# Take one number that decays with the rate 1, step $\Delta$, and round $g$ to float32. Below 1 the float32 numbers have a distance of $2^{-24}$, so the rounding error is at most $2^{-25} = 3 \cdot 10^{-8}$. But $1 - g$ is about $\Delta$, so the *relative* error of $1 - g$, and of $1 - g^L$ as long as $L \Delta$ is small, can reach
#
# $$ \frac{2^{-25}}{\Delta} : \qquad 3 \cdot 10^{-6} \text{ for } \Delta = 0.01, \qquad 0.3\,\% \text{ for } \Delta = 10^{-5} . $$
#
# The way back from $\tilde C$ to $C$ divides by this small number. For a matrix, the factor by which an error can grow there is the norm of $(I - \bar A^L)^{-1}$.

# %%
L = 64
A, B = hippo_legs(16)
print("step     1 - g^L   rounding g   norm of the inverse")
for step in (0.03, 3e-3, 3e-4, 1e-5):
    g = (1 - step / 2) / (1 + step / 2)
    # Rounded once to float32; everything else in float64.
    rounded = float(np.float32(g))
    relative = abs((1 - rounded**L) / (1 - g**L) - 1)
    assert 0.1 * 2**-25 / step < relative < 1.1 * 2**-25 / step
    Ab = np.asarray(discretize(A, B, step)[0])
    inverse = np.linalg.inv(np.eye(16) - np.linalg.matrix_power(Ab, L))
    norm = np.linalg.norm(inverse, 2)
    print(f"{step:.0e}    {1 - g**L:.1e}   {relative:.0e}     {norm:10.2f}")
    assert norm >= 1 / (1 - g**L) - 1e-9  # the slowest eigenvalue is -1
assert relative > 1e-4

# %% [markdown]
# The errors stay below their bound, by less than a factor of ten. In float64 all of this is $2^{29}$ times smaller, which is why this chapter runs in it. Chapter 6 finds a form of the resolvent that computes neither $1 - z$ nor $1 + z$ as a difference, and chapter 9 measures every step in float32.
#
# ## What we have, and what is missing
#
# Powers have become inverses. At the $L$ roots of unity the generating function of the kernel is $\tilde C\,(I - z_j \bar A)^{-1} \bar B$, with one row $\tilde C = C\,(I - \bar A^L)$ for all of them, and the inverse FFT turns the values into the kernel. The row holds the end of the kernel, belongs to one length, and can be learned directly, which takes the last power out of training.
#
# What is missing is a cheap inverse. With a full matrix we pay more than before. With a diagonal one it is $N$ divisions, and [chapter 6](06_cauchy_kernel.ipynb) starts there: it writes the formula in terms of $\Lambda$ and the step, and meets a point on the circle where the usual form divides by zero.
#
# ## Exercises

# %% [markdown]
# ````{exercise} A constant push
# :label: gen-constant
#
# What does $\hat K_\infty(1)$ say about a system? Show that for the bilinear rule it is $-C A^{-1} B$, whatever the step, and check it on the spring and on HiPPO.
# ````

# %% [markdown]
# ````{solution-start} gen-constant
# :class: dropdown
# ````
# At $z = 1$ it is $\sum_l K_l$: the output after a constant input of 1 for a long time. The bilinear rule is $\bar A = (I - \frac\Delta2 A)^{-1} (I + \frac\Delta2 A)$ and $\bar B = (I - \frac\Delta2 A)^{-1} \Delta B$. Write $I$ as $(I - \frac\Delta2 A)^{-1} (I - \frac\Delta2 A)$:
#
# $$\begin{aligned}
# I - \bar A &= (I - \tfrac\Delta2 A)^{-1} \left[ (I - \tfrac\Delta2 A) - (I + \tfrac\Delta2 A) \right] = -(I - \tfrac\Delta2 A)^{-1} \Delta A, \\
# (I - \bar A)^{-1} \bar B &= -(\Delta A)^{-1} (I - \tfrac\Delta2 A)\,(I - \tfrac\Delta2 A)^{-1} \Delta B = -A^{-1} B .
# \end{aligned}$$
#
# The step cancels. It is also what the differential equation says: at rest $0 = A x + B$, so $x = -A^{-1} B$. The spring was scaled so that a push of 1 moves it to 1, and the HiPPO memory of a constant 1 answers 1.

# %%
continuous = {
    "spring": (spring_A, spring_B, systems["spring"][2]),
    "HiPPO": (hippo_A, hippo_B, one_unit_ago),
}
for name, (A, B, C) in continuous.items():
    at_rest = -C @ jnp.linalg.solve(A, B)
    for step in (1 / 4, 1 / 16, 1 / 100):
        Ab, Bb = discretize(A, B, step)
        value = generating_function(Ab, Bb, C, jnp.ones(1, complex))[0]
        assert abs(value - at_rest) < 1e-11
    assert abs(at_rest - 1) < 1e-11
    print(f"{name}: 1.00 for every step")

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} A system that never forgets
# :label: gen-sum
#
# The running sum has $\bar A = \bar B = C = 1$, and $K_l = 1$ for all $l$. What is $\tilde C$, and what does the formula say at the roots of unity? Where does it fail, which condition was broken, and what is the right value there? What if $\bar A = 1 - 10^{-6}$?
# ````

# %% [markdown]
# ````{solution-start} gen-sum
# :class: dropdown
# ````
# $\tilde C = 1 - 1^L = 0$. At $z_j \ne 1$ the formula gives $0 / (1 - z_j) = 0$, which is right: the values of $1 + z + \dots + z^{L-1}$ at all the roots but 1 are zero (chapter 2). At $z_0 = 1$ it is $0/0$. The condition was that no $z_j g$ is 1, and here $g = 1$. The sum has no such trouble: the right value is $L$. And $C$ cannot be found from $\tilde C = 0$; the information is gone.
#
# A system that forgets a little is fine in float64: with $g = 1 - 10^{-6}$ and $L = 64$ numerator and denominator at $z = 1$ are both small, their quotient is $\sum_l g^l$, and some six digits are lost of sixteen.

# %%
L = 64
ones = np.ones((1, 1)), np.ones(1), np.ones(1)
z = np.asarray(roots_of_unity(L))
assert to_tilde(ones[2], ones[0], L)[0] == 0
assert np.linalg.det(np.eye(1) - z[0] * ones[0]) == 0  # no inverse at z = 1
assert generating_by_sum(*ones, L, 1) == L
for z_j in z[1:]:
    assert abs(generating_by_sum(*ones, L, z_j)) < 1e-12
    assert abs(generating_by_resolvent(*ones, L, z_j)) < 1e-10

g = 1 - 1e-6
leaking = np.full((1, 1), g), np.ones(1), np.ones(1)
C_tilde = to_tilde(leaking[2], leaking[0], L)
K = kernel_by_resolvent(*leaking[:2], C_tilde, L)
assert relative_error(K, g ** np.arange(L)) < 1e-9

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Another circle
# :label: gen-circle
#
# Evaluate $\hat K_\infty$, with the plain $C$, at $z = a z_j$ with a radius $a < 1$, and divide what the inverse FFT returns by $a^l$. What comes out? Choose $a$ so that the tail disappears. Why not take $a$ much smaller still? Try the spring with $L = 32$.
# ````

# %% [markdown]
# ````{solution-start} gen-circle
# :class: dropdown
# ````
# At $a z_j$ the kernel $K_l$ appears as $K_l a^l$. The inverse FFT returns $\sum_w K_{l + wL}\, a^{l + wL}$, and divided by $a^l$ that is $K_l + a^L K_{l+L} + a^{2L} K_{l + 2L} + \dots$. The tail is still wound up, but damped by $a^L$. No power of $\bar A$ is needed, and no $\tilde C$.
#
# The price is paid in digits: the division multiplies rounding errors of $10^{-16}$ by up to $a^{-L}$. With $a^L = 10^{-8}$ both errors are about $10^{-8}$, the best that can be had: half of the digits. With $a^L = 10^{-14}$ the tail is gone and the rounding has grown to nearly a hundredth. $\tilde C$ costs no digits in that way.

# %%
Ab, Bb, C = systems["spring"]
L = 32
K = kernel_by_powers(Ab, Bb, C, L)
errors = {}
for exponent in (0, -2, -8, -14):
    a = 10 ** (exponent / L)  # so a^L = 10^exponent
    values = generating_function(Ab, Bb, C, a * roots_of_unity(L))
    ours = kernel_from_values(values) / a ** np.arange(L)
    errors[exponent] = relative_error(ours, K)
assert errors[0] > 0.1 and 1e-4 < errors[-2] < 1e-2
assert errors[-8] < 1e-7 and 1e-4 < errors[-14] < 1e-1

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Twice the length
# :label: gen-twice
#
# A row $\tilde C$ was trained for the length $L$. Find the row for the length $2L$ of the *same* system, without going back to $C$. Check it with the HiPPO system of the last trap.
# ````

# %% [markdown]
# ````{solution-start} gen-twice
# :class: dropdown
# ````
# The row for $2L$ is $C\,(I - \bar A^{2L})$. As $I - \bar A^{2L} = (I - \bar A^L)(I + \bar A^L)$ (multiply out: the middle terms $\bar A^L - \bar A^L$ cancel), it is $\tilde C\,(I + \bar A^L)$. A product instead of a solve, and no small number to divide by.

# %%
A, B = hippo_legs(8)
Ab, Bb = (np.asarray(part) for part in discretize(A, B, 1 / 64))
longer = e_0 + e_0 @ np.linalg.matrix_power(Ab, 64)
K_64 = real_kernel_by_resolvent(Ab, Bb, e_0, 64)
K_128 = real_kernel_by_resolvent(Ab, Bb, longer, 128)
assert relative_error(K_128[:64], K_64) < 1e-11
C = from_tilde(e_0, Ab, 64)
assert relative_error(to_tilde(C, Ab, 128), longer) < 1e-11

# %% [markdown]
# ````{solution-end}
# ````
