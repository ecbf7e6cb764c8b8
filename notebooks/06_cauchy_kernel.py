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
# # The diagonal case: a Cauchy kernel
#
# **The kernel costs one dense solve at each frequency. What is left of that solve when $A$ is diagonal, and can the result be computed at every frequency?**
#
# [Chapter 5](05_generating_functions.ipynb) traded the powers of $\bar A$ for a matrix inverse: the generating function of the kernel, at the $L$ roots of unity, and one inverse FFT. The powers are gone, but a solve with an $N \times N$ matrix for each of the $L$ roots is dearer than what it replaced.
# This chapter looks into the inverse. For a diagonal $A$ it falls apart into $N$ divisions. One of the $L$ frequencies then divides by zero; that is understood and removed. At the end half of the state and half of the frequencies do the whole work.

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
import scipy.linalg

from annotated_s4 import dplr, generating, plotting, ssm
from annotated_s4 import cauchy as package_cauchy

plotting.use_style()


def largest_error(found, right):
    """The largest error, measured against the largest value."""
    found, right = np.asarray(found), np.asarray(right)
    return np.max(np.abs(found - right)) / np.max(np.abs(right))


# %% [markdown]
# ## From the inverse of a step to the inverse of A
#
# What we start from: with $\tilde C = C\,(I - \bar A^L)$ and the roots of unity $z_j = e^{-2\pi i j/L}$, the Fourier transform of the kernel is
#
# $$ \hat K(z_j) = \tilde C\, (I - z_j \bar A)^{-1} \bar B . $$ (cauchy-start)
#
# Below, $\hat K(z)$ is short for $\tilde C\,(I - z \bar A)^{-1} \bar B$. The algebra holds at every $z$ where the inverses exist, but this is the kernel's generating function only at the roots $z_j$, since $\tilde C$ was made for them.
#
# The matrix under the inverse holds $\bar A$, and $\bar A$ itself holds an inverse. What does the whole thing say in terms of the $A$ we began with? Take the bilinear discretisation of [chapter 1](01_state_space_models.ipynb),
#
# $$ \begin{aligned}
# \bar A &= \left(I - \tfrac{\Delta}{2} A\right)^{-1} \left(I + \tfrac{\Delta}{2} A\right), \\
# \bar B &= \left(I - \tfrac{\Delta}{2} A\right)^{-1} \Delta B ,
# \end{aligned} $$
#
# and call the matrix that both invert $M = I - \frac{\Delta}{2} A$. Put $\bar A$ in, write $I$ as $M^{-1} M$, and take $M^{-1}$ out to the left:
#
# $$ \begin{aligned}
# I - z \bar A &= M^{-1} M - z\, M^{-1} \left(I + \tfrac{\Delta}{2} A\right) \\
# &= M^{-1} \left[ M - z \left(I + \tfrac{\Delta}{2} A\right) \right] .
# \end{aligned} $$ (cauchy-line-1)
#
# The inverse of a product is the product of the inverses in the other order. So $M$ comes out on the right, where it meets the $M^{-1}$ of $\bar B$, and the two cancel:
#
# $$ \begin{aligned}
# (I - z \bar A)^{-1} \bar B
# &= \left[ M - z \left(I + \tfrac{\Delta}{2} A\right) \right]^{-1} M\; M^{-1} \Delta B \\
# &= \left[ M - z \left(I + \tfrac{\Delta}{2} A\right) \right]^{-1} \Delta B .
# \end{aligned} $$ (cauchy-line-2)
#
# Both inverses of the discretisation are gone. Sort what is in the brackets by $I$ and $A$:
#
# $$ \begin{aligned}
# M - z \left(I + \tfrac{\Delta}{2} A\right) &= I - \tfrac{\Delta}{2} A - z I - z \tfrac{\Delta}{2} A \\
# &= (1 - z)\, I - \tfrac{\Delta}{2} (1 + z)\, A .
# \end{aligned} $$
#
# So
#
# $$ (I - z \bar A)^{-1} \bar B = \left[ (1 - z)\, I - \tfrac{\Delta}{2} (1 + z)\, A \right]^{-1} \Delta B . $$ (cauchy-unfactored)
#
# Keep this line; we come back to it. The usual way goes on by one more step. Take the factor in front of $A$ out of the brackets:
#
# $$ \begin{aligned}
# & \left[ (1 - z)\, I - \tfrac{\Delta}{2} (1 + z)\, A \right]^{-1} \Delta B \\
# &\quad = \left[ \tfrac{\Delta}{2} (1 + z) \left( \tfrac{2}{\Delta} \tfrac{1-z}{1+z}\, I - A \right) \right]^{-1} \Delta B \\
# &\quad = \frac{2}{\Delta\,(1+z)} \left( \tfrac{2}{\Delta} \tfrac{1-z}{1+z}\, I - A \right)^{-1} \Delta B .
# \end{aligned} $$
#
# The two $\Delta$ in front of and behind the inverse cancel, as they are numbers. Give the number in front of $I$ a name:
#
# $$ \omega = \frac{2}{\Delta}\, \frac{1-z}{1+z} . $$ (cauchy-omega)
#
# $$ (I - z \bar A)^{-1} \bar B = \frac{2}{1+z}\, (\omega I - A)^{-1} B . $$ (cauchy-resolvent)
#
# The matrix $(\omega I - A)^{-1}$ is called the **resolvent** of $A$ at $\omega$. The step is no longer in the matrix: it only says *where* the resolvent is taken. Nothing so far needs a diagonal $A$, and nothing was conjugated.
#
# A number by hand first. One state, $A = -1$, $B = 1$, $\Delta = 1$, at $z = 1$. By the discretisation $\bar A = \frac{1 - 1/2}{1 + 1/2} = \frac13$ and $\bar B = \frac{1}{3/2} = \frac23$, so the left side is $\frac23 / (1 - \frac13) = 1$. On the right $\omega = 0$, and $\frac22 \cdot \frac{1}{0 + 1} = 1$ too.
#
# And now every line of the derivation, on a random complex $A$, at points inside, on and outside the unit circle. (An inverse must exist where one is written: $2/\Delta$ and $\omega$ are not eigenvalues of $A$, and $z \ne -1$.)

# %%
rng = np.random.default_rng(0)


def complex_normal(*shape):
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


A, B, step = complex_normal(4, 4), complex_normal(4), 0.3
identity, inverse = np.eye(4), np.linalg.inv
M, plus = identity - step / 2 * A, identity + step / 2 * A
Ab, Bb = inverse(M) @ plus, inverse(M) @ (step * B)

for z in (1.0, 0.4 - 0.3j, np.exp(-2j), np.exp(-3.1j), 1.5j):
    omega = 2 / step * (1 - z) / (1 + z)
    start = inverse(identity - z * Ab) @ Bb
    np.testing.assert_allclose(
        identity - z * Ab, inverse(M) @ (M - z * plus), rtol=0, atol=1e-13
    )
    unfactored = (1 - z) * identity - step / 2 * (1 + z) * A
    lines = [
        inverse(M - z * plus) @ M @ inverse(M) @ (step * B),
        inverse(M - z * plus) @ (step * B),
        inverse(unfactored) @ (step * B),
        inverse(step / 2 * (1 + z) * (omega * identity - A)) @ (step * B),
        2 / (1 + z) * inverse(omega * identity - A) @ B,
    ]
    for line in lines:
        assert largest_error(line, start) < 1e-12

one_state = ssm.discretize(-jnp.ones((1, 1)), jnp.ones(1), 1.0)
assert np.allclose(one_state[0], 1 / 3) and np.allclose(one_state[1], 2 / 3)
assert np.isclose(one_state[1][0] / (1 - one_state[0][0, 0]), 1.0)

# %% [markdown]
# ## Two planes
#
# Where does the map $z \mapsto \omega$ send the roots of unity, and where do the poles lie?
#
# The roots lie on the unit circle. Write $z = e^{-i\theta}$, so that $\theta_j = 2\pi j/L$, and multiply the top and the bottom of the fraction by $e^{i\theta/2}$:
#
# $$ \begin{aligned}
# \omega &= \frac{2}{\Delta}\, \frac{1 - e^{-i\theta}}{1 + e^{-i\theta}}
# = \frac{2}{\Delta}\, \frac{e^{i\theta/2} - e^{-i\theta/2}}{e^{i\theta/2} + e^{-i\theta/2}} \\
# &= \frac{2}{\Delta}\, \frac{2i \sin(\theta/2)}{2 \cos(\theta/2)}
# = \frac{2i}{\Delta} \tan\frac{\theta}{2} .
# \end{aligned} $$ (cauchy-tangent)
#
# This is purely imaginary: **the unit circle becomes the imaginary axis.** The frequency zero, $z = 1$, goes to $\omega = 0$. For small angles $\tan(\theta/2) \approx \theta/2$, so $\omega \approx i\theta/\Delta$: radians per step, divided by the time of a step, are radians per unit of time.
# Towards $\theta = \pi$ the tangent grows beyond all bounds, and $z = -1$ goes to infinity.
#
# Inside and outside: multiply the top and the bottom by the conjugate of $1 + z$ (here, and in the next lines, a bar over a number is its conjugate):
#
# $$ \frac{1-z}{1+z} = \frac{(1 - z)(1 + \overline z)}{|1 + z|^2} = \frac{1 - |z|^2 + (\overline z - z)}{|1+z|^2} . $$
#
# The difference $\overline z - z$ is imaginary. So
#
# $$ \operatorname{Re} \omega = \frac{2}{\Delta}\, \frac{1 - |z|^2}{|1+z|^2} , $$ (cauchy-half-planes)
#
# which is positive for $|z| < 1$ and negative for $|z| > 1$: **inside becomes the right half plane, outside becomes the left half plane.** And the poles? Solve the definition of $\omega$ for $z$:
#
# $$ \begin{aligned}
# \tfrac{\Delta}{2}\, \omega\, (1 + z) &= 1 - z \\
# z \left( 1 + \tfrac{\Delta}{2} \omega \right) &= 1 - \tfrac{\Delta}{2} \omega \\
# z &= \frac{1 - \frac{\Delta}{2} \omega}{1 + \frac{\Delta}{2} \omega} .
# \end{aligned} $$ (cauchy-back)
#
# At $\omega = \lambda$, an eigenvalue of $A$, this is $1/g$, where $g = (1 + \frac{\Delta}{2}\lambda) / (1 - \frac{\Delta}{2}\lambda)$ is the factor of one step from chapter 1. So the poles of $(\omega I - A)^{-1}$ and those of $(I - z \bar A)^{-1}$ are the same points seen in two planes.
# In a stable system they are in the left half plane, outside the circle, and the points where we evaluate, on the circle, stay clear of all of them.

# %%
step, stable = 0.5, np.array([-0.6 + 3j, -0.6 - 3j, -2.0])
g = (1 + step / 2 * stable) / (1 - step / 2 * stable)


def to_omega(z):
    """omega = 2/step (1 - z) / (1 + z)"""
    return 2 / step * (1 - z) / (1 + z)


theta = np.linspace(0, 3.1, 50)
tangent = 2j / step * np.tan(theta / 2)
assert largest_error(to_omega(np.exp(-1j * theta)), tangent) < 1e-12
somewhere = complex_normal(50)
distance = np.abs(1 + somewhere) ** 2
real_part = 2 / step * (1 - np.abs(somewhere) ** 2) / distance
assert largest_error(to_omega(somewhere).real, real_part) < 1e-12
assert largest_error(to_omega(1 / g), stable) < 1e-12
assert np.all(np.abs(1 / g) > 1) and np.all(to_omega(1 / g).real < 0)

# %%
L = 16
roots = np.exp(-2j * np.pi * np.arange(L) / L)
turn = np.exp(1j * np.linspace(-np.pi + 1e-3, np.pi - 1e-3, 2001))
radii = {0.4: (":", "#009E73"), 0.75: ("-.", "#0072B2")}
radii |= {1.0: ("-", "black"), 1.5: ("--", "#D55E00")}

figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.9))
left.fill(turn.real, turn.imag, color="#0072B2", alpha=0.1)
right.axvspan(0, 14, color="#0072B2", alpha=0.1)
for radius, (dash, colour) in radii.items():
    circle = radius * turn
    style = {"linestyle": dash, "color": colour, "linewidth": 1.4}
    left.plot(circle.real, circle.imag, label=f"|z| = {radius:g}", **style)
    image = to_omega(circle)
    image[np.abs(image) > 100] = np.nan
    right.plot(image.real, image.imag, **style)
finite = np.arange(L) != L // 2
at = to_omega(roots[finite])
left.plot(roots.real, roots.imag, "o", color="black", markersize=4)
right.plot(at.real, at.imag, "o", color="black", markersize=4)
for j in (0, 2, 4, 6, 8, 10):
    left.annotate(f"{j}", (1.17 * roots[j].real, 1.17 * roots[j].imag),
                  ha="center", va="center", fontsize=9)
for j in (0, 2, 4, 6, 10):
    right.annotate(f"{j}", (0.0, to_omega(roots[j]).imag), xytext=(6, 2),
                   textcoords="offset points", fontsize=9)
right.annotate("8: at infinity", (0.0, 12.6), xytext=(6, 0),
               textcoords="offset points", fontsize=9)
for axes, points in ((left, 1 / g), (right, stable)):
    axes.plot(points.real, points.imag, "x", color="#D55E00", markersize=8,
              markeredgewidth=2)
    axes.set_aspect("equal")
left.set(xlim=(-1.9, 3.3), ylim=(-2.2, 3.0), xlabel="real part of z",
         ylabel="imaginary part of z")
right.set(xlim=(-13, 13), ylim=(-13.5, 13.5),
          xlabel=r"real part of $\omega$",
          ylabel=r"imaginary part of $\omega$")
left.legend(loc="upper left", fontsize=8, ncols=2, columnspacing=1)
plotting.show(figure, "Left, the z-plane with circles of four radii; 16 roots of unity sit on the unit circle, numbered by j clockwise from z = 1, and three poles are marked by crosses outside the circle. Right, the omega-plane: the unit circle has become the imaginary axis with the roots in order along it, root 4 at 4i and root 10 below at minus 9.7i, and root 8, which is z = -1, at infinity. Circles inside the unit circle have become circles in the right half plane, the larger circle one in the left half plane, where the crosses are now.")

# %% [markdown]
# Texts on control and signals let $z$ stand for one step *ahead*; there the inside of the circle goes with the left half plane {cite:p}`oppenheim2010signals`. Here $z$ is the delay, the reciprocal, and the two sides are exchanged. Nothing else changes.
#
# ## N divisions
#
# A diagonal matrix is inverted entry by entry. With $A = \Lambda = \operatorname{diag}(\lambda_0, \dots, \lambda_{N-1})$ the matrix $\omega I - \Lambda$ is diagonal too, so
#
# $$ (\omega I - \Lambda)^{-1} B = \left( \frac{B_0}{\omega - \lambda_0}, \;\dots,\; \frac{B_{N-1}}{\omega - \lambda_{N-1}} \right) , $$
#
# and the row $\tilde C$ in front adds these up. At every root but $z = -1$,
#
# $$ \hat K(z_j) = \frac{2}{1+z_j} \sum_{n=0}^{N-1} \frac{\tilde C_n B_n}{\omega_j - \lambda_n} . $$ (cauchy-sum)
#
# A matrix with the entries $1/(\omega_j - \lambda_n)$, one row for each $\omega_j$ and one column for each $\lambda_n$, is called a **Cauchy matrix**. The sum is its product with the vector of the $\tilde C_n B_n$, and in the S4 paper {cite:p}`gu2022s4` this is "the Cauchy kernel". As a function of $\omega$ it is a sum of partial fractions: one pole $\lambda_n$ for each mode, with the residue $\tilde C_n B_n$.
#
# The row $\tilde C$ needs no matrix either. $\bar A$ is diagonal with the factors $g_n$ on it, and $\bar A^L$ has $g_n^L$:
#
# $$ \tilde C_n = C_n\, (1 - g_n^L), \qquad g_n = \frac{1 + \frac{\Delta}{2} \lambda_n}{1 - \frac{\Delta}{2} \lambda_n} . $$ (cauchy-tilde)
#
# As code: map over the roots, a sum over the modes for each. `jax.vmap` turns a function of one root into a function of an array of roots. This is how the sum was written in the JAX code of 2022 {cite:p}`rush2022annotated`.


# %%
def cauchy(numerators, omega, Lambda):
    """sum_n a_n / (omega_j - Lambda_n), for each omega_j.

    numerators, Lambda: (N,), omega: (L,)  ->  (L,)
    """
    return jax.vmap(
        lambda omega_j: jnp.sum(numerators / (omega_j - Lambda))
    )(omega)


def kernel_usual(Lambda, B, C_tilde, step, L):
    """K_hat(z_j) = 2/(1+z_j) sum_n C~_n B_n / (omega_j - Lambda_n).

    The full state: Lambda, B, C_tilde (N,)  ->  K (L,), complex
    """
    j = jnp.arange(L, dtype=step.dtype)
    z = jnp.exp(-2j * jnp.pi * j / L)
    omega = 2 / step * (1 - z) / (1 + z)
    K_hat = 2 / (1 + z) * cauchy(C_tilde * B, omega, Lambda)
    return jnp.fft.ifft(K_hat)


def tilde(C, Lambda, step, L):
    """C~_n = C_n (1 - g_n^L)"""
    g = (1 + step / 2 * Lambda) / (1 - step / 2 * Lambda)
    return C * (1 - g**L)


# %% [markdown]
# To check it we need a system. We want a real kernel, as every system with real matrices has. Where do complex eigenvalues come from then?
#
# Take a real $A$ with a basis of eigenvectors, the columns of $E$, so that $A E = E \Lambda$. Write the state in this basis, $x = E w$. Then $E w' = A E w + B u = E \Lambda w + B u$, and with $E^{-1}$ from the left
#
# $$ w' = \Lambda w + (E^{-1} B)\, u, \qquad y = (C E)\, w . $$ (cauchy-basis)
#
# This is a diagonal system with the same input and output. Now take the conjugate of $A v = \lambda v$. With a real $A$ it says $A \overline v = \overline\lambda\, \overline v$: the eigenvalues that are not real come in **conjugate pairs**, and so do their eigenvectors. If $v$ and $\overline v$ are both columns of $E$, then $C E$ has the entries $C v$ and $C \overline v$, and for a real row $C$ the second is the conjugate of the first.
# The entries of $E^{-1} B$ are the coordinates of $B$ in this basis. Say they are $b$ at $v$ and $b'$ at $\overline v$. The conjugate of $B = b\, v + b'\, \overline v + \dots$ is $B = \overline b\, \overline v + \overline{b'}\, v + \dots$, and coordinates are unique, so $b' = \overline b$.
#
# So in a real system everything comes in pairs: with $\lambda_n$, $B_n$, $C_n$ there is a partner with $\overline{\lambda_n}$, $\overline{B_n}$, $\overline{C_n}$. In their product with each other there is no conjugate; the partner is a mode of its own. The spring of chapter 1 shows it with one pair, $\lambda = -\gamma \pm i\omega_\gamma$.

# %%
frequency, damping = 2.0, 0.2
A = np.array([[0.0, 1.0], [-(frequency**2), -2 * damping]])
B, C = np.array([0.0, 1.0]), np.array([1.0, 0.0])
eigenvalues, E = np.linalg.eig(A)
B_modes, C_modes = np.linalg.solve(E, B), C @ E
swing = np.sqrt(frequency**2 - damping**2)
assert np.allclose(np.sort(eigenvalues.imag), [-swing, swing])
assert np.allclose(eigenvalues.real, -damping)
for pair in (eigenvalues, B_modes, C_modes):
    assert np.allclose(pair[1], np.conj(pair[0]))

step, L = jnp.asarray(0.6), 33
discrete = ssm.discretize(jnp.asarray(A), jnp.asarray(B), step)
K = ssm.kernel_by_powers(*discrete, jnp.asarray(C), L)
modes = [jnp.asarray(x) for x in (eigenvalues, B_modes)]
C_tilde = tilde(jnp.asarray(C_modes), modes[0], step, L)
K_spring = kernel_usual(*modes, C_tilde, step, L)
assert largest_error(K_spring, K) < 1e-12
print("the spring: sum over two modes = kernel by powers")

# %% [markdown]
# Now a random stable system of $N = 8$: four modes drawn at random, and their partners. `full` puts the partners behind. The oracle is a loop in NumPy with dense matrices, which knows nothing of frequencies.


# %%
def random_modes(modes, seed):
    """Lambda, B, C with Re Lambda < 0: one of each pair, (N/2,)."""
    rng = np.random.default_rng(seed)
    draw = lambda: rng.normal(size=modes) + 1j * rng.normal(size=modes)
    Lambda = -0.1 - np.abs(rng.normal(size=modes))
    Lambda = Lambda + 3j * rng.normal(size=modes)
    return Lambda, draw(), draw()


def full(x):
    """One of each conjugate pair -> the whole state.  (N/2,) -> (N,)"""
    return np.concatenate([x, np.conj(x)])


def oracle(Lambda, B, C, step, L):
    """K_l = C Ab^l Bb, step by step with dense matrices, full state."""
    A, identity = np.diag(Lambda), np.eye(len(Lambda))
    left, right = identity - step / 2 * A, identity + step / 2 * A
    Ab, x = np.linalg.solve(left, right), np.linalg.solve(left, step * B)
    K = []
    for _ in range(L):
        K.append(C @ x)
        x = Ab @ x
    return np.array(K)


Lambda, B, C = random_modes(4, seed=1)
step, L = jnp.asarray(0.1), 33
system = [jnp.asarray(full(x)) for x in (Lambda, B)]
C_tilde = tilde(jnp.asarray(full(C)), system[0], step, L)
K = kernel_usual(*system, C_tilde, step, L)

expected = oracle(full(Lambda), full(B), full(C), 0.1, L)
assert np.max(np.abs(expected.imag)) < 1e-13 * np.max(np.abs(expected))
assert largest_error(K, expected) < 1e-12
discrete = ssm.discretize(jnp.diag(system[0]), system[1], step)
by_powers = ssm.kernel_by_powers(*discrete, jnp.asarray(full(C)), L)
assert largest_error(K, by_powers) < 1e-12
z = generating.roots_of_unity(L)
omega = 2 / step * (1 - z) / (1 + z)
ours = cauchy(C_tilde * system[1], omega, system[0])
theirs = package_cauchy.cauchy_textbook(
    C_tilde * system[1], omega, system[0]
)
assert largest_error(ours, theirs) < 1e-13
print("Cauchy sum = kernel by powers = dense loop, below 1e-12")

# %% [markdown]
# What has been won? For one system with $N = 64$ and $L = 1024$: a dense solve by elimination takes about $N^3/3$ multiplications, and there is one for each root. The sum takes $N$ divisions for each root.

# %%
N, L = 64, 1024
print(f"dense solves: {L * N**3 / 3 / 1e6:.0f} million multiplications")
print(f"Cauchy sum:   {L * N / 1e6:.3f} million divisions")
print(f"ratio:        {N**2 / 3:.0f}")

# %% [markdown]
# No power of a matrix, no solve, and no frequency waits for another.
#
# One thing to keep in mind. As written, the map makes an array of $L \times N$ quotients before the sum brings it down to $L$ numbers. `jax.make_jaxpr` lists the operations of a function without running it, so the largest array can be read off.


# %%
def largest_array(function, *inputs):
    """The most numbers that one operation of the function writes."""
    operations = jax.make_jaxpr(function)(*inputs).jaxpr.eqns
    return max(out.aval.size for op in operations for out in op.outvars)


shapes = [jax.ShapeDtypeStruct((n,), jnp.complex64) for n in (N, L, N)]
assert largest_array(cauchy, *shapes) == L * N
print(f"one system:   {8 * L * N / 1e6:.1f} MB in complex64")
print(f"256 features: {8 * L * N * 256 / 1e6:.0f} MB")
print(f"256 kernels:  {4 * L * 256 / 1e6:.0f} MB in float32")

# %% [markdown]
# The answer itself, 256 kernels, takes one. Whether the large array is ever written down depends on the compiler, which may divide and add without storing. Part IV, chapter 15, is the story of when it does.
#
# ## The pole that is not there
#
# All checks so far had an odd $L$. What happens for an even one?
#
# For even $L$ the root with $j = L/2$ is $z = e^{-i\pi} = -1$. There $1 + z = 0$, and the sum {eq}`cauchy-sum` cannot be evaluated: the factor $2/(1+z)$ is infinite and so is $\omega$, and what stands there is infinity times zero. Give the formula the four exact roots for $L = 4$:

# %%
exact_roots = jnp.array([1, -1j, -1, 1j])
step = jnp.asarray(0.1)
omega = 2 / step * (1 - exact_roots) / (1 + exact_roots)
C_tilde = tilde(jnp.asarray(full(C)), system[0], step, 4)
numerators = C_tilde * system[1]
K_hat = 2 / (1 + exact_roots) * cauchy(numerators, omega, system[0])
missing = np.isnan(np.asarray(K_hat))
print("NaN:", *missing)
assert np.all(np.isnan(np.asarray(jnp.fft.ifft(K_hat))))
assert list(missing) == [False, False, True, False]

# %% [markdown]
# One NaN among the frequencies, and the inverse FFT spreads it over the whole kernel. Why has this not been the end of every program that uses the formula? Because $\pi$ is not a floating point number. The nearest one differs from $\pi$ a little, and the sine of it *is* that difference:

# %%
for name, pi in (("float64", np.pi), ("float32", np.float32(np.pi))):
    sign, size = "-" if np.sin(pi) > 0 else "+", abs(np.sin(pi))
    print(f"{name}: exp(-i pi) = -1 {sign} {size:.1e} i")
assert 1e-16 < abs(np.sin(np.pi)) < 2e-16
assert 8e-8 < abs(np.sin(np.float32(np.pi))) < 9e-8

L = 16
z = jnp.exp(-1j * jnp.pi)
C_tilde = tilde(jnp.asarray(full(C)), system[0], step, L)
omega = 2 / step * (1 - z) / (1 + z)
numerators = C_tilde * system[1]
survived = 2 / (1 + z) * jnp.sum(numerators / (omega - system[0]))
print(f"|omega| = {abs(omega):.1e},  |2/(1+z)| = {abs(2 / (1 + z)):.1e}")
kernel = oracle(full(Lambda), full(B), full(C), 0.1, L)
alternating = np.sum(kernel * (-1.0) ** np.arange(L))
assert abs(survived - alternating) < 1e-9 * abs(alternating)

# %% [markdown]
# Two enormous numbers, and their quotient is right: compared with $\hat K(-1) = \sum_l (-1)^l K_l$, taken from the kernel itself, it holds to nine digits at least. The rounding error of $1 + z$ is in both and cancels. The usual form lives on the rounding error of $\pi$. Compute the roots better, from a table or with a sine that takes its angle in units of $\pi$, and the kernel is gone.
#
# What should stand there? Go back to the line before we divided, {eq}`cauchy-unfactored`. At $z = -1$ it says
#
# $$ \begin{aligned}
# (I + \bar A)^{-1} \bar B &= \left[ (1 + 1)\, I - \tfrac{\Delta}{2}\, (1 - 1)\, A \right]^{-1} \Delta B \\
# &= [\, 2 I\, ]^{-1} \Delta B = \tfrac{\Delta}{2} B .
# \end{aligned} $$
#
# Nothing is singular there. $A$ has dropped out altogether. So for even $L$, whatever $A$ is, diagonal or not,
#
# $$ \hat K(-1) = \frac{\Delta}{2}\, \tilde C B = \frac{\Delta}{2} \sum_{n=0}^{N-1} \tilde C_n B_n , $$ (cauchy-at-minus-one)
#
# with the sum over the full state. (For odd $L$, $-1$ is no root, and the row there would be $C\,(I + \bar A^L)$.) The kernel has no pole at $-1$. **The pole was ours: it came in when we took $1 + z$ out of the brackets.**
#
# ````{admonition} Trap: an even length meets a zero denominator
# :class: warning
#
# The usual form at exact roots of unity gives NaN at $j = L/2$ for every even $L$. The right value there is $\frac{\Delta}{2} \sum_n \tilde C_n B_n$ over the full state. With an odd $L$, such as 1023, no root is $-1$ and the fault does not show: test both.
# ````

# %%
by_hand = 0.1 / 2 * np.sum(np.asarray(C_tilde) * full(B))
assert abs(by_hand - alternating) < 1e-12 * abs(alternating)
print(f"sum of (-1)^l K_l: {alternating.real:.3f}")
print(f"by hand:           {by_hand.real:.3f}")

# %% [markdown]
# ## Half angles
#
# Can the sum be written so that there is no division by $1 + z$ at all? Multiply the factor in front back into each denominator. This undoes the step that made the pole:
#
# $$ \begin{aligned}
# \frac{2}{1+z} \cdot \frac{1}{\omega - \lambda_n}
# &= \frac{2}{(1+z) \left( \frac{2}{\Delta} \frac{1-z}{1+z} - \lambda_n \right)} \\
# &= \frac{2}{\frac{2}{\Delta} (1 - z) - (1 + z)\, \lambda_n} \\
# &= \frac{\Delta}{(1 - z) - \frac{\Delta}{2} (1+z)\, \lambda_n} .
# \end{aligned} $$ (cauchy-multiplied)
#
# Now use that $z$ is on the unit circle, $z = e^{-i\theta}$, and take half of the angle out of both sums:
#
# $$ \begin{aligned}
# 1 - z &= e^{-i\theta/2} \left( e^{i\theta/2} - e^{-i\theta/2} \right) = e^{-i\theta/2}\; 2 i s, \\
# 1 + z &= e^{-i\theta/2} \left( e^{i\theta/2} + e^{-i\theta/2} \right) = e^{-i\theta/2}\; 2 c,
# \end{aligned} $$ (cauchy-halves)
#
# $$ s = \sin(\theta/2), \qquad c = \cos(\theta/2) . $$
#
# Put them in. The factor $e^{-i\theta/2}$ is common to both terms of the denominator, and leaves it as $e^{i\theta/2}$:
#
# $$ \begin{aligned}
# \frac{\Delta}{(1 - z) - \frac{\Delta}{2} (1+z) \lambda_n}
# &= \frac{\Delta}{e^{-i\theta/2} \left( 2 i s - \frac{\Delta}{2}\, 2 c\, \lambda_n \right)} \\
# &= \frac{\Delta\, e^{i\theta/2}}{2 i s - \Delta c\, \lambda_n} .
# \end{aligned} $$
#
# The denominator gets a name, and so does the sum, since chapter 7 will need four of its kind:
#
# $$ d_n = 2 i s - \Delta c\, \lambda_n, \qquad \kappa(a, b) = \sum_{n=0}^{N-1} \frac{a_n b_n}{d_n} , $$ (cauchy-d)
#
# $$ \hat K(e^{-i\theta}) = \Delta\, e^{i\theta/2}\; \kappa(\tilde C, B) . $$ (cauchy-half-angle)
#
# We call this the **half-angle form**. There is no conjugate in it. One point needs care: $\theta$ and $\theta + 2\pi$ are the same $z$, but $s$, $c$ and $e^{i\theta/2}$ all change their signs. Then $d_n$ does too, and the signs cancel.
#
# **Is $d_n$ ever zero?** Not if $\operatorname{Re} \lambda_n < 0$. The first term $2 i s$ is imaginary, so the real part of $d_n$ is $-\Delta c \operatorname{Re} \lambda_n$. If $c \ne 0$, this is not zero, and $|d_n| > 0$. If $c = 0$, then $s = \pm 1$ and $d_n = \pm 2 i$. So $|d_n| > 0$ at every angle, and at $\theta = \pi$ the form gives
# $\Delta\, e^{i\pi/2} \sum_n \tilde C_n B_n / (2i) = \frac{\Delta}{2} \sum_n \tilde C_n B_n$, the value found by hand.
#
# Every line, on random complex numbers:

# %%
a, Lambda_4, step_4 = complex_normal(4), complex_normal(4), 0.3
Lambda_4 = -np.abs(Lambda_4.real) + 1j * Lambda_4.imag
for theta in (0.0, 0.3, 2.0, 3.1, 4.0, 6.0):
    z, s, c = np.exp(-1j * theta), np.sin(theta / 2), np.cos(theta / 2)
    half = np.exp(-0.5j * theta)
    assert np.isclose(1 - z, half * 2j * s, rtol=0, atol=1e-14)
    assert np.isclose(1 + z, half * 2 * c, rtol=0, atol=1e-14)
    omega = 2 / step_4 * (1 - z) / (1 + z)
    d = 2j * s - step_4 * c * Lambda_4
    lines = [
        2 / (1 + z) * a / (omega - Lambda_4),
        2 * a / (2 / step_4 * (1 - z) - (1 + z) * Lambda_4),
        step_4 * a / ((1 - z) - step_4 / 2 * (1 + z) * Lambda_4),
        step_4 * a / (half * (2j * s - step_4 / 2 * 2 * c * Lambda_4)),
        step_4 * a / half / d,
    ]
    for line in lines[1:]:
        assert largest_error(line, lines[0]) < 1e-12
    assert np.all(np.abs(d) > 0)


# %% [markdown]
# And as functions. `kappa` is one sum with the denominators, `kernel_half_angle` the formula around it. `jax.jit` compiles a function into one program for each new $L$; since $L$ decides about shapes, it is named as static.


# %%
def kappa(a, b, Lambda, step, theta):
    """sum_n a_n b_n / d_n,  d_n = 2 i s - step c Lambda_n,  full state.

    a, b, Lambda: (N,), theta: (L,)  ->  (L,)
    """
    s, c = jnp.sin(theta / 2), jnp.cos(theta / 2)
    d = 2j * s[:, None] - step * c[:, None] * Lambda  # (L, N)
    return jnp.sum(a * b / d, axis=-1)


def kernel_half_angle(Lambda, B, C_tilde, step, L):
    """K_hat = step e^{i theta/2} kappa(C~, B), at all roots of unity.

    The full state: Lambda, B, C_tilde (N,)  ->  K (L,), complex
    """
    theta = 2 * jnp.pi * jnp.arange(L, dtype=step.dtype) / L
    sums = kappa(C_tilde, B, Lambda, step, theta)
    return jnp.fft.ifft(step * jnp.exp(0.5j * theta) * sums)


compiled = jax.jit(kernel_half_angle, static_argnames="L")
for L in (1, 2, 3, 16, 33, 256):
    C_tilde = jnp.asarray(tilde(full(C), full(Lambda), 0.1, L))
    K = compiled(*system, C_tilde, step, L=L)
    expected = oracle(full(Lambda), full(B), full(C), 0.1, L)
    assert largest_error(K, expected) < 1e-13, L

at_pi = kappa(C_tilde, system[1], system[0], step, jnp.array([jnp.pi]))
value = step * 1j * at_pi[0]
by_hand = step / 2 * jnp.sum(C_tilde * system[1])
assert abs(value - by_hand) < 1e-13 * abs(by_hand)
print("even and odd lengths, 1 and 2 too: below 1e-13")

# %%
gap = np.logspace(-5, np.log10(np.pi), 300)  # pi - theta
angles = np.linspace(0, np.pi, 500)
shown = {"0.3 + 4i": -0.3 + 4j, "2 + 12i": -2 + 12j, "1": -1.0 + 0j}

figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.4))
z = -np.exp(1j * gap)
left.loglog(gap, np.abs(2 / (1 + z)), label="|2/(1+z)|")
omega = 2 / 0.1 * (1 - z) / (1 + z)
left.loglog(gap, np.abs(omega - shown["2 + 12i"]),
            label=r"$|\omega-\lambda|$")
left.loglog(gap, np.abs(2 * np.sin((np.pi - gap) / 2) * 1j
            - 0.1 * np.cos((np.pi - gap) / 2) * shown["2 + 12i"]),
            label="$|d|$")
left.invert_xaxis()
left.set(xlabel=r"distance $\pi - \theta$ to $z = -1$", ylabel="size")
left.legend()
for name, eigenvalue in shown.items():
    d = 2j * np.sin(angles / 2) - 0.1 * np.cos(angles / 2) * eigenvalue
    right.semilogy(angles, np.abs(d), label=rf"$\lambda = -{name}$")
right.plot(np.pi, 2, "o", color="black")
right.annotate("2 for all", (np.pi, 2), xytext=(-50, 8),
               textcoords="offset points")
right.set(xlabel=r"angle $\theta$", ylabel="$|d_n|$", ylim=(0.015, 6),
          xticks=[0, np.pi / 2, np.pi])
right.set_xticklabels(["0", r"$\pi/2$", r"$\pi$"])
right.legend(loc="lower right")
plotting.show(figure, "Left, on logarithmic axes, the parts of the usual form as z approaches -1: both |2/(1+z)| and |omega - lambda| grow without bound, while |d| of the half-angle form stays near 2. Right, |d_n| over all angles from 0 to pi for three eigenvalues with the step 0.1: each curve stays above zero, dips near the angle step times Im lambda, and all end at exactly 2.")

# %% [markdown]
# The dips in the right panel are the resonances of the modes; a later section reads them.
#
# ## Half of the frequencies
#
# $K$ is real, and for a real kernel chapter 5 found $\overline{\hat K(z)} = \hat K(\overline z)$ (bars are conjugates). Since $\overline{z_j} = z_{L-j}$, the values at $j = 0, 1, \dots, \lfloor L/2 \rfloor$ say everything, and `irfft` makes a real kernel of them. It must be told $L$; if it is not, an odd length comes back as an even one with wrong numbers.
#
# In angles, these are the roots with $0 \le \theta_j \le \pi$. There $s$ and $c$ are never negative.

# %%
L = 33
C_tilde = tilde(jnp.asarray(full(C)), system[0], step, L)
theta = 2 * jnp.pi * jnp.arange(L // 2 + 1) / L
K_hat = step * jnp.exp(0.5j * theta)
K_hat = K_hat * kappa(C_tilde, system[1], system[0], step, theta)
expected = oracle(full(Lambda), full(B), full(C), 0.1, L).real
assert largest_error(jnp.fft.irfft(K_hat, n=L), expected) < 1e-13
untold = jnp.fft.irfft(K_hat)
wrong = largest_error(untold, expected[:32])
print(f"told:   {L} numbers, right below 1e-13")
print(f"untold: {len(untold)} numbers, off by {wrong:.2f} of the largest")
assert len(untold) == 32 and wrong > 0.01
assert np.all(np.sin(theta / 2) >= 0) and np.all(np.cos(theta / 2) >= 0)

# %% [markdown]
# ## Half of the state
#
# The modes come in pairs as well, so we store one of each. What does its partner add? The partner of $\lambda_n$ has $\overline{\lambda_n}$, and its numerator is $\overline{\tilde C_n}\, \overline{B_n} = \overline{a_n}$, where $a_n = \tilde C_n B_n$. ($\tilde C$ is in pairs too: the partner's factor is $\overline{g_n}$, so $\overline{C_n}(1 - \overline{g_n}^L) = \overline{\tilde C_n}$.)
#
# **In time** the two are conjugates of each other. Mode $n$ gives the kernel $C_n g_n^l \bar B_n$, its partner the same with a bar over each number. The sum of a number and its conjugate is twice its real part:
#
# $$ K_l = 2 \operatorname{Re} \sum_{n=0}^{N/2-1} C_n\, g_n^{\,l}\, \bar B_n . $$ (cauchy-time)
#
# (The bar over $B$ in this line marks the discrete system: $\bar B_n = \Delta B_n / (1 - \frac{\Delta}{2} \lambda_n)$.)
#
# **In frequency they are not.** The partner is evaluated at the *same* $z$: the same $s$, the same $c$, the same $2 i s$. Only what belongs to the mode is conjugated. So the two denominators are
#
# $$ d_n = 2 i s - \Delta c\, \lambda_n, \qquad d'_n = 2 i s - \Delta c\, \overline{\lambda_n}, $$
#
# while the conjugate of $d_n$ would be $-2 i s - \Delta c\, \overline{\lambda_n}$, with another sign in front of $2 i s$. The sum over the full state is
#
# $$ \kappa(\tilde C, B) = \sum_{n=0}^{N/2-1} \left[ \frac{a_n}{2 i s - \Delta c\, \lambda_n} + \frac{\overline{a_n}}{2 i s - \Delta c\, \overline{\lambda_n}} \right] , $$ (cauchy-pair)
#
# where the two bars are conjugates. Twice the real part has lost the sign of $2 i s$. The two agree where $s = 0$, at the frequency zero, and in general nowhere else.
#
# Guess the difference at the other end, $\theta = \pi$, where $s = 1$ and $c = 0$. For one pair the right sum is $(a + \overline a) / (2i) = -i \operatorname{Re} a$. Twice the real part of $a / (2i)$ is $\operatorname{Im} a$. With $a = 1$: right is $-i$, and twice the real part is 0.
#
# ````{admonition} Trap: twice the real part, in the wrong place
# :class: warning
#
# In time the pair adds up to twice the real part. In frequency it does not: with $a = 1$ at $\theta = \pi$ the sum of the pair is $-i$, and twice the real part is 0. The cell below makes a whole kernel from the wrong sum.
# ````


# %%
def pair_sum(numerators, Lambda, step, theta):
    """sum_n a_n / d_n + conj(a_n) / d'_n, one of each pair given.

    d_n = 2 i s - step c Lambda_n,  d'_n the same with conj(Lambda_n).
    numerators, Lambda: (N/2,), theta: (F,)  ->  (F,), complex
    """
    s, c = jnp.sin(theta / 2)[:, None], jnp.cos(theta / 2)[:, None]
    modes = numerators / (2j * s - step * c * Lambda)
    partners = numerators.conj() / (2j * s - step * c * Lambda.conj())
    return jnp.sum(modes + partners, axis=-1)


def twice_real(numerators, Lambda, step, theta):
    """The wrong sum: 2 Re sum_n a_n / d_n."""
    s, c = jnp.sin(theta / 2)[:, None], jnp.cos(theta / 2)[:, None]
    quotients = numerators / (2j * s - step * c * Lambda)
    return 2 * jnp.sum(quotients, axis=-1).real


def kernel_diagonal(Lambda, B, C_tilde, step, L, pairs=pair_sum):
    """K_hat = step e^{i theta/2} kappa(C~, B), j = 0 ... L//2.

    One of each pair: Lambda, B, C_tilde (N/2,)  ->  K (L,), real
    """
    theta = 2 * jnp.pi * jnp.arange(L // 2 + 1, dtype=step.dtype) / L
    sums = pairs(C_tilde * B, Lambda, step, theta)
    return jnp.fft.irfft(step * jnp.exp(0.5j * theta) * sums, n=L)


compiled = jax.jit(kernel_diagonal, static_argnames=("L", "pairs"))
g = (1 + 0.05 * Lambda) / (1 - 0.05 * Lambda)
in_steps = C * 0.1 * B / (1 - 0.05 * Lambda)
for L in (1, 2, 3, 16, 33, 256):
    expected = oracle(full(Lambda), full(B), full(C), 0.1, L).real
    in_time = 2 * (in_steps * g ** np.arange(L)[:, None]).sum(-1).real
    assert largest_error(in_time, expected) < 1e-13, L
    C_tilde = tilde(C, Lambda, 0.1, L)
    K = compiled(Lambda, B, C_tilde, step, L=L)
    assert largest_error(K, expected) < 1e-13, L

Lambda, B, C, C_tilde = (jnp.asarray(x) for x in (Lambda, B, C, C_tilde))
wrong = kernel_diagonal(Lambda, B, C_tilde, step, L, twice_real)
print("pairs added, in time and in frequency: below 1e-13")
print(f"twice the real part in frequency: off by "
      f"{largest_error(wrong, expected):.2f} of the largest value")
assert largest_error(wrong, expected) > 0.1
one, at_pi = jnp.ones(1, complex), jnp.array([jnp.pi])
assert np.isclose(pair_sum(one, -one, step, at_pi)[0], -1j)
assert np.isclose(twice_real(one, -one, step, at_pi)[0], 0)
at_zero = (C_tilde * B, Lambda, step, jnp.zeros(1))
assert np.allclose(pair_sum(*at_zero), twice_real(*at_zero))

# %% [markdown]
# Which member of a pair is stored does not matter: exchange $\lambda_n$ with its partner, and the two terms in the brackets exchange their places. The package has the same sum, with leading axes so that it does many features at once, in `annotated_s4.cauchy.pair_sum`. Its kernel for $A = \Lambda - P Q^*$, which the next chapter derives, is ours when $P$ and $Q$ are zero.

# %%
theta = 2 * jnp.pi * jnp.arange(L // 2 + 1) / L
ours = pair_sum(C_tilde * B, Lambda, step, theta)
full_sum = kappa(full(C_tilde), full(B), full(Lambda), step, theta)
theirs = package_cauchy.pair_sum(C_tilde * B, Lambda, step, theta)
assert largest_error(ours, full_sum) < 1e-13
assert largest_error(ours, theirs) < 1e-13

swap = np.array([True, False, True, False])
other = [jnp.where(swap, x.conj(), x) for x in (Lambda, B, C_tilde)]
K = kernel_diagonal(Lambda, B, C_tilde, step, L)
assert largest_error(kernel_diagonal(*other, step, L), K) < 1e-13
nothing = jnp.zeros_like(Lambda)
of_package = dplr.kernel_dplr(
    Lambda, nothing, nothing, B, C_tilde, step, L
)
assert largest_error(K, of_package) < 1e-13

# %% [markdown]
# ### One division for a pair
#
# Is it half of the work as well? Not as written: a pair costs two divisions, as before. But the two terms can share one. Bring them over a common denominator:
#
# $$ \frac{a}{d} + \frac{\overline a}{d'} = \frac{a\, d' + \overline a\, d}{d\, d'} . $$
#
# The numerator, with $d = 2 i s - \Delta c\, \lambda$ and $d' = 2 i s - \Delta c\, \overline\lambda$:
#
# $$ \begin{aligned}
# a\, d' + \overline a\, d &= 2 i s\, (a + \overline a) - \Delta c\, (a \overline\lambda + \overline a \lambda) \\
# &= 4 i s \operatorname{Re} a - 2 \Delta c \operatorname{Re}(a \overline\lambda) .
# \end{aligned} $$ (cauchy-common-top)
#
# The denominator:
#
# $$ \begin{aligned}
# d\, d' &= (2 i s)^2 - 2 i s\, \Delta c\, (\lambda + \overline\lambda) + \Delta^2 c^2\, \lambda \overline\lambda \\
# &= \Delta^2 c^2 |\lambda|^2 - 4 s^2 - 4 i s\, \Delta c \operatorname{Re} \lambda .
# \end{aligned} $$ (cauchy-common-bottom)
#
# All that is left of the mode are real numbers, $\operatorname{Re} a$, $\operatorname{Re}(a\overline\lambda)$, $|\lambda|^2$ and $\operatorname{Re}\lambda$, and there is one division for a pair. (All bars are conjugates.)


# %%
def pair_sum_one_division(numerators, Lambda, step, theta):
    """The same sum over a common denominator, d_n d'_n."""
    s, c = jnp.sin(theta / 2)[:, None], jnp.cos(theta / 2)[:, None]
    c = step * c
    crossed = (numerators * Lambda.conj()).real
    top = 4j * s * numerators.real - 2 * c * crossed
    squares = c**2 * (Lambda.real**2 + Lambda.imag**2) - 4 * s**2
    bottom = squares - 4j * s * c * Lambda.real
    return jnp.sum(top / bottom, axis=-1)


shared = pair_sum_one_division(C_tilde * B, Lambda, step, theta)
assert largest_error(shared, ours) < 1e-12

N, L_count = 64, 1024
frequencies = L_count // 2 + 1
print(f"full state, all roots:       {L_count * N} divisions")
print(f"full state, half the roots:  {frequencies * N}")
print(f"pairs over one denominator:  {frequencies * N // 2}")

# %% [markdown]
# A quarter of the divisions. The book's derivations go on with the two terms of {eq}`cauchy-pair`, which show what they mean; chapter 15 returns to the last form when speed is the question.
#
# ## What one mode does
#
# Each mode adds one fraction to $\hat K$. What does it look like, as a function of the frequency?
#
# On the unit circle $\omega = \frac{2i}{\Delta} \tan\frac\theta2$ is imaginary and runs along the axis as $\theta$ grows. The distance $|\omega - \lambda|$ is smallest where $\omega$ passes $\lambda$ at its own height, $\omega = i \operatorname{Im} \lambda$. There the mode is large: a **resonance**. Solve for the angle:
#
# $$ \begin{aligned}
# \frac{2}{\Delta} \tan\frac{\theta}{2} &= \operatorname{Im} \lambda \\
# \theta &= 2 \arctan\frac{\Delta \operatorname{Im} \lambda}{2} \approx \Delta \operatorname{Im} \lambda .
# \end{aligned} $$ (cauchy-peak)
#
# At this angle $2 s = \Delta c \operatorname{Im} \lambda$, so the imaginary part of $d = 2 i s - \Delta c\, \lambda$ is zero and $d = -\Delta c \operatorname{Re} \lambda$ is left. The mode contributes $|\Delta\, a / d| = |a| / (c\, |\operatorname{Re} \lambda|)$. How wide is the peak? Its height is down by $\sqrt 2$ where $|\omega - \lambda|$ is $\sqrt 2$ times its smallest value $|\operatorname{Re}\lambda|$.
# By Pythagoras this is where $\omega$ has gone up or down from $i \operatorname{Im} \lambda$ by $|\operatorname{Re} \lambda|$. As $\omega \approx i\theta/\Delta$, it is at an angle $\Delta\, |\operatorname{Re} \lambda|$ away.
#
# A little damping makes a high, narrow peak: a long memory for one frequency. (The mode's partner peaks at $-\theta$. Between 0 and $\pi$ it adds a smooth remainder.)
#
# A guess by hand for $\Delta = 0.1$ and three modes with $a = 1$:
#
# | $\lambda$ | $\Delta \operatorname{Im} \lambda$ | angle, by the arctangent | height, about $1/\lvert \operatorname{Re} \lambda \rvert$ | half width, about $\Delta \lvert \operatorname{Re} \lambda \rvert$ |
# |---|---|---|---|---|
# | $-0.2 + 3i$ | 0.3 | 0.30 | 5 | 0.02 |
# | $-0.1 + 8i$ | 0.8 | 0.76 | 10 | 0.01 |
# | $-0.4 + 15i$ | 1.5 | 1.29 | 2.5 | 0.04 |
#
# In the third row the two guesses of the angle differ: the bilinear step bends high frequencies towards lower ones, the more the nearer they are to $\pi$.

# %%
peaks = jnp.array([-0.2 + 3j, -0.1 + 8j, -0.4 + 15j])
ones, L = jnp.ones(3, complex), 16384  # so long that C~ is C
C_tilde = tilde(ones, peaks, step, L)
assert largest_error(C_tilde, ones) < 1e-12
theta = np.asarray(2 * jnp.pi * jnp.arange(L // 2 + 1) / L)
each = []
for n in range(3):
    mode = slice(n, n + 1)
    pair = pair_sum(C_tilde[mode], peaks[mode], step, theta)
    each.append(np.abs(step * pair))
total = np.abs(step * pair_sum(C_tilde, peaks, step, theta))
guesses = 2 * np.arctan(0.1 * np.asarray(peaks.imag) / 2)
for n, contribution in enumerate(each):
    top = contribution.argmax()
    above = theta[contribution > contribution[top] / np.sqrt(2)]
    width = (above[-1] - above[0]) / 2
    print(f"mode {n}: at {theta[top]:.2f}, height "
          f"{contribution[top]:.1f}, half width {width:.3f}")
    damping, cosine = abs(float(peaks[n].real)), np.cos(guesses[n] / 2)
    assert abs(theta[top] - guesses[n]) < 0.003
    assert abs(contribution[top] * cosine * damping - 1) < 0.03
    assert abs(width / (0.1 * damping * cosine**2) - 1) < 0.1

# %% [markdown]
# The measured heights are $1/(c\,|\operatorname{Re} \lambda|)$, as derived; the cell allows 3 per cent for the partner. The half widths are smaller than the guess by the factor $c^2$: the slope of $\frac{2}{\Delta} \tan\frac\theta2$ is $1/(\Delta c^2)$, so what is $|\operatorname{Re} \lambda|$ wide in $\omega$ is $\Delta c^2 |\operatorname{Re} \lambda|$ wide in $\theta$.

# %%
figure, axes = plt.subplots(figsize=(7.0, 3.4))
axes.semilogy(theta, total, color="black", linewidth=2.6, alpha=0.3,
              linestyle="-", label=r"$|\hat K|$, the sum of all")
for n, contribution in enumerate(each):
    axes.semilogy(theta, contribution, linewidth=1.3,
                  label=rf"$\lambda = {float(peaks[n].real):g}"
                        rf"+ {float(peaks[n].imag):g}i$ and partner")
    height = 1 / abs(float(peaks[n].real))
    above = contribution.max() / height - 1
    assert round(100 * above) == (1, 8, 25)[n]
    axes.annotate("guess", (guesses[n], height), xytext=(10, 12),
                  textcoords="offset points", fontsize=9)
    axes.plot(guesses[n], height, "o", color="black", markersize=5)
axes.set(xlabel=r"angle $\theta$, radians per step", ylabel="size",
         ylim=(1e-3, 60), xticks=[0, 0.3, 0.76, 1.29, 2, np.pi])
axes.set_xticklabels(["0", "0.3", "0.76", "1.29", "2", r"$\pi$"])
axes.legend(loc="upper right", fontsize=9)
plotting.show(figure, "The size of the transform of the kernel against the angle, and the contributions of its three pairs of modes on a logarithmic axis. Each pair has one peak, at 0.30, 0.76 and 1.29, at the guessed places, and 1, 8 and 25 % above the guessed heights, which dots mark. Near each peak the sum follows the one mode that resonates there; between the peaks, where the modes cancel, it has dips.")

# %% [markdown]
# So a diagonal system is a bank of resonators. $\operatorname{Im} \lambda_n$ chooses a frequency, $\operatorname{Re} \lambda_n$ how long it rings, and $\tilde C_n B_n$ how much of it goes into the output.
#
# ## In float32
#
# Networks are trained in float32. Which form keeps its digits there?
#
# One expects the pole to do harm: near $z = -1$ two nearly equal numbers are subtracted in $1 + z$. But where the transform has no pole it is smooth, so a $z$ that is a little off gives a $\hat K$ that is a little off, and we saw the error of $1 + z$ cancel. Look at the other end. We measure with the step $1/L$, where $\Delta\lambda$ is small, so that all poles stand near $z = 1$, and there $1 - z$ cancels.
#
# A guess: float32 numbers below 1 are $6 \cdot 10^{-8}$ apart, so the real part of $z$ is rounded by up to $3 \cdot 10^{-8}$. The first root after 1 is at the distance $2\pi/L$ from it. For $L = 16384$ this is $4 \cdot 10^{-4}$, and the relative error of $1 - z$ is about $8 \cdot 10^{-5}$.
# The roots just *before* 1, with angles near $2\pi$, are worse: the angle itself is rounded by up to $2.4 \cdot 10^{-7}$, which is $6 \cdot 10^{-4}$ of that distance. The half-angle form on half of the roots does neither: small angles have a small rounding error, and so has their sine.
#
# Check the guess, then measure. The parameters are rounded to float32 first, and the oracle takes the rounded ones, so what is compared is the arithmetic alone.


# %%
distance = 2 * np.pi / 16384
of_one = np.spacing(np.float32(0.9)) / 2
of_angle = np.spacing(np.float32(2 * np.pi - distance)) / 2
print(f"1 - z just after 1:   {of_one / distance:.0e}")
print(f"angle just before 1:  {of_angle / distance:.0e}")


def rounded_system(L, seed):
    """A random system with float32 parameters, and its kernel in float64.

    ->  Lambda, B, C_tilde (32,) complex64, step float32, K (L,)
    """
    Lambda, B, C = random_modes(32, seed)
    step = 1 / L  # a power of two, the same in float32
    system = (Lambda, B, tilde(C, Lambda, step, L))
    Lambda, B, C_tilde = (x.astype(np.complex64) for x in system)
    exact = Lambda.astype(complex)
    g = (1 + step / 2 * exact) / (1 - step / 2 * exact)
    x = C_tilde / (1 - g**L) * step * B / (1 - step / 2 * exact)
    K = np.zeros(L)
    for l in range(L):
        K[l] = 2 * x.sum().real
        x = x * g
    parameters = [jnp.asarray(v) for v in (Lambda, B, C_tilde)]
    return *parameters, jnp.float32(step), K


def usual_half_roots(Lambda, B, C_tilde, step, L):
    """The usual form, one of each pair, at j = 0 ... L//2."""
    j = jnp.arange(L // 2 + 1, dtype=step.dtype)
    z = jnp.exp(-2j * jnp.pi * j / L)
    omega = 2 / step * (1 - z) / (1 + z)
    pairs = cauchy(C_tilde * B, omega, Lambda)
    pairs = pairs + cauchy((C_tilde * B).conj(), omega, Lambda.conj())
    return jnp.fft.irfft(2 / (1 + z) * pairs, n=L)


def usual_all_roots(Lambda, B, C_tilde, step, L):
    """The usual form, full state, all roots, as of 2022."""
    both = [jnp.concatenate([x, x.conj()]) for x in (Lambda, B, C_tilde)]
    return kernel_usual(*both, step, L).real


# %% tags=["nbval-ignore-output"]
forms = {
    "usual, all roots": usual_all_roots,
    "usual, half the roots": usual_half_roots,
    "half-angle, half the roots": kernel_diagonal,
}
errors = {}
for L in (1024, 16384):
    for name, form in forms.items():
        worst = 0.0
        for seed in range(3):
            *parameters, K = rounded_system(L, seed)
            found = jax.jit(form, static_argnums=4)(*parameters, L)
            assert found.dtype == jnp.float32
            worst = max(worst, largest_error(found, K))
        errors[L, name] = worst
        print(f"L = {L:5}  {name:27} {worst:.0e}")

usual, half_roots, half_angle = forms
for L in (1024, 16384):
    assert errors[L, half_angle] < 2e-6
    assert errors[L, usual] > 5 * errors[L, half_angle]
assert errors[16384, usual] > 100 * errors[16384, half_angle]
assert errors[16384, usual] > 3 * errors[16384, half_roots]
assert errors[16384, half_roots] > 10 * errors[16384, half_angle]
assert errors[16384, usual] > 5 * errors[1024, usual]

# %% [markdown]
# In this experiment the half-angle form stays below $2 \cdot 10^{-6}$ at both lengths. The usual form at all roots loses more than a hundred times as much at $L = 16384$, and its error grows with $L$. Half of the roots alone cure a part. And which frequencies are to blame?

# %% tags=["nbval-ignore-output"]
L = 16384
Lambda_32, B_32, C_tilde_32, step_32, K = rounded_system(L, 0)
K_hat = np.fft.rfft(K)
j = jnp.arange(L // 2 + 1, dtype=jnp.float32)
z = jnp.exp(-2j * jnp.pi * j / L)
omega = 2 / step_32 * (1 - z) / (1 + z)
a = C_tilde_32 * B_32
pairs = cauchy(a, omega, Lambda_32)
pairs = pairs + cauchy(a.conj(), omega, Lambda_32.conj())
theta = 2 * jnp.pi * j / L
sums = pair_sum(a, Lambda_32, step_32, theta)
transforms = {
    "usual": 2 / (1 + z) * pairs,
    "half-angle": step_32 * jnp.exp(0.5j * theta) * sums,
}
relative = {
    name: np.abs(np.asarray(values) - K_hat) / np.abs(K_hat)
    for name, values in transforms.items()
}
near_one, near_minus_one = slice(1, 65), slice(L // 2 - 63, L // 2 + 1)
for name, error in relative.items():
    print(f"{name:10}  64 roots next to 1: {error[near_one].max():.0e},"
          f"  64 up to -1: {error[near_minus_one].max():.0e}")
assert relative["usual"][near_one].max() > 1e-5
assert relative["usual"][near_minus_one].max() < 5e-6
assert relative["half-angle"].max() < 5e-6

# %% [markdown]
# The digits are lost next to $z = 1$, as guessed, and not at the pole. So the half-angle form does two things: it removes the division by zero at one end, and the cancellation at the other. We use it from here on.
#
# The second gain belongs to small steps. With long ones the poles stand all along the circle, and at a resonance $2s$ and $\Delta c \operatorname{Im}\lambda$ are the two nearly equal numbers. There both forms lose digits, in proportion to
# $|\operatorname{Im}\lambda| / |\operatorname{Re}\lambda|$: it is the mode itself that is known no better.

# %%
mode = (-0.5 + 1j * np.arange(1000, 1301, 10)).astype(np.complex64)
long_step = np.float32(0.1)
resonance = 2 * np.arctan(long_step / 2 * mode.imag.astype(float))


def denominators(theta):
    """d, and omega - lambda, in the precision of theta."""
    s, c, z = np.sin(theta / 2), np.cos(theta / 2), np.exp(-1j * theta)
    omega = 2 / long_step * (1 - z) / (1 + z)
    return 2j * s - long_step * c * mode, omega - mode


short, double = denominators(resonance.astype(np.float32)), denominators(resonance)
assert short[0].dtype == np.complex64 and double[0].dtype == np.complex128
lost = [np.abs(a - b).max() / np.abs(b).max() for a, b in zip(short, double)]
assert min(lost) > 1e-4

# %% [markdown]
# What is not in this table: the way from $C$ to $\tilde C$ and back, which loses digits of its own. Chapter 9 has the full account.
#
# ## What we have, and what is missing
#
# For a diagonal $A$ the solve at each frequency has become $N$ divisions: a Cauchy sum. Its pole at $z = -1$ was made by one step of algebra, and the half-angle form does without that step. One of each conjugate pair and half of the roots are enough, if the partner is added with its own denominator $2 i s - \Delta c\, \overline{\lambda_n}$:
#
# $$ \hat K(e^{-i\theta}) = \Delta\, e^{i\theta/2} \sum_{n=0}^{N/2-1} \left[ \frac{\tilde C_n B_n}{d_n} + \frac{\overline{\tilde C_n B_n}}{d'_n} \right] . $$
#
# What is missing is the matrix we want. HiPPO's $A$ from [chapter 3](03_hippo.ipynb) is not diagonal, and changing to the basis of its eigenvectors, as we did for the spring, fails in a way that [chapter 8](08_nplr.ipynb) measures. But it is close to a matrix that can be diagonalised well: they differ by one column times one row. [Chapter 7](07_dplr.ipynb) shows what such a difference does to an inverse. The answer is four sums of the kind we now have.
#
# ## Exercises

# %% [markdown]
# ````{exercise} Two values by hand
# :label: cauchy-two-values
#
# For even $L$ the value at $\theta = \pi$ is $\frac{\Delta}{2}\tilde C B$. (For odd $L$, $-1$ is no root, and the row there would be $C\,(I + \bar A^L)$.) What is the value at $\theta = 0$? It is the sum of the kernel, what the system answers to a constant input of 1 if the kernel has died out within $L$ steps. Why is the step not in it?
# ````

# %% [markdown]
# ````{solution-start} cauchy-two-values
# :class: dropdown
# ````
# At $\theta = 0$: $s = 0$, $c = 1$, $d_n = -\Delta \lambda_n$. So $\hat K(1) = \Delta \sum_n \tilde C_n B_n / (-\Delta\lambda_n) = -\sum_n \tilde C_n B_n / \lambda_n$, which is $-\tilde C \Lambda^{-1} B$. The state under a constant input comes to rest where $0 = \Lambda x + B$, that is at $x = -\Lambda^{-1} B$, and a place of rest does not depend on how often one looks. (The step is still hidden in $\tilde C$, unless the kernel has died out and $\tilde C = C$.)

# %%
L = 256
C_tilde = tilde(C, Lambda, step, L)
K = oracle(full(Lambda), full(B), full(C), 0.1, L).real
at_zero = -2 * jnp.sum(C_tilde * B / Lambda).real
assert abs(at_zero - K.sum()) < 1e-12 * np.abs(K).sum()
at_pi = step / 2 * 2 * jnp.sum(C_tilde * B).real
alternating = np.sum(K * (-1.0) ** np.arange(L))
assert abs(at_pi - alternating) < 1e-12 * np.abs(K).sum()

steps = [0.05, 0.1, 0.2]
sums = [oracle(full(Lambda), full(B), full(C), d, 4000).sum().real
        for d in steps]
assert np.allclose(sums, -2 * jnp.sum(C * B / Lambda).real)

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Another discretisation
# :label: cauchy-zoh
#
# With zero-order hold a diagonal system has $\bar A_n = e^{\Delta\lambda_n}$ and $\bar B_n = (e^{\Delta\lambda_n} - 1) B_n / \lambda_n$. Write the kernel as the product of a vector with the matrix that has the entries $g_n^{\,l}$ (a **Vandermonde matrix**). Then write its generating function as a Cauchy sum. At which points is it taken, and does $z = -1$ make trouble?
# ````

# %% [markdown]
# ````{solution-start} cauchy-zoh
# :class: dropdown
# ````
# With $g_n = e^{\Delta\lambda_n}$ the kernel is $K_l = \sum_n (C_n \bar B_n)\, g_n^{\,l}$: vector times matrix, as the question says. This form holds for every discretisation of a diagonal system. For the generating function, $\hat K(z) = \sum_n \tilde C_n \bar B_n / (1 - z g_n)$. Divide top and bottom by $z$:
#
# $$ \hat K(z) = \frac1z \sum_n \frac{\tilde C_n \bar B_n}{z^{-1} - g_n} . $$
#
# It is a Cauchy sum taken at $1/z_j$, with the poles $g_n$. It needs no $\omega$, and $z = -1$ is a point like any other: a pole would need $g_n = 1/z$, on the unit circle, but a stable system has $|g_n| < 1$. What is lost is the step that made the resolvent of $A$ out of that of $\bar A$. For a diagonal $A$ nothing depends on it. For the matrices of chapter 7 it does, since $e^{\Delta A}$ is not a diagonal plus a low rank.

# %%
L, g_zoh = 32, jnp.exp(step * Lambda)
B_zoh = (g_zoh - 1) * B / Lambda
dense = ssm.discretize(
    jnp.diag(jnp.asarray(full(Lambda))), jnp.asarray(full(B)), step, "zoh"
)
assert np.allclose(dense[1], full(B_zoh))
by_expm = scipy.linalg.expm(0.1 * np.diag(full(Lambda)))
K = [full(C) @ np.linalg.matrix_power(by_expm, l) @ full(B_zoh)
     for l in range(L)]

vandermonde = full(g_zoh)[:, None] ** np.arange(L)
assert largest_error((full(C) * full(B_zoh)) @ vandermonde, K) < 1e-12
C_zoh = full(C * (1 - g_zoh**L))
z = generating.roots_of_unity(L)
K_hat = cauchy(C_zoh * full(B_zoh), 1 / z, full(g_zoh)) / z
assert largest_error(jnp.fft.ifft(K_hat), K) < 1e-12

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} A real eigenvalue
# :label: cauchy-real
#
# A system has the single real mode $\lambda = -1$, $B = 1$, $C = 3$. You store one of each conjugate pair. What must be stored so that `kernel_diagonal` returns its kernel, and what comes out if the numbers are stored as they are? Can two *different* real eigenvalues be stored as one pair?
# ````

# %% [markdown]
# ````{solution-start} cauchy-real
# :class: dropdown
# ````
# `kernel_diagonal` adds a partner to whatever is stored. The partner of a real mode is a copy of it, so the mode counts twice. Store $C = \frac32$: two halves make the whole. (The full state has then two numbers, always equal, where one would do.) Two different real eigenvalues are not conjugates of each other, so they need two stored numbers, each with half of its $C$.

# %%
L, real_mode = 20, (-jnp.ones(1, complex), jnp.ones(1, complex))
one = np.ones(1, complex)
expected = oracle(-one, one, 3 * one, 0.1, L).real


def stored_as(C):
    """The kernel if this C is stored for the real mode."""
    C_tilde = tilde(C * jnp.ones(1, complex), real_mode[0], step, L)
    return kernel_diagonal(*real_mode, C_tilde, step, L)


assert largest_error(stored_as(1.5), expected) < 1e-13
assert largest_error(stored_as(3.0), 2 * expected) < 1e-13

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} The same eigenvalue twice
# :label: cauchy-repeated
#
# (a) Two modes of a diagonal system have the same $\lambda$. How many numbers does the system really remember?
#
# (b) The matrix $A = \begin{pmatrix} \lambda & 1 \\ 0 & \lambda \end{pmatrix}$ has $\lambda$ twice and only one eigenvector, so it cannot be made diagonal. Find $\hat K$ for $B = (0, 1)$ and $C = (1, 0)$ from the resolvent. Then change the lower $\lambda$ to $\lambda + \varepsilon$, so that it can be made diagonal. What happens to the numerators $\tilde C_n B_n$ as $\varepsilon \to 0$?
# ````

# %% [markdown]
# ````{solution-start} cauchy-repeated
# :class: dropdown
# ````
# (a) The two fractions have the same denominator and add up to one with the numerator $\tilde C_0 B_0 + \tilde C_1 B_1$. From outside it is one mode. Both states follow the same input with the same factor and are multiples of each other.
#
# (b) The inverse of $\begin{pmatrix} \omega - \lambda & -1 \\ 0 & \omega - \lambda \end{pmatrix}$ has $1/(\omega-\lambda)^2$ at the top right: a double pole, which no sum of single poles can make. With $\lambda + \varepsilon$ it is
#
# $$ \frac{1}{(\omega - \lambda)(\omega - \lambda - \varepsilon)} = \frac{1}{\varepsilon} \left[ \frac{1}{\omega - \lambda - \varepsilon} - \frac{1}{\omega - \lambda} \right] . $$
#
# The residues are $\pm 1/\varepsilon$: two huge numbers whose difference is wanted. ($C$ takes the place of $\tilde C$ here; the general row $\tilde C$ behaves alike.) With $\varepsilon = 10^{-8}$ half of the sixteen digits of float64 are gone. This is how diagonalising fails. The eigenvalues of HiPPO's matrix are all different, and yet its residues are as large: chapter 8.

# %%
omega, eigenvalue = 0.7j, -0.5


def fractions(shift):
    """C (omega - A)^-1 B as two fractions."""
    poles = np.array([eigenvalue + shift, eigenvalue])
    return np.sum(np.array([1, -1]) / shift / (omega - poles))


resolvent = np.linalg.inv(
    omega * np.eye(2) - np.array([[eigenvalue, 1], [0, eigenvalue]])
)
right = 1 / (omega - eigenvalue) ** 2
assert np.isclose(resolvent[0, 1], right)
assert abs(fractions(1e-4) / right - 1) < 1e-3  # not quite the same system
nearly = 1 / ((omega - eigenvalue) * (omega - eigenvalue - 1e-8))
lost = abs(fractions(1e-8) / nearly - 1)
assert 1e-12 < lost < 1e-6

same = np.array([eigenvalue, eigenvalue])
two = cauchy(np.array([2.0, 3.0]), jnp.array([omega]), same)
assert np.isclose(two[0], 5 / (omega - eigenvalue))

# %% [markdown]
# ````{solution-end}
# ````
