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
# # Diagonal plus low rank
#
# **HiPPO's matrix is not diagonal. In suitable coordinates it is a diagonal one minus a column times a row. What does one more rank cost?**
#
# For a diagonal $A$ the Fourier transform of the kernel is a sum with $N$ terms at each frequency; that was [chapter 6](06_cauchy_kernel.ipynb). That HiPPO has the form of this chapter is a promise, which
# [chapter 8](08_nplr.ipynb) keeps. Here we take the form as given and do its algebra, every line of it. At the end stands the function that the S4 paper {cite:p}`gu2022s4` is about.

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

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from annotated_s4 import dplr, generating, hippo, plotting, ssm
from annotated_s4.cauchy import pair_sum

plotting.use_style()

# %% [markdown]
# ## Where we stand
#
# [Chapter 5](05_generating_functions.ipynb) replaced the powers of $\bar A$ by one inverse. At the roots of unity $z_j = e^{-2\pi i j/L}$ the Fourier transform of the kernel is
#
# $$ \hat K(z) = \tilde C\,(I - z \bar A)^{-1} \bar B, \qquad \tilde C = C\,(I - \bar A^L). $$ (dplr-generating)
#
# Below, $\hat K(z)$ is short for $\tilde C\,(I - z \bar A)^{-1} \bar B$. The algebra holds at every $z$ where the inverses exist, but this is the kernel's generating function only at the roots $z_j$, since $\tilde C$ was made for them.
#
# $C$ and $\tilde C$ are rows, and no conjugate is hidden in a product with them. The bilinear rule has $\bar A = (I - \frac{\Delta}{2} A)^{-1} (I + \frac{\Delta}{2} A)$ and $\bar B = (I - \frac{\Delta}{2} A)^{-1} \Delta B$.
# Multiply $I - z\bar A$ by $I - \frac{\Delta}{2} A$ from the left:
#
# $$\begin{aligned}
# \left(I - \tfrac{\Delta}{2} A\right)(I - z \bar A) &= \left(I - \tfrac{\Delta}{2} A\right) - z \left(I + \tfrac{\Delta}{2} A\right) \\
# &= (1 - z)\, I - \tfrac{\Delta}{2} (1 + z)\, A \\
# &= \tfrac{\Delta}{2} (1 + z) \left( \omega I - A \right), \qquad \omega = \frac{2}{\Delta}\,\frac{1 - z}{1 + z} .
# \end{aligned}$$
#
# So $I - z\bar A = (I - \frac{\Delta}{2} A)^{-1}\, \frac{\Delta}{2}(1+z)\,(\omega - A)$, where $\omega - A$ is short for $\omega I - A$. Invert it, the factors in reverse order, and apply it to $\bar B$:
#
# $$\begin{aligned}
# (I - z\bar A)^{-1} \bar B &= \frac{2}{\Delta (1+z)}\, (\omega - A)^{-1} \left(I - \tfrac{\Delta}{2} A\right) \left(I - \tfrac{\Delta}{2} A\right)^{-1} \Delta B \\
# &= \frac{2}{1+z}\, (\omega - A)^{-1} B .
# \end{aligned}$$
#
# The matrix $(\omega - A)^{-1}$ is the **resolvent** of $A$ at $\omega$, and
#
# $$ \hat K(z) = \frac{2}{1+z}\; \tilde C\, (\omega - A)^{-1} B . $$ (dplr-resolvent)
#
# With $z = e^{-i\theta}$, $s = \sin(\theta/2)$ and $c = \cos(\theta/2)$ chapter 6 found
#
# $$ \frac{2}{1+z} = \frac{e^{i\theta/2}}{c}, \qquad \omega = \frac{2 i s}{\Delta c} . $$ (dplr-angles)
#
# All of this on a random complex matrix with $N = 4$: the first line at a root of unity for $L = 6$, the others, which hold at every $z \ne -1$ where both inverses exist, at one more point of the circle.

# %%
rng = np.random.default_rng(0)


def draw(*shape):
    """Complex numbers, both parts normal."""
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def relative(found, wanted):
    """The largest error over the largest value wanted."""
    return np.abs(found - wanted).max() / np.abs(wanted).max()


def bilinear(A, B, step):
    """Ab and Bb, with dense solves in NumPy.   A: (N, N), B: (N,)"""
    identity = np.eye(len(B))
    left, right = identity - step / 2 * A, identity + step / 2 * A
    return np.linalg.solve(left, right), np.linalg.solve(left, step * B)


N, step, theta = 4, 0.3, 1.1
identity = np.eye(N)
A, B, C = draw(N, N), draw(N), draw(N)
Ab, Bb = bilinear(A, B, step)
power = np.linalg.matrix_power
z = np.exp(-2j * np.pi / 6)
summed = sum(C @ power(Ab, l) @ Bb * z**l for l in range(6))
C_tilde = C - C @ power(Ab, 6)
generated = C_tilde @ np.linalg.inv(identity - z * Ab) @ Bb
assert abs(generated - summed) < 1e-13 * abs(summed)

z, s, c = np.exp(-1j * theta), np.sin(theta / 2), np.cos(theta / 2)
omega = 2 / step * (1 - z) / (1 + z)
generated = C_tilde @ np.linalg.inv(identity - z * Ab) @ Bb
resolved = C_tilde @ np.linalg.inv(omega * identity - A) @ B
assert abs(generated - 2 / (1 + z) * resolved) < 1e-13
assert abs(2 / (1 + z) - np.exp(0.5j * theta) / c) < 1e-14
assert abs(omega - 2j * s / (step * c)) < 1e-14
print("checked: generating function, resolvent, half angles")

# %% [markdown]
# For a diagonal $A$ with the numbers $\lambda_n$ the resolvent is diagonal too, with $1/(\omega - \lambda_n)$: $N$ divisions, no solve. For any other $A$ it takes a solve at each of the $L$ frequencies, about $N^3$ operations
# each. With $N = 64$ and $L = 1024$ that is $64 \cdot 1024 = 65\,536$ quotients against $64^3 \cdot 1024$, which is 268 million. We look for matrices that are not diagonal and yet pay nearly the low price.
#
# ## One rank more
#
# Take a diagonal matrix, and subtract the smallest thing that touches all its entries: a column times a row.
#
# $$ A = \Lambda - P Q^* , \qquad A_{nm} = \lambda_n\,[n = m] - P_n\, \overline{Q_m} . $$ (dplr-matrix)
#
# Here $\Lambda$ is the diagonal matrix of the $\lambda_n$, $P$ and $Q$ are columns of $N$ complex numbers, and $[n = m]$ is 1 on the diagonal and 0 elsewhere. $Q^*$ is the **conjugate transpose** of $Q$: a row, with each number
# conjugated. This is the only conjugate in all of the formulas for the full state. $B$, $P$ are columns as they are, $\tilde C$ is a row as it is.
#
# Every column of $P Q^*$ is a multiple of $P$, so its rank is one, and $A$ is called **diagonal plus low rank** (DPLR). It has $N^2$ entries, but $3N$ numbers describe it.
#
# A matrix to work out by hand, which comes back several times in this chapter: $\Lambda = (-1, -2)$, $P = (1, 1)$, $Q = (1, 2i)$. Then $Q^* = (1, -2i)$, and
#
# $$ A = \begin{pmatrix} -1 & 0 \\ 0 & -2 \end{pmatrix} - \begin{pmatrix} 1 \\ 1 \end{pmatrix} \begin{pmatrix} 1 & -2i \end{pmatrix}
# = \begin{pmatrix} -2 & 2i \\ -1 & -2 + 2i \end{pmatrix} . $$ (dplr-hand)


# %%
def dense(Lambda, P, Q):
    """A = Lambda - P Q*, written out.   three times (N,)  ->  (N, N)"""
    return np.diag(Lambda) - np.outer(P, np.conj(Q))


hand = np.array([-1, -2]), np.array([1, 1]), np.array([1, 2j])
assert np.array_equal(dense(*hand), np.array([[-2, 2j], [-1, -2 + 2j]]))

# %% [markdown]
# And one from the package, HiPPO with eight states, in coordinates that chapter 8 will find. (There the rank-one part has $P = Q$. The package keeps one of each pair of conjugate modes; `full` adds the others, and we sort them by frequency.)


# %%
def full(x):
    """(x, conj x): one of each pair -> the full state.   (N/2,) -> (N,)"""
    return np.concatenate([x, np.conj(x)])


Lambda, P, _, _ = (np.asarray(x) for x in hippo.dplr_legs(8))
order = np.argsort(full(Lambda).imag)
Lambda, P = full(Lambda)[order], full(P)[order]
parts = {
    r"$\Lambda$": np.diag(Lambda),
    r"$P Q^*$": np.outer(P, P.conj()),
    r"$A = \Lambda - P Q^*$": dense(Lambda, P, P),
}
assert [np.linalg.matrix_rank(part) for part in parts.values()] == [8, 1, 8]
assert np.abs(parts[r"$A = \Lambda - P Q^*$"]).min() > 0.2

figure, panels = plt.subplots(1, 3, figsize=(7.4, 2.7))
for panel, (name, part) in zip(panels, parts.items(), strict=True):
    size = np.ma.masked_equal(np.abs(part), 0)  # zeros stay blank
    picture = panel.imshow(size, norm="log", vmin=0.2, vmax=20)
    panel.set(xlabel=name, xticks=[], yticks=[])
    panel.grid(False)
figure.colorbar(picture, ax=panels, label="size of the entry")
plotting.show(
    figure,
    "Three matrices of eight by eight entries, each entry shaded by the logarithm of its size, zeros left blank. Lambda is blank off the diagonal, and its largest entries are at the two ends. "
    "P Q* has no blank: every row is a multiple of every other, large at the four corners and small in the middle. Their difference A has no blank either, and yet three vectors describe it.",
)

# %% [markdown]
# In the right panel nothing is zero. A solver that looks at the entries sees a full matrix. One that knows how it was made can do better.
#
# ## Dividing by it
#
# We want $v = (\omega - A)^{-1} b$, the solution of
#
# $$ (\omega - \Lambda + P Q^*)\, v = b . $$
#
# The letters $v$, $b$, and $\eta$ and $w$ below serve in this section only. The diagonal part we can divide by. What is in the way is $P Q^* v$. Look at it from the right: $Q^* v$ is a row times a column, a single number.
# We do not know it, as we do not know $v$. But it is *one* unknown, not $N$. Give it a name,
#
# $$ \eta = Q^* v . $$
#
# Then the equation reads $(\omega - \Lambda)\, v = b - P \eta$, and the matrix on its left is diagonal. With
#
# $$ R = (\omega - \Lambda)^{-1}, \qquad R_n = \frac{1}{\omega - \lambda_n}, $$ (dplr-R)
#
# the solution is
#
# $$ v = R\, (b - P \eta) = R b - R P\, \eta . $$ (dplr-v)
#
# One equation is left over: $\eta$ must be what it was named for. Multiply by $Q^*$ from the left,
#
# $$ \eta = Q^* v = Q^* R\, b - (Q^* R P)\, \eta . $$
#
# All terms are numbers. Bring the two with $\eta$ together, $(1 + Q^* R P)\, \eta = Q^* R\, b$, and divide:
#
# $$ \eta = \frac{Q^* R\, b}{w}, \qquad w = 1 + Q^* R P . $$ (dplr-eta)
#
# Put this into $v = R b - R P\,\eta$. It holds for every $b$, so what stands before $b$ is the inverse:
#
# $$ (\omega - A)^{-1} = R - R P\, (1 + Q^* R P)^{-1}\, Q^* R . $$ (dplr-woodbury)
#
# This is **Woodbury's identity** for rank one, also named after Sherman and Morrison. $R P$ is a column, $Q^* R$ is a row, and $1 + Q^* R P$ is a number. The conjugate in it is the one of $Q^*$. The price is one diagonal division and two sums.
#
# With the small matrix {eq}`dplr-hand`, $\omega = 0$ and $b = (1, 0)$: $R = (1, \frac12)$, so $Q^* R P = 1 - 2i \cdot \frac12 = 1 - i$ and $w = 2 - i$. Further $Q^* R\, b = 1$, so $\eta = 1/(2 - i) = (2 + i)/5$, and
#
# $$ v = R\,(b - P \eta) = \begin{pmatrix} 1 - \eta \\ -\eta/2 \end{pmatrix} = \begin{pmatrix} 0.6 - 0.2i \\ -0.2 - 0.1i \end{pmatrix} . $$
#
# In code:


# %%
def solve_dplr(omega, Lambda, P, Q, b):
    """v = R b - R P eta, eta = Q* R b / (1 + Q* R P): (omega - A) v = b.
    omega: a number, the others: (N,)  ->  v: (N,)"""
    R = 1 / (omega - Lambda)
    eta = (Q.conj() * R * b).sum() / (1 + (Q.conj() * R * P).sum())
    return R * b - R * P * eta


v = solve_dplr(0, *hand, np.array([1, 0]))
print("by hand:", np.round(v, 3).tolist())
assert np.abs(v - [0.6 - 0.2j, -0.2 - 0.1j]).max() < 1e-15

Lambda, P, Q, b = draw(N), draw(N), draw(N), draw(N)
A = dense(Lambda, P, Q)
resolvent = np.linalg.inv(omega * identity - A)
R = np.diag(1 / (omega - Lambda))
P_column, Q_star = P[:, None], Q.conj()[None, :]
w = 1 + Q_star @ R @ P_column
woodbury = R - R @ P_column @ np.linalg.inv(w) @ Q_star @ R
assert np.abs(woodbury - resolvent).max() < 1e-13
v = solve_dplr(omega, Lambda, P, Q, b)
assert np.abs(v - resolvent @ b).max() < 1e-13

# %% [markdown]
# ### Multiplied out
#
# We found the formula by solving. To be sure that nothing was assumed on the way, multiply it with what it should invert. Write $M = \omega - A$, which is $R^{-1} + P Q^*$, and $X$ for the right side of Woodbury's identity. Remember that $Q^* R P = w - 1$ is a number and can
# be pulled out of a product.
#
# $$\begin{aligned}
# M X &= \left( R^{-1} + P Q^* \right) \left( R - \tfrac1w\, R P\, Q^* R \right) \\
# &= I - \tfrac1w\, P\, Q^* R + P\, Q^* R - \tfrac1w\, P\, (Q^* R P)\, Q^* R \\
# &= I + \left[ 1 - \tfrac1w - \tfrac1w (w - 1) \right] P\, Q^* R \\
# &= I + \left[ 1 - \tfrac1w - 1 + \tfrac1w \right] P\, Q^* R \;=\; I .
# \end{aligned}$$
#
# From the other side,
#
# $$\begin{aligned}
# X M &= \left( R - \tfrac1w\, R P\, Q^* R \right) \left( R^{-1} + P Q^* \right) \\
# &= I + R P\, Q^* - \tfrac1w\, R P\, Q^* - \tfrac1w\, R P\, (Q^* R P)\, Q^* \\
# &= I + \left[ 1 - \tfrac1w - \tfrac1w (w - 1) \right] R P\, Q^* \;=\; I .
# \end{aligned}$$

# %%
M, X = omega * identity - A, woodbury
PQR, RPQ = P_column @ Q_star @ R, R @ P_column @ Q_star
QRP = Q_star @ R @ P_column  # (1, 1)
second = identity - PQR / w + PQR - P_column @ QRP @ Q_star @ R / w
assert np.abs(np.linalg.inv(R) + P_column @ Q_star - M).max() < 1e-13
assert np.abs(second - M @ X).max() < 1e-13
assert np.abs(M @ X - identity).max() < 1e-13
second = identity + RPQ - RPQ / w - R @ P_column @ QRP @ Q_star / w
assert np.abs(second - X @ M).max() < 1e-13
assert np.abs(X @ M - identity).max() < 1e-13

# %% [markdown]
# ### When it exists
#
# The formula divides twice: by $\omega - \lambda_n$, and by $w$. The first fails where $\omega$ is one of the $\lambda_n$. When does the second? Exactly when it has to, when $\omega$ is an eigenvalue of $A$ and there is no inverse to be found. That follows from the **determinant lemma**
#
# $$ \det(\omega - A) = \det(\omega - \Lambda)\; (1 + Q^* R P) . $$ (dplr-determinant)
#
# To prove it, take the diagonal factor out: $\omega - A = R^{-1} + P Q^* = R^{-1} (I + a Q^*)$ with the column $a = R P$. So $\det(\omega - A) = \det(\omega - \Lambda)\,\det(I + a Q^*)$, and it remains to show $\det(I + a Q^*) = 1 + Q^* a$.
# Border the matrix with a row and a column, and multiply by two triangular matrices that have ones on the diagonal:
#
# $$\begin{aligned}
# \begin{pmatrix} I & 0 \\ Q^* & 1 \end{pmatrix}
# \begin{pmatrix} I + a Q^* & a \\ 0 & 1 \end{pmatrix}
# \begin{pmatrix} I & 0 \\ -Q^* & 1 \end{pmatrix}
# &= \begin{pmatrix} I & 0 \\ Q^* & 1 \end{pmatrix}
# \begin{pmatrix} I + a Q^* - a Q^* & a \\ -Q^* & 1 \end{pmatrix} \\
# &= \begin{pmatrix} I & 0 \\ Q^* & 1 \end{pmatrix}
# \begin{pmatrix} I & a \\ -Q^* & 1 \end{pmatrix} \\
# &= \begin{pmatrix} I & a \\ Q^* - Q^* & Q^* a + 1 \end{pmatrix}
# = \begin{pmatrix} I & a \\ 0 & 1 + Q^* a \end{pmatrix} .
# \end{aligned}$$
#
# All four matrices of the first and the last line are block triangular. The determinant of a block triangular matrix is the product of those of its diagonal blocks: $1 \cdot \det(I + a Q^*) \cdot 1$ on the left, $1 + Q^* a$ on the right. That is the claim.

# %%
a = R @ P_column
zero, one = np.zeros((N, 1)), np.ones((1, 1))
lower = lambda row: np.block([[identity, zero], [row, one]])
bordered = np.block([[identity + a @ Q_star, a], [zero.T, one]])
upper = np.block([[identity, a], [zero.T, one + Q_star @ a]])
product = lower(Q_star) @ bordered @ lower(-Q_star)
assert np.abs(product - upper).max() < 1e-13

whole, diagonal = np.linalg.det(M), np.prod(omega - Lambda)
assert abs(whole - diagonal * w.item()) < 1e-12 * abs(whole)
for eigenvalue in np.linalg.eigvals(A):
    at_pole = 1 + (Q.conj() * P / (eigenvalue - Lambda)).sum()
    assert abs(at_pole) < 1e-10
print("w is zero at the four eigenvalues of A")

# %% [markdown]
# So for a number $\omega$ that is none of the $\lambda_n$: $w = 0$ if and only if $\omega$ is an eigenvalue of $A$.
#
# For our kernel neither can happen. On the unit circle $\omega = 2is/(\Delta c)$ is purely imaginary. If all $\lambda_n$ and all eigenvalues of $A$ have a negative real part, as those of a stable system do, $\omega$ meets none of them. (At $z = -1$ it is infinite. That point needs its own form, which comes below.)
#
# ### The inverse of A itself
#
# Sometimes $A^{-1}$ is wanted. It is the case $\omega = 0$, up to a sign: $(0 - A)^{-1} = -A^{-1}$. There $R = -\Lambda^{-1}$, and $R$ stands in Woodbury's identity four times. Put it in, one line for each sign:
#
# $$\begin{aligned}
# -A^{-1} &= R - R P \left( 1 + Q^* R P \right)^{-1} Q^* R \\
# &= -\Lambda^{-1} - \left(-\Lambda^{-1} P\right) \left( 1 - Q^* \Lambda^{-1} P \right)^{-1} \left(-Q^* \Lambda^{-1}\right) \\
# &= -\Lambda^{-1} - \Lambda^{-1} P \left( 1 - Q^* \Lambda^{-1} P \right)^{-1} Q^* \Lambda^{-1} .
# \end{aligned}$$
#
# The two minus signs at the outside have cancelled, the one inside has not. Times $-1$:
#
# $$ A^{-1} = \Lambda^{-1} + \Lambda^{-1} P \left( 1 - Q^* \Lambda^{-1} P \right)^{-1} Q^* \Lambda^{-1} . $$ (dplr-inverse)
#
# Plus outside, minus inside. In the resolvent it is minus outside, plus inside. This is where texts go wrong.
#
# ````{admonition} Trap: Woodbury with mixed signs
# :class: warning
#
# Three forms of $A^{-1}$ for $A = \Lambda - P Q^*$ that are met in print or in code, each next to the right one. The number is the first column, for the small matrix {eq}`dplr-hand`. (The right one is $-v$ from above.)
#
# | form | first column |
# |---|---|
# | $\Lambda^{-1} + \Lambda^{-1} P (1 - Q^* \Lambda^{-1} P)^{-1} Q^* \Lambda^{-1}$, right | $-0.6 + 0.2i,\; 0.2 + 0.1i$ |
# | a minus outside and inside | $-1.4 - 0.2i,\; -0.2 - 0.1i$ |
# | the signs of $(\Lambda + P Q^*)^{-1}$ | $-1 + i,\; 0.5i$ |
# | $1 - Q^* \Lambda P$ in the middle | $-0.9 + 0.2i,\; 0.05 + 0.1i$ |
#
# Each has the right shape and gives a number for every input. No error is raised.
# ````


# %%
def inverse_as_printed(Lambda, P, Q, outside, inside, power=-1):
    """Lambda^-1 +- Lambda^-1 P (1 +- Q* Lambda^power P)^-1 Q* Lambda^-1."""
    w = 1 + inside * (Q.conj() * Lambda**power * P).sum()
    column, row = P / Lambda, Q.conj() / Lambda
    return np.diag(1 / Lambda) + outside * np.outer(column, row) / w


forms = {
    "right": ((+1, -1), [-0.6 + 0.2j, 0.2 + 0.1j]),
    "minus and minus": ((-1, -1), [-1.4 - 0.2j, -0.2 - 0.1j]),
    "the signs of Lambda + P Q*": ((-1, +1), [-1 + 1j, 0.5j]),
    "Lambda for its inverse": ((+1, -1, 1), [-0.9 + 0.2j, 0.05 + 0.1j]),
}
hand_complex = [x.astype(complex) for x in hand]
for name, (signs, by_hand) in forms.items():
    column = inverse_as_printed(*hand_complex, *signs)[:, 0]
    assert np.abs(column - by_hand).max() < 1e-15
    X = inverse_as_printed(Lambda, P, Q, *signs)
    off = np.abs(A @ X - identity).max()
    print(f"{name:27} A X - I:", "0" if off < 1e-12 else f"{off:.1f}")
    assert (off < 1e-12) == (name == "right")

# %% [markdown]
# ## Four sums and one denominator
#
# Now put Woodbury's identity into the resolvent form of the kernel. $\tilde C$ multiplies from the left, $B$ from the right:
#
# $$\begin{aligned}
# \hat K(z) &= \frac{2}{1+z}\; \tilde C \left[ R - R P\, (1 + Q^* R P)^{-1}\, Q^* R \right] B \\
# &= \frac{2}{1+z} \left[ \tilde C R B - \frac{ (\tilde C R P)\, (Q^* R B) }{ 1 + Q^* R P } \right] .
# \end{aligned}$$ (dplr-usual)
#
# Four numbers at each frequency, each a row times a diagonal times a column, which is a sum like that of chapter 6. All four have the same $R_n = 1/(\omega - \lambda_n)$:
#
# $$\begin{aligned}
# \tilde C R B &= \sum_n \frac{\tilde C_n B_n}{\omega - \lambda_n}, &
# \tilde C R P &= \sum_n \frac{\tilde C_n P_n}{\omega - \lambda_n}, \\
# Q^* R B &= \sum_n \frac{\overline{Q_n}\, B_n}{\omega - \lambda_n}, &
# Q^* R P &= \sum_n \frac{\overline{Q_n}\, P_n}{\omega - \lambda_n} .
# \end{aligned}$$ (dplr-four)
#
# The conjugate stands in the two sums with $Q^*$ and nowhere else.
#
# In words: the first sum is the diagonal system alone, from $B$ to $\tilde C$. The low-rank part adds a loop. What $Q^*$ reads from the state comes in again, with a minus, through $P$. A signal can go from $B$ to $Q^*$, any number of times around from $P$ to $Q^*$, and at last from $P$ to $\tilde C$. Where $\lvert Q^* R P \rvert < 1$ the rounds are a geometric series,
#
# $$ 1 - Q^* R P + (Q^* R P)^2 - (Q^* R P)^3 + \dots = \frac{1}{1 + Q^* R P} . $$
#
# The fraction sums them all at once, and holds where the series does not converge.


# %%
def spectrum_usual(Lambda, P, Q, B, C_tilde, step, z):
    """2/(1+z) [C~ R B - (C~ R P) (Q* R B) / (1 + Q* R P)].
    Lambda, P, Q, B, C_tilde: (N,), z: (L,)  ->  K_hat: (L,)"""
    omega = 2 / step * (1 - z) / (1 + z)
    R = 1 / (omega[:, None] - Lambda)  # (L, N)
    between = lambda row, column: (row * R * column).sum(-1)
    around = between(C_tilde, P) * between(Q.conj(), B)
    low_rank = around / (1 + between(Q.conj(), P))
    return 2 / (1 + z) * (between(C_tilde, B) - low_rank)


def spectrum_dense(Lambda, P, Q, B, C_tilde, step, z):
    """C~ (I - z Ab)^-1 Bb, one dense solve for each z: the oracle."""
    Ab, Bb = bilinear(dense(Lambda, P, Q), B, step)
    solve = lambda z_j: np.linalg.solve(np.eye(len(B)) - z_j * Ab, Bb)
    return np.array([C_tilde @ solve(z_j) for z_j in z])


small = Lambda, P, Q, B, C_tilde
points = np.exp(-1j * np.array([0.0, 0.4, 1.1, 2.0, 3.0, 4.4]))
wanted = spectrum_dense(*small, step, points)
assert relative(spectrum_usual(*small, step, points), wanted) < 1e-12

loop = 0.1 * (Q.conj() * P / (omega - Lambda)).sum()  # a weaker loop
rounds = sum((-loop) ** times for times in range(60))
assert abs(loop) < 0.5 and abs(rounds - 1 / (1 + loop)) < 1e-14

# %% [markdown]
# ## Without the pole
#
# As in the diagonal case, $2/(1+z)$ and $\omega$ are infinite at $z = -1$, and every even $L$ has that root. And as there, the pole is not in $\hat K$, which is a polynomial in $z$. It is in the way we write it. Put the half angle in. The denominators are
#
# $$\begin{aligned}
# \omega - \lambda_n &= \frac{2is}{\Delta c} - \lambda_n = \frac{2is - \Delta c\,\lambda_n}{\Delta c} = \frac{d_n}{\Delta c}, \\
# d_n &= 2is - \Delta c\,\lambda_n,
# \end{aligned}$$ (dplr-d)
#
# so $R_n = \Delta c / d_n$. For a row $a$ and a column $b$,
#
# $$\begin{aligned}
# a R\, b &= \sum_n \frac{a_n b_n}{\omega - \lambda_n} = \Delta c \sum_n \frac{a_n b_n}{d_n} = \Delta c\; \kappa(a, b), \\
# \kappa(a, b) &= \sum_n \frac{a_n b_n}{d_n} .
# \end{aligned}$$ (dplr-kappa)
#
# The sum runs over the full state, and $\kappa$ has no conjugate of its own: where $a$ is $Q^*$, the numbers $\overline{Q_n}$ go in. Each of the four sums gets a factor $\Delta c$:
#
# $$\begin{aligned}
# \hat K &= \frac{2}{1+z} \left[ \tilde C R B - \frac{ (\tilde C R P)\, (Q^* R B) }{ 1 + Q^* R P } \right] \\
# &= \frac{e^{i\theta/2}}{c} \left[ \Delta c\;\kappa(\tilde C, B) - \frac{ \Delta c\;\kappa(\tilde C, P)\; \Delta c\;\kappa(Q^*, B) }{ 1 + \Delta c\;\kappa(Q^*, P) } \right] \\
# &= \frac{e^{i\theta/2}}{c}\; \Delta c \left[ \kappa(\tilde C, B) - \frac{ \Delta c\;\kappa(\tilde C, P)\; \kappa(Q^*, B) }{ 1 + \Delta c\;\kappa(Q^*, P) } \right] .
# \end{aligned}$$
#
# One $c$ is divided by the other, and what is left has none below the line. At the angle $\theta_j$ of a root,
#
# $$ \hat K(e^{-i\theta_j}) = \Delta\, e^{i\theta_j/2} \left[ \kappa(\tilde C, B) - \frac{ \Delta c\;\kappa(\tilde C, P)\, \kappa(Q^*, B) }{ 1 + \Delta c\;\kappa(Q^*, P) } \right] . $$ (dplr-kernel)
#
# **At $\theta = \pi$**, a root for even $L$, we have $s = 1$, $c = 0$, so all $d_n = 2i$, and $e^{i\theta/2} = i$. The low-rank part is multiplied by $c$ and vanishes. What is left is
#
# $$ \hat K(-1) = \Delta\, i \sum_n \frac{\tilde C_n B_n}{2i} = \frac{\Delta}{2} \sum_n \tilde C_n B_n . $$ (dplr-at-pi)
#
# Neither $\Lambda$ nor $P$ nor $Q$ is in it. (For odd $L$, $-1$ is no root, and the row there would be $C\,(I + \bar A^L)$.) At the highest frequency, where the input changes its sign at every step, the system has no time to do anything with what it hears.


# %%
def spectrum(Lambda, P, Q, B, C_tilde, step, theta):
    """step e^{i theta/2} [k(C~, B)
         - step c k(C~, P) k(Q*, B) / (1 + step c k(Q*, P))],
    k(a, b) = sum_n a_n b_n / (2 i s - step c Lambda_n).
    Lambda, P, Q, B, C_tilde: (N,), theta: (L,)  ->  K_hat: (L,)"""
    s, c = jnp.sin(theta / 2), jnp.cos(theta / 2)
    d = 2j * s[:, None] - step * c[:, None] * Lambda  # (L, N)
    kappa = lambda a, b: (a * b / d).sum(-1)
    around = step * c * kappa(C_tilde, P) * kappa(Q.conj(), B)
    low_rank = around / (1 + step * c * kappa(Q.conj(), P))
    return step * jnp.exp(0.5j * theta) * (kappa(C_tilde, B) - low_rank)


angles = np.array([0.0, 0.4, 1.1, 2.0, 3.0, np.pi, 4.4])
wanted = spectrum_dense(*small, step, np.exp(-1j * angles))
assert relative(spectrum(*small, step, angles), wanted) < 1e-12
at_pi = spectrum(*small, step, np.array([np.pi]))[0]
assert abs(at_pi - step / 2 * (C_tilde * B).sum()) < 1e-14

s, c = np.sin(theta / 2), np.cos(theta / 2)
d = 2j * s - step * c * Lambda
assert np.abs(omega - Lambda - d / (step * c)).max() < 1e-13
row, column = draw(N), draw(N)
assert abs(row @ R @ column - step * c * (row * column / d).sum()) < 1e-13

# %% [markdown]
# The oracle solves with the dense $\bar A$ at each point, $z = -1$ among them, and agrees.
#
# ## Half the state, half the frequencies
#
# Up to here $\Lambda, P, Q, B, \tilde C$ could be any complex numbers, and so could the kernel. Our systems are real: input, output and kernel are. In the coordinates of its modes a real system consists of conjugate pairs. With each mode $(\lambda_n, P_n, Q_n, B_n, \tilde C_n)$
# it has the mode $(\overline{\lambda_n}, \overline{P_n}, \overline{Q_n}, \overline{B_n}, \overline{\tilde C_n})$. (Chapter 8 shows it for HiPPO.) So we store one of each pair, $N/2$ complex numbers for each letter.
#
# That $\tilde C$ comes in pairs follows if the other letters and $C$ do. Let the matrix $J$ swap each mode with its partner, so that $J J = I$. Pairs in $\Lambda$, $P$ and $Q$ say that $J A J$ is the conjugate of $A$. Sums, products and inverses inherit it, so $J \bar A J$ is the conjugate of $\bar A$, and
# $J (I - \bar A^L) J$ is the conjugate of $I - \bar A^L$. Pairs in $C$ say $\overline{C} = C J$. Together (here the long bar is a conjugate)
#
# $$ \overline{\tilde C} = \overline{C}\; \overline{(I - \bar A^L)} = C J\; J (I - \bar A^L) J = \tilde C J . $$ (dplr-tilde-pairs)
#
# The partner has the same $2is$ in its denominator, since the frequency is the same. Only $\lambda_n$ is conjugated there. So a sum over the full state is
#
# $$ \kappa(a, b) = \sum_{n < N/2} \left[ \frac{a_n b_n}{2is - \Delta c\,\lambda_n} + \frac{\overline{a_n b_n}}{2is - \Delta c\,\overline{\lambda_n}} \right], $$ (dplr-pairs)
#
# which is `pair_sum` of chapter 6. The conjugates in it are those of the partners. For the sums with $Q^*$ the numerator is $\overline{Q_n} B_n$, and that of the partner $Q_n \overline{B_n}$, which is its conjugate, as the formula says.
#
# %%
modes, a, b = draw(3), draw(3), draw(3)
s, c = np.sin(angles / 2), np.cos(angles / 2)
d = 2j * s[:, None] - step * c[:, None] * full(modes)
for row in (a, a.conj()):  # once like C~, once like Q*
    pairs = pair_sum(row * b, modes, jnp.asarray(step), angles)
    assert relative(pairs, (full(row) * full(b) / d).sum(-1)) < 1e-12

J = np.roll(np.eye(6), 3, axis=0)  # swaps each mode with its partner
A_pairs = dense(full(modes), full(a), full(b))
Ab_pairs, _ = bilinear(A_pairs, full(b), step)
factor = np.eye(6) - power(Ab_pairs, 5)
row = full(a) @ factor  # C~ for C = full(a)
assert relative(J @ Ab_pairs @ J, Ab_pairs.conj()) < 1e-12
assert relative(J @ factor @ J, factor.conj()) < 1e-12
assert relative(row @ J, row.conj()) < 1e-12

# %% [markdown]
# Since $K$ is real, half of the frequencies are enough too. Conjugate the definition: $\overline{\hat K(z)} = \sum_l K_l\, \bar z^{\,l} = \hat K(\bar z)$, and the conjugate of $z_j$ is $z_{L-j}$. So the values at $j = 0, \dots, \lfloor L/2 \rfloor$ determine the others. `irfft` is the inverse transform that
# knows this. It must be told $L$: from the number of values alone it cannot tell an even $L$ from the odd one after it.
#
# That is all that is needed. The kernel of S4:


# %%
def kernel_dplr(Lambda, P, Q, B, C_tilde, step, L):
    """K_hat(e^{-i theta_j}) = step e^{i theta_j/2} [k(C~, B)
         - step c k(C~, P) k(Q*, B) / (1 + step c k(Q*, P))],
    each k(a, b) over the full state; K is its inverse FFT.
    Lambda, P, Q, B, C_tilde: (..., N/2), step: (...)  ->  K: (..., L)"""
    step = jnp.asarray(step)
    theta = 2 * jnp.pi * jnp.arange(L // 2 + 1) / L
    kappa = lambda a, b: pair_sum(a * b, Lambda, step, theta)
    step_c = step[..., None] * jnp.cos(theta / 2)  # (..., L//2 + 1)
    around = step_c * kappa(C_tilde, P) * kappa(Q.conj(), B)
    low_rank = around / (1 + step_c * kappa(Q.conj(), P))
    turn = step[..., None] * jnp.exp(0.5j * theta)
    K_hat = turn * (kappa(C_tilde, B) - low_rank)
    return jnp.fft.irfft(K_hat, n=L)


# %% [markdown]
# ### The check
#
# The oracle takes the other road: it writes the whole matrix down, discretises it with dense solves, and runs the recurrence step by step in float64. It takes $C$, so we convert: $\tilde C = C(I - \bar A^L)$ over the full state, of which the first half is kept.
#
# The systems are random and complex, once with $Q = P$ (*tied*), once with $Q$ drawn for itself (*untied*). They must be stable, or the recurrence explodes: all $\lambda_n$ are shifted to the left until the real part of every eigenvalue of $A$ is at most $-0.05$.


# %%
def system(N, seed, tied=False, real=False):
    """Lambda, P, Q, B, C, one of each pair: (N/2,) each. Stable."""
    rng = np.random.default_rng(seed)
    imaginary = 0j if real else 1j
    part = lambda: rng.normal(size=N // 2)
    vector = lambda: part() + imaginary * part()
    Lambda = -0.1 - np.abs(part()) + 3j * part()
    P = vector() / np.sqrt(N)
    Q = P if tied else vector() / np.sqrt(N)
    spectrum_of_A = np.linalg.eigvals(dense(full(Lambda), full(P), full(Q)))
    shift = max(0, spectrum_of_A.real.max() + 0.05)
    return Lambda - shift, P, Q, vector(), vector()


def tilde(Lambda, P, Q, B, C, step, L):
    """C (I - Ab^L) over the full state, its first half.  ->  (N/2,)"""
    Ab, _ = bilinear(dense(*map(full, (Lambda, P, Q))), full(B), step)
    return (full(C) - full(C) @ np.linalg.matrix_power(Ab, L))[: len(C)]


def kernel_dense(Lambda, P, Q, B, C, step, L):
    """K_l = C x_l, x_l = Ab x_{l-1}, x_0 = Bb: step by step.  ->  (L,)"""
    Ab, x = bilinear(dense(*map(full, (Lambda, P, Q))), full(B), step)
    K = np.zeros(L, complex)
    for l in range(L):
        K[l] = full(C) @ x
        x = Ab @ x
    assert np.abs(K.imag).max() < 1e-12 * np.abs(K).max()
    return K.real


packaged = partial(dplr.kernel_dplr, method="dense")
textbook = partial(dplr.kernel_dplr, method="textbook")
functions = kernel_dplr, packaged, textbook
kernels = [jax.jit(f, static_argnames="L") for f in functions]
for L in (1, 2, 3, 16, 33, 256, 1023, 1024):
    step = (min(1 / L, 0.1) + 0.1) / 2
    for tied in (True, False):
        Lambda, P, Q, B, C = case = system(8, seed=L, tied=tied)
        wanted = kernel_dense(*case, step, L)
        C_tilde = tilde(*case, step, L)
        for kernel in kernels:
            K = kernel(Lambda, P, Q, B, C_tilde, jnp.asarray(step), L=L)
            assert K.shape == (L,)
            assert relative(K, wanted) < 1e-12
print("8 lengths, tied and untied, three functions: all below 1e-12")

# %% [markdown]
# `jax.jit` compiles each function, once for each $L$; `static_argnames` says that $L$ decides shapes and is no array. Our function, the package's `dplr.kernel_dplr` and its form of 2022, with the full state and the pole, agree with the recurrence.
#
# The leading axes are free. With features in front, parameters of shape $(H, N/2)$ and one step for each feature give $H$ kernels at once:

# %%
cases = [system(8, seed) for seed in (1, 2, 3)]
steps, L = np.array([0.01, 0.03, 0.1]), 33
wanted = np.stack([kernel_dense(*x, d, L) for x, d in zip(cases, steps)])
tildes = np.stack([tilde(*x, d, L) for x, d in zip(cases, steps)])
Lambda, P, Q, B, _ = (jnp.stack(part) for part in zip(*cases))
K = kernel_dplr(Lambda, P, Q, B, tildes, jnp.asarray(steps), L)
assert K.shape == (3, 33)
assert relative(K, wanted) < 1e-12

# %% [markdown]
# ````{admonition} Trap: halves that are multiplied
# :class: warning
#
# In the recurrence the output is twice the real part of the sum over half the modes, so it is tempting to do the same here. There are two ways, and both are wrong. Run the formula {eq}`dplr-kernel` with sums over half of the modes and take twice the real part of the *kernel*: that drops
# the coupling between the halves. Or take twice the real part of each *sum*: but the partner shares the denominator's $2is$, so a sum over the full state is complex. The right order: complete each of the four sums, then multiply. On the random system of the next cell the first is off by 12 % of the largest value, the second by 58 %, and the right order by nothing that shows in twelve digits.
# ````
#
# Why the first drops something is seen in the whole matrix, in blocks. With one of each pair in $\Lambda, P, Q$, and $Q^\top$ the transpose without a conjugate,
#
# $$\begin{aligned}
# A &= \begin{pmatrix} \Lambda & 0 \\ 0 & \bar\Lambda \end{pmatrix} - \begin{pmatrix} P \\ \bar P \end{pmatrix} \begin{pmatrix} Q^* & Q^\top \end{pmatrix} \\
# &= \begin{pmatrix} \Lambda - P Q^* & -P Q^\top \\ -\bar P Q^* & \bar\Lambda - \bar P Q^\top \end{pmatrix} .
# \end{aligned}$$ (dplr-blocks)
#
# For a diagonal system the blocks off the diagonal are zero and the halves do not see each other. The low-rank part couples them. Its conjugates: $Q^*$, and those of the partners.

# %%
L, step = 33, 0.1
Lambda, P, Q, B, C = case = system(8, seed=0)
blocks = np.block(
    [
        [dense(Lambda, P, Q), -np.outer(P, Q)],
        [-np.outer(P.conj(), Q.conj()), dense(Lambda, P, Q).conj()],
    ]
)
assert np.array_equal(blocks, dense(full(Lambda), full(P), full(Q)))

wanted, C_tilde = kernel_dense(*case, step, L), tilde(*case, step, L)
parameters = Lambda, P, Q, B, C_tilde
theta = 2 * np.pi * np.arange(L) / L
K_half = 2 * jnp.fft.ifft(spectrum(*parameters, step, theta)).real

s, c = np.sin(theta / 2), np.cos(theta / 2)
d = 2j * s[:, None] - step * c[:, None] * Lambda
twice_real = lambda a, b: 2 * (a * b / d).sum(-1).real
around = step * c * twice_real(C_tilde, P) * twice_real(Q.conj(), B)
loop = 1 + step * c * twice_real(Q.conj(), P)
K_hat = twice_real(C_tilde, B) - around / loop
K_real = np.fft.ifft(step * np.exp(0.5j * theta) * K_hat).real

K = kernel_dplr(*parameters, jnp.asarray(step), L)
assert relative(K, wanted) < 1e-12
off_half, off_real = relative(K_half, wanted), relative(K_real, wanted)
print(f"twice the real part of half the kernel: off by {off_half:.2f}")
print(f"twice the real part of each sum:        off by {off_real:.2f}")
assert abs(off_half - 0.12) < 0.005 and abs(off_real - 0.58) < 0.005

# %% [markdown]
# And `irfft` without its `n`:

# %%
K_hat = spectrum(*map(full, parameters), step, theta[: L // 2 + 1])
forgotten = jnp.fft.irfft(K_hat)
print(f"L = {L}: irfft without n returns {len(forgotten)} numbers")
assert len(forgotten) == L - 1
assert relative(jnp.fft.irfft(K_hat, n=L), wanted) < 1e-12

# %% [markdown]
# ## What it costs
#
# The question of this chapter can be answered. Count products for one kernel, up to a small factor that all share:
#
# | way | products | $N = 64$, $L = 1024$ |
# |---|---|---|
# | powers of $\bar A$, one after the other | $L N^2$ | 4 194 304 |
# | a dense resolvent at each frequency | $L N^3$ | 268 435 456 |
# | diagonal: one sum | $L N$ | 65 536 |
# | diagonal plus rank one: four sums | $4 L N$ | 262 144 |
#
# All frequencies, full state, orders of magnitude: $N^3$ stands for $N^3/3$ complex products. Chapter 5 counted real ones: 358 million. The inverse FFT, about $L \log_2 L$ or ten thousand, is small beside each of them. Half of the frequencies halve the last two rows alike. So one more rank costs a factor of four. Against the powers we gain $N/4$, and the $L$ frequencies do not wait for each other.

# %%
N, L = 64, 1024
counts = L * N**2, L * N**3, L * N, 4 * L * N
print(*(f"{count:,}" for count in counts), sep=", ")
print(f"and {L * np.log2(L):,.0f} for the FFT")
assert counts == (4_194_304, 268_435_456, 65_536, 262_144)
assert round(4 * L * N**3 / 3 / 1e6) == 358  # as chapter 5 counts

# %% [markdown]
# The clock agrees in kind. (It counts divisions, memory and this machine too, so expect no exact factor of four: the divisions, which are the same for all four sums, can be shared.)


# %% tags=["nbval-ignore-output"]
def fastest(function, *arguments):
    """Milliseconds of the fastest of five calls, one to compile before."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(1e3 * (time.perf_counter() - start))
    return min(times[1:])


case = system(N, seed=5)
C_tilde = tilde(*case, 0.05, L)
whole = [jnp.asarray(full(x)) for x in (*case[:4], C_tilde)]
theta = 2 * jnp.pi * jnp.arange(L) / L


def resolvents(Lambda, P, Q, B, C_tilde):
    """The resolvent form with a dense solve at each root."""
    A = jnp.diag(Lambda) - jnp.outer(P, Q.conj())
    Ab, Bb = ssm.discretize(A, B, 0.05)
    z = jnp.exp(-1j * theta)
    return generating.generating_function(Ab, Bb, C_tilde, z)


def diagonal_only(Lambda, P, Q, B, C_tilde):
    """The first of the four sums."""
    s, c = jnp.sin(theta / 2), jnp.cos(theta / 2)
    d = 2j * s[:, None] - 0.05 * c[:, None] * Lambda
    return 0.05 * jnp.exp(0.5j * theta) * (C_tilde * B / d).sum(-1)


four_sums = jax.jit(lambda *p: spectrum(*p, 0.05, theta))
milliseconds = {
    "dense": fastest(jax.jit(resolvents), *whole),
    "four sums": fastest(four_sums, *whole),
    "one sum": fastest(jax.jit(diagonal_only), *whole),
}
for name, value in milliseconds.items():
    print(f"{name:10} {value:7.2f} ms")
assert milliseconds["dense"] > 4 * milliseconds["four sums"]
assert milliseconds["four sums"] < 20 * milliseconds["one sum"]
assert relative(resolvents(*whole), np.asarray(four_sums(*whole))) < 1e-10

# %% [markdown]
# ## Where a conjugate hides
#
# A wrong conjugate in this formula can live for years in code that is tested. Whether a test sees it depends on the data of the test. Make the mistakes on purpose, one at a time, and look at the error with three kinds of data: real $P = Q$, $B$ and $C$; complex and tied; complex and untied. To drop the conjugate on $Q$ is the
# same as to hand in $\bar Q$, so the correct function serves for all the mistakes.
#
# A guess first. A conjugate on a real vector changes nothing, so with real data most mistakes should be invisible. To swap $P$ and $Q$ changes nothing where they are the same. So only the last column should catch all.

# %%
mistakes = {
    "none": lambda Lam, P, Q, B, C: (Lam, P, Q, B, C),
    "no conjugate on Q": lambda Lam, P, Q, B, C: (Lam, P, Q.conj(), B, C),
    "a conjugate on P": lambda Lam, P, Q, B, C: (Lam, P.conj(), Q, B, C),
    "P and Q swapped": lambda Lam, P, Q, B, C: (Lam, Q, P, B, C),
    "a conjugate on B": lambda Lam, P, Q, B, C: (Lam, P, Q, B.conj(), C),
    "a conjugate on C~": lambda Lam, P, Q, B, C: (Lam, P, Q, B, C.conj()),
    "Lambda + P Q*": lambda Lam, P, Q, B, C: (Lam, -P, Q, B, C),
    "all five conjugated": lambda *every: tuple(x.conj() for x in every),
}
kinds = {
    "real": {"tied": True, "real": True},
    "tied": {"tied": True},
    "untied": {},
}
L, step = 33, jnp.asarray(0.1)
compiled = jax.jit(kernel_dplr, static_argnames="L")
errors = {}
print(f"{'mistake':20}" + "".join(f"{kind:>8}" for kind in kinds))
for name, mistake in mistakes.items():
    for kind, options in kinds.items():
        case = system(8, seed=4, **options)
        C_tilde = tilde(*case, 0.1, L)
        K = compiled(*mistake(*case[:4], C_tilde), step, L=L)
        errors[name, kind] = relative(K, kernel_dense(*case, 0.1, L))
    row = [errors[name, kind] for kind in kinds]
    row = ["0" if error < 1e-12 else f"{error:.2f}" for error in row]
    print(f"{name:20}" + "".join(f"{entry:>8}" for entry in row))

assert abs(errors["no conjugate on Q", "tied"] - 0.08) < 0.005
assert abs(errors["no conjugate on Q", "untied"] - 0.14) < 0.005
assert abs(errors["a conjugate on C~", "real"] - 0.01) < 0.005
seen = {key for key, error in errors.items() if error > 1e-3}
assert all(errors[key] < 1e-12 for key in errors if key not in seen)
for name in list(mistakes)[1:-1]:
    assert (name, "untied") in seen
for name in list(mistakes)[1:5]:
    assert (name, "real") not in seen
assert ("P and Q swapped", "tied") not in seen
assert not any(name in ("none", "all five conjugated") for name, _ in seen)

# %% [markdown]
# As guessed. With real $P = Q$ and $B$ four of the mistakes have error zero. A fifth, the conjugate on $\tilde C$, is off by one per cent, which a loose tolerance lets pass. ($C$ is real there, $\tilde C$ is not.) HiPPO is such a case: its $P$ can be chosen real, and the package's is (an exercise shows why that is always possible for a tied system). A test on HiPPO alone does not see the conjugate on $Q$. The last row is no mistake. To conjugate all five is to keep the other member of each pair, and that is the same system.
#
# ````{admonition} Trap: a test that cannot fail
# :class: warning
#
# Test with $P \ne Q$, both complex, and $C$ with an imaginary part. With tied real data a missing conjugate on $Q$ has an error of zero to the last digit; with complex data it is 8 % of the largest value (tied) and 14 % (untied). A test is worth as much as the mistakes that make it fail.
# ````
#
# ## Signs, conjugates, and the paper
#
# Printed accounts of this algebra contain slips. Most do no harm to a reader who knows the derivation, and cost a day to one who does not.
#
# ````{admonition} Trap: signs and conjugates that are printed wrong
# :class: warning
#
# Each line changes one thing. The number is the error of the kernel over its largest value, on the random untied system of the trap about halves that are multiplied, with $L = 33$. As derived, it is below $10^{-12}$.
#
# | slip | instead of | off by |
# |---|---|---|
# | $z_j = e^{-2\pi j/L}$ | $z_j = e^{-2\pi i j/L}$: the $i$ is missing | 0.82 |
# | $z_j = e^{+2\pi i j/L}$ with an inverse FFT | $z_j = e^{-2\pi i j/L}$ | 1.02 |
# | $(I - \bar A)^{-1}$ | $(I - z \bar A)^{-1}$: the spectrum becomes one constant, the kernel one spike | 4.01 |
# | $C$ | $\tilde C = C(I - \bar A^L)$: what comes after $L$ folds back | 0.47 |
# | a conjugate on $\tilde C$ | none: a row is a row | 2.41 |
# | $R + R P (1 + Q^* R P)^{-1} Q^* R$ | minus outside | 0.35 |
# | $R - R P (1 - Q^* R P)^{-1} Q^* R$ | plus inside | 0.14 |
# | $1 + Q^* R^{-1} P$, so $\omega - \Lambda$ for its inverse | $1 + Q^* R P$ | 0.49 |
# ````

# %%
L, step = 33, 0.1
Lambda, P, Q, B, C = case = system(8, seed=0)
wanted, C_tilde = kernel_dense(*case, step, L), tilde(*case, step, L)
Lambda, P, Q, B, C, C_tilde = map(full, (Lambda, P, Q, B, C, C_tilde))
Ab, Bb = bilinear(dense(Lambda, P, Q), B, step)
j, identity = np.arange(L), np.eye(8)
z = np.exp(-2j * np.pi * j / L)
R = 1 / ((2 / step * (1 - z) / (1 + z))[:, None] - Lambda)
between = lambda row, column: (row * R * column).sum(-1)


def as_printed(row=C_tilde, outside=-1, inside=1, middle=R):
    """The kernel from the usual form, with one thing changed."""
    w = 1 + inside * (Q.conj() * middle * P).sum(-1)
    low_rank = outside * between(row, P) * between(Q.conj(), B) / w
    return np.fft.ifft(2 / (1 + z) * (between(row, B) + low_rank)).real


at = partial(spectrum_dense, Lambda, P, Q, B, C_tilde, step)
constant = C_tilde @ np.linalg.solve(identity - Ab, Bb) * np.ones(L)
turned_round = np.fft.ifft(at(1 / z)).real
slips = {
    "as derived": as_printed(),
    "roots without the i": np.fft.ifft(at(np.exp(-2 * np.pi * j / L))).real,
    "roots with a plus": turned_round,
    "z missing": np.fft.ifft(constant).real,
    "C for C~": as_printed(row=C),
    "conjugate on C~": as_printed(row=C_tilde.conj()),
    "plus outside": as_printed(outside=1),
    "minus inside": as_printed(inside=-1),
    "R^-1 inside": as_printed(middle=1 / R),
}
sizes = {name: relative(K, wanted) for name, K in slips.items()}
for name, size in sizes.items():
    print(f"{name:20}", "0" if size < 1e-12 else f"{size:.2f}")
assert sizes.pop("as derived") < 1e-12
assert relative(turned_round, wanted[-j % L]) < 1e-12
box = [0.82, 1.02, 4.01, 0.47, 2.41, 0.35, 0.14, 0.49]
np.testing.assert_allclose(list(sizes.values()), box, rtol=0, atol=0.005)

# %% [markdown]
# Line 4 of algorithm 1 in the S4 paper, which calls itself a sketch, has the roots with a plus. Its lemma C.2 has them with a minus, as here. With the plus, the FFT's inverse returns the kernel turned round in time, $K_0, K_{L-1}, \dots, K_1$, because $\hat K(\bar z)$ is the conjugate of $\hat K(z)$. The cell asserts it.
#
# The rest is a matter of convention, and can be translated line by line. The paper's appendix C.3 writes the output as $C^* x$ with a column $C$; ours is a row without a conjugate, so our $C$ is the paper's $C^*$, and our $\tilde C = C(I - \bar A^L)$ is its $\tilde C^*$. In algorithm 1 the letter $\omega$ is our $z$.
#
# | step | here | in the S4 paper, appendix C.3 where not said otherwise |
# |---|---|---|
# | truncated generating function, $\tilde C$ | chapter 5, {eq}`dplr-generating` | definition 2; algorithm 1, line 1 |
# | roots of unity, back by the inverse FFT | chapter 5 | lemma C.2; lines 4 and 5 |
# | $2/(1+z)$ and the resolvent | chapters 5 and 6, {eq}`dplr-resolvent` | lemma C.4 |
# | Cauchy kernel: sums of $1/(\omega - \lambda_n)$ | chapter 6, {eq}`dplr-four` | definition 3, corollary C.5; line 2 |
# | Woodbury's identity | {eq}`dplr-woodbury` | proposition 4, for any rank |
# | four sums, one denominator | {eq}`dplr-usual` | lemma C.3; line 3 |
# | half angle, no pole at $z = -1$ | chapter 6, {eq}`dplr-kernel` | not there |
# | the cost | the table above: $4LN$ | theorem 3, section 3: four Cauchy products, $\tilde O(N + L)$ operations with fast algorithms |
#
# The $\tilde O(N+L)$ of theorem 3 belongs to fast Cauchy algorithms. Proposition 5 of the paper lists the plain sum too, which we use, with its $O(LN)$.
#
# ## The gradient
#
# Training needs derivatives of $K$ with respect to everything but $L$. At $z = -1$ the usual form is an infinite factor times sums that are zero, and one number that is not a number (NaN) spoils the whole kernel. In code one rarely sees it, since $e^{-i\pi}$ is rounded and misses $-1$ by about $10^{-16}$. Set it exactly, and look at both forms at an even $L$.
#
# `jax.grad` returns the derivative of a function that returns one number. For a complex argument the convention is that a small change $dx$ changes the function by $\operatorname{Re} \sum_n G_n\, dx_n$, where $G$ is what `jax.grad` returns ([the primer](00_primer.ipynb) has a section on it). We test it with small steps in a random direction.

# %%
L, step = 16, jnp.asarray(0.1)
Lambda, P, Q, B, C = case = system(8, seed=7)
parameters = [jnp.asarray(x) for x in (*case[:4], tilde(*case, 0.1, L))]
weights = np.random.default_rng(1).normal(size=L)
exact_roots = jnp.exp(-2j * jnp.pi * jnp.arange(L) / L).at[L // 2].set(-1)
whole = lambda x: jnp.concatenate([x, x.conj()])


def loss(parameters):
    """Some number made of the kernel."""
    return (weights * kernel_dplr(*parameters, step, L)).sum()


def loss_usual(parameters):
    """The same from the usual form, full state, exact roots."""
    K_hat = spectrum_usual(*map(whole, parameters), step, exact_roots)
    return (weights * jnp.fft.ifft(K_hat).real).sum()


gradient = jax.jit(jax.grad(loss))(parameters)
assert all(np.isfinite(G).all() for G in gradient)
gradient_usual = jax.jit(jax.grad(loss_usual))(parameters)
assert all(np.isnan(G).all() for G in gradient_usual)
assert 0 < abs(np.exp(-1j * np.pi) + 1) < 1e-15

change = [draw(4) for _ in parameters]
move = lambda t: [x + t * dx for x, dx in zip(parameters, change)]
moved = jax.jit(lambda t: loss(move(t)))
difference = (moved(1e-6) - moved(-1e-6)) / 2e-6
predicted = sum((G * dx).sum().real for G, dx in zip(gradient, change))
assert abs(predicted - difference) < 1e-6 * abs(difference)
print("half-angle form: finite, and right; usual form, exact roots: NaN")

# %% [markdown]
# ## Is it stable?
#
# We asked for eigenvalues of $A$ with negative real parts. For a diagonal $A$ they are the $\lambda_n$. Once $P Q^*$ is subtracted, they are in general somewhere else: at the zeros of $1 + Q^* R P$. Where do they go?
#
# If the system is tied, $Q = P$, the answer is short. Take an eigenvector $v$ of length 1, $A v = \lambda v$ (here $v^* v = 1$; the star is the conjugate transpose throughout). Then $v^* A v = \lambda$ and $v^* A^* v = \bar\lambda$. Add the two, and divide by 2:
#
# $$ \operatorname{Re} \lambda = \tfrac12\, v^* (A + A^*)\, v, \qquad A + A^* = \Lambda - P P^* + \bar\Lambda - P P^* = 2 \operatorname{Re} \Lambda - 2 P P^* , $$
#
# $$ \operatorname{Re} \lambda = \sum_n \operatorname{Re}(\lambda_n)\, \lvert v_n \rvert^2 - \lvert P^* v \rvert^2 . $$ (dplr-stable)
#
# The first term is an average of the $\operatorname{Re} \lambda_n$, with weights that add up to 1. The second only takes away. So if every $\operatorname{Re} \lambda_n < 0$, every $\operatorname{Re} \lambda < 0$: **a tied system is stable, whatever $P$ is.**
#
# With a free $Q$, $A + A^* = 2 \operatorname{Re}\Lambda - P Q^* - Q P^*$, and the last two terms can have either sign. Draw 300 systems of each kind, with $\operatorname{Re} \lambda_n = -\frac12$ as HiPPO's $\Lambda$ will have it in chapter 8 (its $A$ has the eigenvalues $-1, \dots, -N$), and count:

# %%
rng = np.random.default_rng(2)
unstable = {"tied": 0, "untied": 0}
for _ in range(300):
    Lambda, P, Q = -0.5 + 3j * rng.normal(size=8), draw(8), draw(8)
    for kind, other in (("tied", P), ("untied", Q)):
        A = dense(full(Lambda), full(P), full(other))
        values, vectors = np.linalg.eig(A)
        unstable[kind] += bool(values.real.max() > 0)
        if kind == "tied":
            weights = np.abs(vectors) ** 2  # columns of length 1
            average = full(Lambda).real @ weights
            taken = np.abs(full(P).conj() @ vectors) ** 2
            assert np.abs(values.real - average + taken).max() < 1e-10
print(unstable)
assert unstable["tied"] == 0 and unstable["untied"] > 150

# %% [markdown]
# No tied system is unstable, and most of the untied ones are. To see it happen, turn the low-rank part up slowly: follow the eigenvalues of $\Lambda - \alpha P Q^*$ while $\alpha$ goes from 0 to 1.

# %%
rng = np.random.default_rng(11)
Lambda, P, Q = -0.5 + 1j * np.array([1.0, 2.5, 4.0, 6.0]), draw(4), draw(4)
figure, panels = plt.subplots(1, 2, figsize=(7.4, 3.4), sharey=True)
ends = {}
second = {"tied, $Q = P$": P, "untied": Q}
for panel, (name, other) in zip(panels, second.items(), strict=True):
    along = lambda alpha: np.linalg.eigvals(
        dense(full(Lambda), alpha * full(P), full(other))
    )
    way = np.concatenate([along(alpha) for alpha in np.linspace(0, 1, 241)])
    ends[name] = along(1.0)
    panel.axvspan(0, 99, color="0.88", zorder=0)
    panel.plot(way.real, way.imag, ".", markersize=1.5, color="0.45")
    for marker, values in (("x", full(Lambda)), ("o", ends[name])):
        label = rf"$\alpha = {'x o'.index(marker) // 2}$"
        panel.plot(values.real, values.imag, marker, label=label)
    panel.text(3, 5.2, "unstable", ha="center")
    panel.set(xlabel=f"real part ({name})", xlim=(-9, 6))
panels[0].set_ylabel("imaginary part")
panels[0].legend(loc="lower left")
tied, untied = ends.values()
assert tied.real.max() < 0 and abs(untied.real.max() - 4) < 0.2
plotting.show(
    figure,
    "Eigenvalues in the complex plane, twice, with the half plane of positive real parts shaded and marked unstable. Both start from the same four conjugate pairs at real part minus one half, drawn as crosses. "
    "Left, tied: all paths bend to the left or stay; one pair meets on the real axis and parts there, and all circles at the end lie left of the shaded half. "
    "Right, untied: some go left, but one pair bends to the right, meets on the real axis inside the shaded half, and one of the two ends far inside it, near plus four.",
)

# %% [markdown]
# The endless $\hat K_\infty$ has its poles at these eigenvalues, mapped to the $z$-plane as in chapter 6; if one crosses the circle, the kernel grows. This is why an S4 layer keeps $Q = P$ and the real parts negative, whatever it learns. The free $Q$ has served the derivation, and the tests.
#
# ## What we have, and what is missing
#
# We have the kernel of S4 as a function of a dozen lines. A matrix that is diagonal up to one rank costs four sums where a diagonal one costs one. It has no pole, finite gradients, agrees with the recurrence to $10^{-12}$ at every length that we tried, and we know which mistakes our tests would see.
#
# What is missing is the matrix. HiPPO, as chapter 3 left it, is lower triangular. It does not look like a diagonal plus a column times a row, and the natural attempt to diagonalise it fails in floating point, badly. [Chapter 8](08_nplr.ipynb) shows how it fails, and finds $\Lambda$ and $P$ another way. Also missing is the way back to a
# recurrence: $\tilde C$ has to become $C$ again, and $\bar A$ should be applied without a dense matrix. Woodbury's identity will do that too, in [chapter 9](09_recurrence.ipynb).
#
# ## Exercises

# %% [markdown]
# ````{exercise} Rank two
# :label: dplr-rank-two
#
# Let $P$ and $Q$ be matrices with two columns, $A = \Lambda - P Q^*$. Repeat the derivation of the resolvent. What is $\eta$ now, and what has to be divided by? How many sums does the kernel need? Check it on random numbers.
# ````

# %% [markdown]
# ````{solution-start} dplr-rank-two
# :class: dropdown
# ````
# Every line stays as it is. $\eta = Q^* v$ is now a column of two numbers, and $\eta = Q^* R\,b - (Q^* R P)\,\eta$ is a system of two equations: $(I_2 + Q^* R P)\,\eta = Q^* R\,b$, with $I_2$ the identity of size two. So
#
# $$ (\omega - A)^{-1} = R - R P\, (I_2 + Q^* R P)^{-1}\, Q^* R . $$
#
# The kernel needs $\tilde C R B$ (one sum), $\tilde C R P$ (two), $Q^* R B$ (two) and $Q^* R P$ (four): nine, or for any rank the square of one more than it, and a solve of the size of the rank at each frequency. The only conjugate is that in $Q^*$.

# %%
N = 4
Lambda, P, Q = draw(N), draw(N, 2), draw(N, 2)
omega = 0.7j
R, Q_star = np.diag(1 / (omega - Lambda)), Q.conj().T
middle = np.linalg.inv(np.eye(2) + Q_star @ R @ P)
resolvent = np.linalg.inv(omega * np.eye(N) - np.diag(Lambda) + P @ Q_star)
assert np.abs(R - R @ P @ middle @ Q_star @ R - resolvent).max() < 1e-12

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Eigenvalues from one equation
# :label: dplr-poles
#
# Use the determinant lemma to find the eigenvalues of the small matrix {eq}`dplr-hand`, $\Lambda = (-1, -2)$, $P = (1, 1)$, $Q = (1, 2i)$, with a quadratic equation. Then show for any $N$ that the eigenvalues of $\Lambda - P Q^*$ have the sum $\sum_n \lambda_n - Q^* P$.
# ````

# %% [markdown]
# ````{solution-start} dplr-poles
# :class: dropdown
# ````
# $w = 1 + \frac{1}{\omega + 1} - \frac{2i}{\omega + 2}$. Times $(\omega+1)(\omega+2)$:
#
# $$\begin{aligned}
# (\omega+1)(\omega+2) + (\omega + 2) - 2i(\omega+1) &= 0 \\
# \omega^2 + (4 - 2i)\,\omega + (4 - 2i) &= 0 .
# \end{aligned}$$
#
# With $h = 2 - i$ the roots are $-h \pm \sqrt{h^2 - 2h}$, and $h^2 - 2h = 3 - 4i - 4 + 2i = -1 - 2i$. The sum of the eigenvalues is the trace: $\sum_n (\lambda_n - P_n \overline{Q_n})$, and $\sum_n \overline{Q_n} P_n = Q^* P$. Here it is $-3 - (1 - 2i) = -4 + 2i$, as the quadratic equation says.

# %%
Lambda, P, Q = hand
h = 2 - 1j
roots = np.array([-h + np.sqrt(-1 - 2j), -h - np.sqrt(-1 - 2j)])
found = np.linalg.eigvals(dense(Lambda, P, Q))
assert max(np.abs(found - root).min() for root in roots) < 1e-14
assert abs(roots.sum() - (-4 + 2j)) < 1e-14
Lambda, P, Q = draw(5), draw(5), draw(5)
total = np.linalg.eigvals(dense(Lambda, P, Q)).sum()
assert abs(total - (Lambda.sum() - np.vdot(Q, P))) < 1e-12
print("eigenvalues:", ", ".join(f"{root:.2f}" for root in roots))

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} A place from which one cannot leave
# :label: dplr-zero
#
# A layer has $Q = P$, learns $P$, and starts at $P = 0$, where it is diagonal. With $\tilde C$ given, what is the derivative of the kernel with respect to $P$ there? What if $Q$ is free and not zero?
# ````

# %% [markdown]
# ````{solution-start} dplr-zero
# :class: dropdown
# ````
# $P$ enters through the second term alone. Tied, this term is $\Delta c\,\kappa(\tilde C, P)\,\kappa(P^*, B)$ over $1 + \Delta c\,\kappa(P^*, P)$: with $P = t\,p$ its top has the factor $t^2$, so its derivative at $t = 0$ is 0. Gradient descent never moves $P$ from zero. Start anywhere else. Untied, the top has the factor $t$ and
# the derivative is $-\Delta^2 e^{i\theta/2} c\,\kappa(\tilde C, p)\,\kappa(Q^*, B)$ at each frequency, which in general is not zero (except at $\theta = \pi$).

# %%
L, step = 16, jnp.asarray(0.1)
Lambda, _, Q, B, C_tilde = (jnp.asarray(x) for x in system(8, seed=9))
weights = np.random.default_rng(3).normal(size=L)


def tied_loss(P):
    """A number made of the kernel with Q = P."""
    return (weights * kernel_dplr(Lambda, P, P, B, C_tilde, step, L)).sum()


def untied_loss(P):
    """A number made of the kernel with a Q of its own."""
    return (weights * kernel_dplr(Lambda, P, Q, B, C_tilde, step, L)).sum()


nothing = jnp.zeros_like(Q)
tied, untied = jax.jit(jax.grad(tied_loss)), jax.jit(jax.grad(untied_loss))
assert np.abs(tied(nothing)).max() == 0
assert np.abs(tied(Q)).max() > 1e-3
assert np.abs(untied(nothing)).max() > 1e-3

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} The same system in other numbers
# :label: dplr-phases
#
# Show that these changes leave the kernel as it is, and check them: (a) $P \to a P$, $Q \to Q/\bar a$ for a complex number $a \ne 0$, over the full state; (b) $P_n \to f_n P_n$, $Q_n \to f_n Q_n$, $B_n \to f_n B_n$, $\tilde C_n \to \tilde C_n / f_n$ with numbers $f_n$ of size 1. Why can a tied system always be brought to real $P = Q$?
# And which mistake does that hide?
# ````

# %% [markdown]
# ````{solution-start} dplr-phases
# :class: dropdown
# ````
# (a) $a P\,(Q/\bar a)^* = a P\, Q^* / a = P Q^*$: conjugating $\bar a$ gives $a$. Without the bar it would be $a/\bar a$, which is 1 for real $a$ only. (b) $F = \operatorname{diag}(f_n)$ has $F^* = F^{-1}$, since $\overline{f_n} f_n = 1$. A change of coordinates with $F$ takes $\Lambda - P Q^*$ to
# $F \Lambda F^{-1} - F P\, Q^* F^{-1} = \Lambda - (F P)(F Q)^*$, $B$ to $F B$, and the row $\tilde C$ to $\tilde C F^{-1}$; a kernel does not depend on coordinates. Directly: in each of the four sums the $f_n$ cancel, as $\tilde C_n B_n$, $\tilde C_n P_n$, $\overline{Q_n} B_n$ and $\overline{Q_n} P_n$ keep their values.
#
# Tied, choose $f_n = \overline{P_n} / \lvert P_n \rvert$ (and 1 where $P_n = 0$). Then $f_n P_n = \lvert P_n \rvert$ is real. In these coordinates the conjugate on $Q$ can be forgotten without any effect. The same system, turned by other phases, shows it.

# %%
L, step = 33, jnp.asarray(0.1)
case = system(8, seed=6, tied=True)
Lambda, P, Q, B, _ = (jnp.asarray(x) for x in case)
C_tilde = jnp.asarray(tilde(*case, 0.1, L))
K = compiled(Lambda, P, Q, B, C_tilde, step, L=L)

a = 0.3 + 2j
every = list(map(whole, (Lambda, P, Q, B, C_tilde)))
before = spectrum(*every, 0.1, angles)
every[1], every[2] = a * every[1], every[2] / np.conj(a)
assert relative(spectrum(*every, 0.1, angles), before) < 1e-12

f = P.conj() / jnp.abs(P)
turned = Lambda, f * P, f * Q, f * B, C_tilde / f
assert relative(compiled(*turned, step, L=L), K) < 1e-12
assert np.abs(turned[1].imag).max() < 1e-15

forget = mistakes["no conjugate on Q"]
before = relative(compiled(*forget(Lambda, P, Q, B, C_tilde), step, L=L), K)
after = relative(compiled(*forget(*turned), step, L=L), K)
print(f"conjugate on Q forgotten: off by {before:.2f}, after turning by 0")
assert before > 0.01 and after < 1e-12

# %% [markdown]
# ````{solution-end}
# ````
