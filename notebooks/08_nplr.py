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
# # HiPPO is normal plus low rank
#
# **HiPPO has $N$ different eigenvalues. Why not diagonalise it and be done?**
#
# [Chapter 7](07_dplr.ipynb) found a fast kernel for matrices of the form $A = \Lambda - P Q^*$, a diagonal minus a column times a row. The matrix that we
# want to run is HiPPO, [chapter 3](03_hippo.ipynb). It is full below its diagonal:
# $A_{nm} = -\sqrt{(2n+1)(2m+1)}$ for $n > m$, $-(n+1)$ for $n = m$ and $0$ for $n < m$; the input column is $B_n = \sqrt{2n+1}$. This chapter brings the two together, and begins with the road that
# one would take first, to see where it ends.

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
from math import comb, log10, sqrt

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from numpy.polynomial import legendre

from annotated_s4 import dplr, generating, hippo, plotting, ssm

plotting.use_style()


def legs(N):
    """A (N, N) and B (N,) of HiPPO-LegS, chapter 3, as NumPy arrays."""
    return tuple(map(np.asarray, hippo.hippo_legs(N)))


# %% [markdown]
# ## The same system in other coordinates
#
# The state is hidden. Nobody outside sees $x$, only $u$ and $y$. So we may describe the state by other numbers, as long as the old ones can be
# recovered. Let $E$ be any invertible matrix and write
#
# $$ x = E\, x_E, \qquad x_E = E^{-1} x . $$
#
# A subscript that is a matrix says in which coordinates something is written: $x_E$ is the same state as $x$, in the coordinates that the columns of $E$ give. ($E$ is a
# letter of this chapter, and it may be complex.) Put $x = E\,x_E$ into $x' = Ax + Bu$ and $y = Cx$. The matrix $E$ does not depend on time, so
#
# $$ \begin{aligned}
# E\, x_E' &= A E\, x_E + B u, \\
# y &= C E\, x_E .
# \end{aligned} $$
#
# Multiply the first line from the left by $E^{-1}$:
#
# $$ \begin{aligned}
# x_E' &= A_E\, x_E + B_E\, u, \qquad y = C_E\, x_E, \\
# A_E &= E^{-1} A E, \quad B_E = E^{-1} B, \quad C_E = C E .
# \end{aligned} $$ (nplr-coordinates)
#
# No conjugate occurs here. And $C$ goes the other way than $B$: what $E^{-1}$ does on the way in, $E$ undoes on the way out.
#
# Is the kernel the same? Between two of the middle factors an $E$ meets an $E^{-1}$:
#
# $$ A_E^2 = E^{-1} A\, E\, E^{-1} A\, E = E^{-1} A^2 E, $$
#
# and the same for every power, so $A_E^l = E^{-1} A^l E$. The bilinear step is $\bar A = (I - \frac\Delta2 A)^{-1}(I + \frac\Delta2 A)$. Since $I = E^{-1} I E$, the matrix
# $I \pm \frac\Delta2 A_E$ is $E^{-1} (I \pm \frac\Delta2 A)\, E$. The inverse of a product is the product of the inverses in reverse order, so
#
# $$ \begin{aligned}
# \bar A_E &= \big( E^{-1} (I - \tfrac\Delta2 A) E \big)^{-1}\, E^{-1} (I + \tfrac\Delta2 A) E \\
# &= E^{-1} (I - \tfrac\Delta2 A)^{-1} E\, E^{-1} (I + \tfrac\Delta2 A) E \\
# &= E^{-1} \bar A\, E ,
# \end{aligned} $$
#
# and in the same way $\bar B_E = E^{-1} \bar B$. Put together,
#
# $$ C_E\, \bar A_E^l\, \bar B_E = C E\; E^{-1} \bar A^l E\; E^{-1} \bar B = C \bar A^l \bar B = K_l . $$ (nplr-same-kernel)
#
# The kernel does not know which coordinates were used.


# %%
def change_coordinates(A, B, C, E):
    """A_E = E^-1 A E,  B_E = E^-1 B,  C_E = C E.
    A, E: (N, N), B: (N,) a column, C: (N,) a row
    """
    return np.linalg.solve(E, A @ E), np.linalg.solve(E, B), C @ E


def by_powers(A, B, C, step, L):
    """K_l = C Ab^l Bb, one power after the other, as in chapter 2.
    ->  K (L,), in NumPy's float64 or complex128
    """
    left = np.eye(len(B)) - step / 2 * A
    Ab = np.linalg.solve(left, np.eye(len(B)) + step / 2 * A)
    x, K = np.linalg.solve(left, step * B), []
    for _ in range(L):
        K.append(C @ x)
        x = Ab @ x
    return np.array(K)


def largest_error(K, reference):
    """max |K - reference| / max |reference|."""
    return np.abs(K - reference).max() / np.abs(reference).max()


rng = np.random.default_rng(0)
A, B = legs(4)
C = rng.normal(size=4)
E = rng.normal(size=(4, 4)) + 1j * rng.normal(size=(4, 4))
K = by_powers(A, B, C, 0.1, 64)
K_E = by_powers(*change_coordinates(A, B, C, E), 0.1, 64)
assert largest_error(K_E, K) < 1e-12
print("a random complex E: the same kernel, to 1e-12 of its largest value")

# %% [markdown]
# ## The coordinates that everybody would try first
#
# If the columns of $E$ are eigenvectors of $A$, then $AE = E \Lambda$ with the eigenvalues on the diagonal $\Lambda$, so $A_E = E^{-1} E \Lambda = \Lambda$. A diagonal matrix
# is what [chapter 6](06_cauchy_kernel.ipynb) knows how to handle, without any low-rank part. HiPPO's eigenvalues are $-1, \dots, -N$. They are all
# different, so there are $N$ independent eigenvectors, and on paper we are done.
#
# Before giving the matrix to a library, work out what the answer is. Let $T$ be the diagonal matrix with the entries $T_{nn} = \sqrt{2n+1}$. Below the diagonal $A_{nm} = -T_{nn} T_{mm}$, so
# the scaled matrix $T^{-1} A\, T$ has the entries
#
# $$ \big( T^{-1} A\, T \big)_{nm} = \begin{cases} -T_{mm}^2 = -(2m+1) & n > m \\ -(n+1) & n = m \\ 0 & n < m . \end{cases} $$
#
# All square roots are gone; these are whole numbers. Let $v$ be an eigenvector of it for the eigenvalue $-(j+1)$. Row $n$ of $T^{-1}A\,T\,v = -(j+1)\,v$ says
#
# $$ -(n+1)\, v_n - \sum_{m<n} (2m+1)\, v_m = -(j+1)\, v_n, $$
#
# and with both $v_n$ on one side
#
# $$ (n - j)\, v_n = - \sum_{m<n} (2m+1)\, v_m . $$ (nplr-substitution)
#
# For $n < j$, from the top: the sum is empty or holds zeros, so $v_n = 0$. For $n = j$ it says $0 = 0$, and we choose $v_j = 1$. For $n > j$ each entry follows from those above.
# For $N = 3$, by hand: for $j = 0$ we get $1$, then $-1$, then $-\frac12(1 \cdot 1 + 3 \cdot (-1)) = 1$; for $j = 1$ we get $0, 1, -3$. As columns,
#
# $$ F = \begin{pmatrix} 1 & & \\ -1 & 1 & \\ 1 & -3 & 1 \end{pmatrix}, \qquad E = T F . $$
#
# Python's `Fraction` does this without rounding, for any $N$; and the inverse of the triangular $F$ too.


# %%
def exact_eigenvectors(N):
    """(n - j) F_nj = -sum_{m<n} (2m+1) F_mj,  F_jj = 1.
    ->  F, rows of fractions (N, N)
    """
    F = [[Fraction(int(n == j)) for j in range(N)] for n in range(N)]
    for j in range(N):
        for n in range(j + 1, N):
            total = sum((2 * m + 1) * F[m][j] for m in range(j, n))
            F[n][j] = -total / (n - j)
    return F


def exact_inverse(F):
    """F G = I for a lower triangular F with ones on its diagonal.
    (N, N)  ->  G (N, N)
    """
    N = len(F)
    G = [[Fraction(int(n == j)) for j in range(N)] for n in range(N)]
    for j in range(N):
        for n in range(j + 1, N):
            G[n][j] = -sum(F[n][m] * G[m][j] for m in range(j, n))
    return G


F = exact_eigenvectors(64)  # the first N rows and columns serve for any N
G = exact_inverse(F)
assert [[int(f) for f in row[:3]] for row in F[:3]] == [
    [1, 0, 0],
    [-1, 1, 0],
    [1, -3, 1],
]
for n in range(20):  # G F = I, the side that was not used to make G
    for j in range(20):
        assert sum(G[n][m] * F[m][j] for m in range(20)) == (n == j)
# the same eigenvectors as float64 finds, while it can:
A, _ = legs(6)
E = np.sqrt(2 * np.arange(6) + 1)[:, None] * np.array(F, float)[:6, :6]
np.testing.assert_allclose(A @ E, E * -np.arange(1, 7), rtol=0, atol=1e-11)
print("column 8 of F, rows 8 to 14:", *(int(F[n][8]) for n in range(8, 15)))

# %% [markdown]
# The entries alternate in sign and grow fast. They are binomials, $F_{nj} = (-1)^{n-j} \binom{n+j}{n-j}$; in row $3i$ and column $i$ stands
# $\pm\binom{4i}{2i}$, which is near $2^{4i}$, so that the S4 paper {cite:p}`gu2022s4` speaks of entries as large as $2^{4N/3}$.

# %%
for n in range(64):
    for j in range(n + 1):
        assert F[n][j] == (-1) ** (n - j) * comb(n + j, n - j)
for i in range(1, 22):
    assert 2 ** (4 * i) / (4 * i) < abs(F[3 * i][i]) < 2 ** (4 * i)

# %% [markdown]
# ## How many digits are lost
#
# Large entries alone do no harm. What matters is what happens on the way there and back. Write $|x|$ for the length of a vector and $|E|$ for the most by which
# $E$ stretches one: $|E| = \max |Ex| / |x|$. In the new coordinates we have $x_E = E^{-1} x$, with $|x_E| \le |E^{-1}|\,|x|$. The machine rounds it: it keeps
# $x_E + \delta$, where $|\delta| \le \varepsilon\, |x_E|$, and $\varepsilon = 2^{-53} \approx 10^{-16}$ in float64. Back in the old coordinates the error is
#
# $$ |E\,\delta| \le |E|\;\varepsilon\, |x_E| \le \varepsilon\; |E|\, |E^{-1}|\; |x| . $$ (nplr-condition)
#
# The factor $|E|\,|E^{-1}|$ is the **condition number** $\operatorname{cond}(E)$. It is what the relative error may grow by: with $\operatorname{cond}(E) = 10^6$ up to six of the sixteen digits
# are lost, with $10^{16}$ nothing need be left.
#
# We want it exactly, so that no rounding can deceive us. One thing is open: an eigenvector may be scaled by any number. Scale column $n$ by a factor, then row $n$ of the inverse
# is divided by it. So the product
#
# $$ \sigma_n = |\text{column } n \text{ of } E| \cdot |\text{row } n \text{ of } E^{-1}| $$
#
# does not change. It bounds $\operatorname{cond}(E)$ from below and from above.
#
# *From below, for every scaling.* $E$ stretches the $n$-th unit vector to column $n$, so $|E|$ is at least that long. A matrix and its transpose stretch
# equally far, so $|E^{-1}|$ is at least as long as its row $n$. Hence $\operatorname{cond}(E) \ge \sigma_n$ for every $n$: *no scaling helps*.
#
# *From above, with columns of length one.* No matrix stretches by more than the root of the sum of the squares of all its entries (Cauchy and Schwarz, row by row). For $E$ the sum
# is $N$, one for each column; for $E^{-1}$ it is $\sum_n \sigma_n^2$, as row $n$ is now $\sigma_n$ long. So
#
# $$ \max_n \sigma_n \;\le\; \operatorname{cond}(E) \;\le\; \sqrt{N \textstyle\sum_n \sigma_n^2} . $$ (nplr-bounds)
#
# With $E = T F$ the squares are fractions: $\sigma_n^2 = \sum_m (2m+1)\, F_{mn}^2 \cdot \sum_m G_{nm}^2 / (2m+1)$, where $G = F^{-1}$. Only the last root is rounded.
#
# For $N = 2$ the matrix $F$ is $\begin{pmatrix} 1 & \\ -1 & 1 \end{pmatrix}$ and $G$ is $\begin{pmatrix} 1 & \\ 1 & 1 \end{pmatrix}$. So $\sigma_0^2 = (1 + 3) \cdot 1 = 4$ and
# $\sigma_1^2 = 3 \cdot (1 + \frac13) = 4$: the condition number is between 2 and $\sqrt{2 \cdot 8} = 4$. For two numbers nothing is wrong.


# %%
def condition_bounds(N):
    """max_n sigma_n  and  sqrt(N sum_n sigma_n^2), from exact fractions.
    ->  two numbers around the condition number of HiPPO's eigenvectors
    """
    columns = [
        sum((2 * m + 1) * F[m][n] ** 2 for m in range(n, N))
        for n in range(N)
    ]
    rows = [
        sum(G[n][m] ** 2 / (2 * m + 1) for m in range(n + 1))
        for n in range(N)
    ]
    squares = [c * r for c, r in zip(columns, rows, strict=True)]
    return sqrt(max(squares)), sqrt(N * sum(squares))


assert condition_bounds(2) == (2, 4)
sizes = np.arange(2, 41)
low, high = np.array([condition_bounds(N) for N in sizes]).T
by_numpy = np.array(
    [np.linalg.cond(np.linalg.eig(legs(N)[0])[1]) for N in sizes]
)

small = sizes <= 16
assert np.all(low[small] < by_numpy[small]) and np.all(
    by_numpy[small] < high[small]
)
for N in (4, 8, 16, 24, 32, 40):
    print(
        f"N = {N:2d}: the condition number is "
        f"between {low[N - 2]:.1e} and {high[N - 2]:.1e}"
    )
slopes = [
    np.polyfit(sizes[18:], np.log10(b)[18:], 1)[0] for b in (low, high)
]
print(f"digits lost for each state, N = 20 to 40: {np.mean(slopes):.2f}")
assert (
    abs(slopes[0] - slopes[1]) < 0.015
    and abs(np.mean(slopes) - 0.76) < 0.01
)
lost = sizes[low * 2.0**-53 > 1][0]
print(f"rounding times condition number is above one from N = {lost} on")
assert condition_bounds(64)[0] > 1e40
print(f"N = 64: at least 10^{int(log10(condition_bounds(64)[0]))}")

# %%
figure, axes = plt.subplots()
axes.fill_between(sizes, low, high, color=plotting.COLOURS[0], alpha=0.3)
axes.semilogy(sizes, high, label="exact: bounds", color=plotting.COLOURS[0])
axes.semilogy(sizes, low, color=plotting.COLOURS[0], linestyle="-")
axes.semilogy(
    sizes[::2],
    by_numpy[::2],
    linestyle="",
    marker="o",
    markersize=5,
    color=plotting.COLOURS[1],
    label="what numpy.linalg.cond says",
)
axes.axhline(2.0**53, color="black", linestyle=":")
axes.text(2, 2.0**55, "no digit of float64 is left", va="bottom")
axes.axhline(1, color=plotting.COLOURS[2], linestyle="--")
axes.text(40, 3, "a unitary matrix", ha="right", va="bottom")
axes.set(xlabel="N", ylabel="condition number", ylim=(0.1, 1e31))
axes.legend(loc="upper left")
assert by_numpy[-1] < low[-1] / 1e4
assert 1e14 < by_numpy[22] < 1e20  # N = 24
plotting.show(
    figure,
    "The condition number of HiPPO's eigenvectors against N, on a "
    "logarithmic scale. The exact bounds, a narrow band, rise as a "
    "straight line from 1 to 10 to the 28 at N = 40, and cross the line "
    "of 10 to the 16, where float64 has no digit left, near N = 24. What "
    "NumPy reports lies in the band up to there and then stays near 10 to "
    "the 19. A unitary matrix has the value 1 for every N.",
)

# %% [markdown]
# A straight line on this scale is exponential growth: *every four further states cost three digits.* At $N = 16$ eleven digits are at risk, at
# $N = 24$ all of them.
#
# ````{admonition} Trap: the library's condition number
# :class: warning
#
# What NumPy prints is computed in float64 from eigenvectors that were computed in float64. Once the true number passes $10^{16}$ it cannot be seen from there: the smallest stretch is below the rounding of the
# largest. At $N = 24$ it prints some number near $10^{17}$, which looks like a measurement and is rounding already; at $N = 40$ the true value is above $10^{28}$, and
# what is printed is many powers of ten too small. A condition number above $10^{16}$ means "all digits gone", and nothing more.
# ````
#
# Does it happen, or is it only a bound? Diagonalise numerically, run the diagonal system, compare with the powers of the original. The diagonal
# system has $N$ separate recurrences, so its kernel is a sum of $N$ powers of numbers.


# %%
def kernel_by_eig(A, B, C, step, L):
    """K_l = sum_n (C_E)_n g_n^l (Bb_E)_n, from float64 eigenvectors E.
    ->  K (L,)
    """
    Lambda, E = np.linalg.eig(A)
    B_E, C_E = np.linalg.solve(E, B), C @ E
    g = (1 + step / 2 * Lambda) / (1 - step / 2 * Lambda)
    Bb_E = step * B_E / (1 - step / 2 * Lambda)
    return (C_E * Bb_E) @ g[:, None] ** np.arange(L)


L = 256
eig_error, inverse_error = {}, {}
for N in (8, 16, 24, 64):
    A, B = legs(N)
    C = np.random.default_rng(N).normal(size=N)
    K = by_powers(A, B, C, 4 / L, L)
    eig_error[N] = largest_error(kernel_by_eig(A, B, C, 4 / L, L), K)
    E = np.linalg.eig(A)[1]
    inverse_error[N] = np.abs(np.linalg.inv(E) @ E - np.eye(N)).max()

# %% tags=["nbval-ignore-output"]
for N in (8, 16, 24, 64):
    print(
        f"N = {N:2d}: E^-1 E differs from I by {inverse_error[N]:.0e}, "
        f"the kernel is off by {eig_error[N]:.0e} of its largest value"
    )
assert eig_error[8] < 1e-10 and inverse_error[8] < 1e-9
assert 1e-8 < eig_error[16] < 1e-2 and 1e-8 < inverse_error[16] < 1
assert eig_error[24] > 1e-2 and inverse_error[24] > 0.1
assert eig_error[64] > 1e6

# %% [markdown]
# It happens. Eight states are fine. Sixteen have lost more than half of their digits. With 24 the kernel is wrong, and with 64 it is off by many powers of ten. The
# eigenvalues were right all the time; it is the coordinates that fail.
#
# ## Why: Legendre's polynomials, written in powers
#
# The reason has been known for longer than HiPPO. In the coordinates $E$ each state is alone, and answers an impulse by
# $e^{-(j+1)\tau}$, up to a factor. With chapter 3's ruler $r = e^{-\tau}$ that is the power $r^{j+1}$. In the coordinates of HiPPO the state $n$ answers by
# $r\,p_n(r)$, where $p_n$ is a Legendre polynomial scaled to length one ([chapter 3](03_hippo.ipynb)). So to diagonalise HiPPO *is* to write Legendre's polynomials in powers of $r$.
#
# Exactly so. In the scaling by $T$ the input column is $T^{-1}B = (1, \dots, 1)$, since $B_n = T_{nn}$. The coordinates $F$ turn it into $G \cdot (1, \dots, 1)$, state $j$ answers by $(G \cdot 1)_j\, r^{j+1}$,
# and back in the old coordinates state $n$ answers by $\sum_j F_{nj}\, (G \cdot 1)_j\, r^{j+1}$. Chapter 3 says that this is $r\,p_n(r) / T_{nn} = r\, \mathcal P_n(2r-1)$. Two polynomials that agree on $[0, 1]$
# have the same coefficients:
#
# $$ F_{nj}\, (G \cdot 1)_j = \text{the coefficient of } r^j \text{ in } \mathcal P_n(2r - 1). $$ (nplr-powers)
#
# For $n = 4$ they are $1, -20, 90, -140, 70$. The polynomial is never above one on $[0, 1]$, yet its parts are as large as 140: nearly all of them cancels. How bad does it get? The signs alternate, so at $r = -1$
# all parts have the same sign, and the sum of their sizes is $|\mathcal P_n(2 \cdot (-1) - 1)| = |\mathcal P_n(-3)| = \mathcal P_n(3)$. Legendre's polynomials
# obey a recurrence {cite:p}`szego1939orthogonal`, which at the point 3 reads
#
# $$ (n+1)\, \mathcal P_{n+1}(3) = (2n+1) \cdot 3\, \mathcal P_n(3) - n\, \mathcal P_{n-1}(3) . $$
#
# For large $n$, divided by $n$, that is nearly $\mathcal P_{n+1}(3) = 6\, \mathcal P_n(3) - \mathcal P_{n-1}(3)$. A growth by the factor $a$ each time needs $a^2 = 6a - 1$, and the larger solution is
#
# $$ a = 3 + \sqrt 8 \approx 5.83, \qquad \log_{10} a \approx 0.77 . $$
#
# There are the three quarters of a digit for each state.

# %%
sums = []
for n in range(40):
    ones = [sum(G[j][: j + 1]) for j in range(n + 1)]
    coefficients = [F[n][j] * ones[j] for j in range(n + 1)]
    # chapter 3's formula for the coefficients of P_n(2r - 1):
    for j, c in enumerate(coefficients):
        assert c == (-1) ** (n + j) * comb(n, j) * comb(n + j, j)
    if n == 4:
        print("n = 4:", *(int(c) for c in coefficients))
    sums.append(sum(map(abs, coefficients)))
    legendre_at_3 = legendre.legval(3.0, np.eye(n + 1)[n])
    np.testing.assert_allclose(float(sums[n]), legendre_at_3, rtol=1e-10)
growth = 3 + np.sqrt(8)
print(f"growth of the sum of sizes: {log10(growth):.2f} digits for each n")
assert 0.97 * growth < float(sums[39] / sums[38]) < growth

# %%
r = np.linspace(0, 1, 301)
figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.9), sharey=True)
for n, mark in zip((4, 6, 8), "osv", strict=True):
    power = r ** (n + 1)
    polynomial = r * legendre.legval(2 * r - 1, np.eye(n + 1)[n])
    left.plot(
        r,
        power,
        marker=mark,
        markevery=(10 * n, 60),
        label=f"$r^{{{n + 1}}}$",
    )
    right.plot(
        r,
        polynomial,
        marker=mark,
        markevery=(10 * n, 60),
        label=f"$n = {n}$",
    )
left.set(xlabel="r", ylabel="answer to an impulse")
right.set(xlabel="r")
left.set_title("powers: eigenvectors", loc="left", fontsize=10)
right.set_title("HiPPO's own states", loc="left", fontsize=10)
left.legend(loc="upper left")
right.legend(loc="upper left")
plotting.show(
    figure,
    "Left: the powers 5, 7 and 9 of r, the answers of the states in "
    "eigenvector coordinates. They all stay near zero and rise at the "
    "end, and look nearly alike. Right: the answers of HiPPO's states 4, "
    "6 and 8, scaled to one in the present. They swing through zero at "
    "different places and are clearly different.",
)

# %% [markdown]
# High powers differ by little, so whatever tells them apart is in the last digits. Chapter 3 praised HiPPO because its states are different from each other. Diagonalising it throws exactly that away.
#
# The angle between two neighbouring powers says it in one number. For $f_i = r^i$ the integral of $f_i f_j$ is $\frac{1}{i+j+1}$, so the cosine of the angle
# between $r^i$ and $r^{i+1}$ is $\frac{1}{2i+2} \sqrt{(2i+1)(2i+3)}$. For $i = 10$ that is 0.999.

# %%
i = 10
by_formula = np.sqrt((2 * i + 1) * (2 * i + 3)) / (2 * i + 2)
node, weight = legendre.leggauss(32)
node, weight = (node + 1) / 2, weight / 2
product = lambda a, b: (weight * node**a) @ node**b
by_integral = product(i, i + 1) / np.sqrt(
    product(i, i) * product(i + 1, i + 1)
)
np.testing.assert_allclose(by_integral, by_formula, rtol=1e-12)
print(f"cosine of the angle between r^10 and r^11: {by_formula:.3f}")

# %% [markdown]
# ## Coordinates that do no harm
#
# Which coordinates lose nothing? Those with $|E\,x| = |x|$ for all $x$: they turn the space and stretch it nowhere. In symbols, with $E^*$ the conjugate transpose,
# $|Ex|^2 = (Ex)^* (Ex) = x^* E^* E\, x$, and this is $x^* x$ for all $x$ when
#
# $$ E^* E = I . $$ (nplr-unitary)
#
# Such a matrix is **unitary**. Its inverse is $E^*$, which is unitary too and stretches nothing either. So $\operatorname{cond}(E) = 1 \cdot 1 = 1$: an error of $10^{-16}$ stays an error of $10^{-16}$, for every $N$.
# And the inverse costs nothing.
#
# Which matrices have unitary eigenvectors? If $A = E \Lambda E^*$, then the conjugate transpose is $A^* = E \bar\Lambda E^*$, and with $E^*E = I$ in the middle
#
# $$ A A^* = E \Lambda E^* E \bar\Lambda E^* = E\, \Lambda \bar\Lambda\, E^* = E\, \bar\Lambda \Lambda\, E^* = A^* A , $$
#
# since diagonal matrices may change places. (Here $\bar\Lambda$ is the conjugate.) A matrix with $A A^* = A^* A$ is called **normal**. So only normal matrices can be diagonalised without loss. (All of them can; we shall need it only
# for a kind where linear algebra's best known theorem says so.)
#
# Is HiPPO normal? It is real, so $A^* = A^\top$. For $N = 2$, by hand,
#
# $$ A A^\top = \begin{pmatrix} 1 & \sqrt3 \\ \sqrt3 & 7 \end{pmatrix}, \qquad
# A^\top A = \begin{pmatrix} 4 & 2\sqrt3 \\ 2\sqrt3 & 4 \end{pmatrix} . $$
#
# It is not, and no larger one is either: at the top left $A A^\top$ has $1$, and $A^\top A$ has the squared length of the first column, which is at least $4$.


# %%
def not_normal(A):
    """The largest entry of A A* - A* A, over the largest entry of A A*."""
    A_star = A.conj().T
    return np.abs(A @ A_star - A_star @ A).max() / np.abs(A @ A_star).max()


A, _ = legs(2)
s3 = np.sqrt(3)
np.testing.assert_allclose(A @ A.T, [[1, s3], [s3, 7]], rtol=1e-15)
np.testing.assert_allclose(A.T @ A, [[4, 2 * s3], [2 * s3, 4]], rtol=1e-15)
for N in (2, 8, 64):
    A, _ = legs(N)
    assert (A.T @ A)[0, 0] > 3.99 and (A @ A.T)[0, 0] == 1
    print(f"N = {N:2d}: A A^T and A^T A differ by {not_normal(A):.2f}")

# %% [markdown]
# ## One column away from normal
#
# Look at $A$ again. Below the diagonal stands $-\sqrt{(2n+1)(2m+1)}$, above it nothing. If half of it were moved up, both sides would have the same size: minus one half of the root below and plus
# one half above. That can be done by adding *one and the same* matrix everywhere, $\frac12 \sqrt{(2n+1)(2m+1)}$. And that matrix is as small as a matrix can be: it is a column times a row,
#
# $$ \begin{aligned}
# \tfrac12 \sqrt{(2n+1)(2m+1)} &= \sqrt{n + \tfrac12}\, \sqrt{m + \tfrac12} = P_n P_m, \\
# P_n &= \sqrt{n + \tfrac12} ,
# \end{aligned} $$ (nplr-P)
#
# since $\frac12 = \frac{1}{\sqrt2} \cdot \frac{1}{\sqrt2}$ and $\frac{1}{\sqrt2} \sqrt{2n+1} = \sqrt{n + \frac12}$. Now entry by entry, $A_{nm} + P_n P_m$ is
#
# $$ \begin{aligned}
# n > m: &\quad -\sqrt{(2n+1)(2m+1)} + \tfrac12 \sqrt{(2n+1)(2m+1)} \\
# &\quad = -\tfrac12 \sqrt{(2n+1)(2m+1)}, \\
# n = m: &\quad -(n+1) + \big(n + \tfrac12\big) = -\tfrac12, \\
# n < m: &\quad 0 + \tfrac12 \sqrt{(2n+1)(2m+1)} .
# \end{aligned} $$
#
# On the diagonal everything that depends on $n$ has gone. Off the diagonal the entry at $(n, m)$ is minus the entry at $(m, n)$. So
#
# $$ A + P P^\top = -\tfrac12 I + S, \qquad S^\top = -S, $$ (nplr-split)
#
# where $S$ has zeros on its diagonal, $-P_n P_m$ below it and $+P_n P_m$ above. A real matrix with $S^\top = -S$ is called **skew**.
#
# Is the sum normal? For $M = -\frac12 I + S$ the transpose is $-\frac12 I - S$. Both are made of $I$ and $S$ alone, and these commute, so $M M^\top = M^\top M$. HiPPO is a normal matrix minus a column times a row: **normal plus low rank**
# (theorem 1 and appendix C.1 of the S4 paper {cite:p}`gu2022s4`).


# %%
def nplr_legs(N):
    """A + P P^T = -1/2 I + S,  P_n = sqrt(n + 1/2).
    ->  A (N, N), P (N,), S (N, N)
    """
    A, _ = legs(N)
    P = np.sqrt(np.arange(N) + 0.5)
    PP = np.outer(P, P)
    S = np.triu(PP, 1) - np.tril(PP, -1)
    return A, P, S


for N in (1, 2, 5, 64):
    A, P, S = nplr_legs(N)
    np.testing.assert_array_equal(S, -S.T)
    M = A + np.outer(P, P)
    np.testing.assert_allclose(M, -0.5 * np.eye(N) + S, rtol=0, atol=1e-13)
    np.testing.assert_allclose(M + M.T, -np.eye(N), rtol=0, atol=1e-12)
    assert not_normal(M) < 1e-13
    for ours, theirs in zip((A, P), hippo.nplr_legs(N)[::2], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-14)

# %%
A, P, S = nplr_legs(4)
figure, three = plt.subplots(1, 3, figsize=(6.4, 2.5))
for axes, matrix, name in zip(
    three,
    (A, np.outer(P, P), A + np.outer(P, P)),
    ("$A$", r"$P P^\top$", r"$A + P P^\top = -\frac{1}{2} I + S$"),
    strict=True,
):
    axes.imshow(matrix, vmin=-6, vmax=6, cmap="RdBu", alpha=0.7)
    for (n, m), value in np.ndenumerate(np.round(matrix, 1) + 0.0):
        axes.text(
            m, n, f"{value:.1f}", ha="center", va="center", fontsize=9
        )
    axes.set_title(name, fontsize=10)
    axes.set_axis_off()
plotting.show(
    figure,
    "The three matrices for N = 4 with their entries. A has minus 1, 2, "
    "3, 4 on its diagonal, negative numbers below and zeros above. P "
    "times its transpose is positive everywhere. Their sum has minus one "
    "half all along the diagonal, and each number above it is minus its "
    "mirror image below.",
)

# %% [markdown]
# ````{admonition} Trap: off by one, once more
# :class: warning
#
# With $-n$ on the diagonal of $A$ instead of $-(n+1)$, a slip that chapter 3 warns of, the diagonal of the sum is $-n + (n + \frac12) = +\frac12$. The matrix is still normal, no check for
# that fails, and its eigenvalues lie to the *right* of the imaginary axis: it grows. The check that catches it is $M + M^\top = -I$.
# ````

# %%
A, P, S = nplr_legs(8)
off_by_one = A + np.eye(8) + np.outer(P, P)
assert not_normal(off_by_one) < 1e-13  # this check is passed
symmetric_part = off_by_one + off_by_one.T
np.testing.assert_allclose(symmetric_part, np.eye(8), rtol=0, atol=1e-13)
real_parts = np.linalg.eigvals(off_by_one).real
print(
    f"real parts of the eigenvalues: {real_parts.mean():+.1f}, right: -0.5"
)
np.testing.assert_allclose(real_parts, 0.5, rtol=0, atol=1e-12)

# %% [markdown]
# ## Eigenvectors without loss
#
# The theorem we need is the one about Hermitian matrices, those that are their own conjugate transpose: their eigenvalues are real and their eigenvectors can be chosen orthonormal, which makes a unitary matrix. $S$ is not Hermitian, but $-iS$ is:
# the conjugate transpose turns $-i$ into $+i$ and $S$ into $S^\top = -S$,
#
# $$ (-iS)^* = (+i)\, S^\top = (+i)(-S) = -iS . $$
#
# So there are orthonormal $v$ with $-iS\, v = \mu\, v$ and a *real* $\mu$. Multiply by $i$ on both sides: $S v = i\mu\, v$. Every eigenvalue of a real skew matrix is imaginary. And
# $-\frac12 I$ shifts every eigenvalue and changes no eigenvector:
#
# $$ \big( {-\tfrac12} I + S \big)\, v = \big( {-\tfrac12} + i\mu \big)\, v , \qquad \lambda = -\tfrac12 + i\mu . $$ (nplr-eigenvalue)
#
# The real part is $-\frac12$ *exactly*, for each of them. It is not computed, it is written down.
#
# `numpy.linalg.eigh` (JAX has the same) is the routine for Hermitian matrices. It finds eigenvectors that are orthonormal to the last digits whatever the matrix, and that is the point.
#
# ````{admonition} Trap: a matrix that is not Hermitian, given to eigh
# :class: warning
#
# `eigh` does not check its argument. NumPy's reads the lower triangle and the real part of the diagonal, and takes the rest for granted. If the $-\frac12$ is left in, as in `eigh(-1j * M)` with $M = -\frac12 I + S$, then the matrix
# is not Hermitian: it has $\frac i2$ all along its diagonal. NumPy does not see it and returns $\mu$, and whoever takes $i\mu$ for the eigenvalue has lost the damping. For $N = 64$ the matrix that they give back is off by
# 0.5. If the $-i$ is forgotten and $M$ itself is given, the result is nonsense: for $N = 8$, NumPy gives $-27.3$ as first eigenvalue, JAX's version (which averages $M$ and $M^*$ before) gives
# $-\frac12$ for all eight. Neither says a word.
# ````

# %%
A, P, S = nplr_legs(64)
M = A + np.outer(P, P)
mu, V_wrong = np.linalg.eigh(-1j * M)  # the -1/2 left in
back = (V_wrong * (1j * mu)) @ V_wrong.conj().T
print(f"-1/2 left in: off by {np.abs(back - M).max():.2f}")
np.testing.assert_allclose(back - M, 0.5 * np.eye(64), rtol=0, atol=1e-10)

A, P, S = nplr_legs(8)
M = A + np.outer(P, P)
by_numpy, by_jax = np.linalg.eigh(M)[0], np.asarray(jnp.linalg.eigh(M)[0])
print(f"-i forgotten: NumPy's first eigenvalue {by_numpy[0]:.1f}")
np.testing.assert_allclose(by_jax, -0.5, rtol=0, atol=1e-12)
true = np.linalg.eigvals(M)
np.testing.assert_allclose(true.real, -0.5, rtol=0, atol=1e-12)
assert by_numpy[0] < -27
# one line that would have spoken up:
is_hermitian = lambda M: np.array_equal(M, M.conj().T)
assert (
    is_hermitian(-1j * S)
    and not is_hermitian(-1j * M)
    and not is_hermitian(M)
)

# %% [markdown]
# ## Every mode has a partner
#
# Take the conjugate of both sides of $S v = i\mu\, v$. Since $S$ is real, it stays as it is:
#
# $$ S\, \bar v = -i\mu\, \bar v . $$ (nplr-partner)
#
# So with $(\mu, v)$ there is $(-\mu, \bar v)$: *eigenvalues come in pairs, and the partner's eigenvector is the conjugate.* A mode with $\mu = 0$ would be its own partner. Can that be?
#
# Suppose $S v = 0$. With $w_m = P_m v_m$, row $n$ of $S v$ is
#
# $$ P_n \Big( \sum_{m > n} w_m - \sum_{m < n} w_m \Big) = 0 . $$
#
# Divide by $P_n > 0$ and subtract row $n + 1$ from row $n$. The first sums differ by $w_{n+1}$, the second ones by $-w_n$, which comes in with another minus, so $w_{n+1} + w_n = 0$: the entries alternate, $w_n = (-1)^n w_0$. Row $0$ says
# $w_1 + w_2 + \dots + w_{N-1} = 0$, that is $w_0\,(-1 + 1 - 1 + \dots) = 0$ with $N - 1$ terms. If $N$ is even, this number is odd, the terms add up to $-1$, and $w_0 = 0$: there is no such mode. If $N$ is
# odd, they add up to $0$, and there is exactly one.
#
# So let $N$ be even. Half of the $\mu$ are positive, half are negative. Collect the eigenvectors of the *positive* ones in a matrix $V$, of shape $(N, N/2)$, and put their conjugates beside it:
#
# $$ U = \big( V, \bar V \big), \qquad U^* U = I . $$ (nplr-U)
#
# The columns are orthonormal: within $V$ because `eigh` makes them so, within $\bar V$ by conjugation, and between the two because eigenvectors of a Hermitian matrix for different
# eigenvalues ($\mu > 0$ and $\mu < 0$) are orthogonal. (The bar over $V$ is a conjugate.)

# %%
A, P, S = nplr_legs(64)
mu, vectors = np.linalg.eigh(
    -1j * S
)  # eigh sorts: the positive ones come last
np.testing.assert_allclose(mu, -mu[::-1], rtol=0, atol=1e-9)
V = vectors[:, 32:]
U = np.concatenate([V, V.conj()], axis=1)
np.testing.assert_allclose(U.conj().T @ U, np.eye(64), rtol=0, atol=1e-12)
residual = S @ V.conj() - V.conj() * (-1j * mu[32:])
assert np.abs(residual).max() < 1e-10
for N in range(1, 12):
    smallest = np.abs(np.linalg.eigvalsh(-1j * nplr_legs(N)[2])).min()
    assert (smallest < 1e-12) if N % 2 else (smallest > 0.3)

# %% [markdown]
# ````{admonition} Trap: an odd N loses a mode
# :class: warning
#
# For $N = 5$ there are two pairs and one mode at $\mu = 0$ without a partner. Code that takes "the upper half" keeps two pairs, four states out of five, and goes on without complaint. The matrix that comes back is wrong by 0.97, where the largest entry
# is 7.9. The package refuses an odd $N$ and says why.
# ````

# %%
A, P, S = nplr_legs(5)
mu, vectors = np.linalg.eigh(-1j * S)
V = vectors[:, 3:]  # two pairs; the middle one, with mu = 0, is dropped
U = np.concatenate([V, V.conj()], axis=1)
lam = -0.5 + 1j * np.concatenate([mu[3:], -mu[3:]])
P_U = U.conj().T @ P
back = U @ (np.diag(lam) - np.outer(P_U, P_U.conj())) @ U.conj().T
print(
    f"off by {np.abs(back - A).max():.2f}, "
    f"largest entry {np.abs(A).max():.1f}"
)
assert abs(np.abs(back - A).max() - 0.97) < 0.005
assert abs(np.abs(A).max() - 7.9) < 0.05
try:
    hippo.dplr_legs(5)
except ValueError as error:
    print(error)
else:
    raise AssertionError("an odd N was accepted")

# %% [markdown]
# ## HiPPO in the new coordinates
#
# Now take $E = U$ in the change of coordinates {eq}`nplr-coordinates`. The inverse is the conjugate transpose, $U^{-1} = U^*$. For the matrix, line by line:
#
# $$ \begin{aligned}
# A_U &= U^* A\, U \\
# &= U^* \big( {-\tfrac12} I + S - P P^\top \big) U \\
# &= -\tfrac12 U^* U + U^* S\, U - U^* P\, P^\top U \\
# &= \Lambda_U - (U^* P)\, (P^\top U) .
# \end{aligned} $$
#
# The first two terms are diagonal, $\Lambda_U$ with the entries $-\frac12 \pm i\mu_n$. For the last factor we use that $P$ is *real*: $P^\top = P^*$, so $P^\top U = P^* U = (U^* P)^*$. Write
# $P_U = U^* P$. Then
#
# $$ A_U = \Lambda_U - P_U\, P_U^*, \qquad B_U = U^* B, \qquad C_U = C\, U . $$ (nplr-dplr)
#
# This is what [chapter 7](07_dplr.ipynb) asked for, with $Q = P$. The conjugates: one star in $U^*P$, $U^*B$ and $P_U^*$ each; *none* in $C\,U$, because $C$ is a row and meets $U$, not $U^*$.
#
# Everything is doubled. The lower half of $P_U$ is $V^\top P$, which is the conjugate of $V^* P$ as $P$ is real; the same for $B$, and $C \bar V$ is the conjugate of $C V$ if $C$ is real. So with the subscript $V$ for the upper half,
#
# $$ \begin{aligned}
# P_U &= \begin{pmatrix} P_V \\ \overline{P_V} \end{pmatrix}, &\quad P_V &= V^* P, \\
# B_U &= \begin{pmatrix} B_V \\ \overline{B_V} \end{pmatrix}, &\quad B_V &= V^* B, \\
# C_U &= \big( C_V, \overline{C_V} \big), &\quad C_V &= C\, V .
# \end{aligned} $$ (nplr-halves)
#
# (Here the bar is a conjugate. The discrete $\bar B$ does not occur.) One more gift: $B_n = \sqrt{2n+1} = \sqrt2\, P_n$, so $B_V = \sqrt2\, P_V$.
#
# One freedom is left. An eigenvector of length one may be multiplied by any $e^{i\varphi}$. Then $P_V$ and $B_V$ (with the star) get the factor $e^{-i\varphi}$ in that place, and $C_V$ gets $e^{i\varphi}$. What chapter 7's kernel contains are
# the products $C_n B_n$, $C_n P_n$, $\overline{P_n} B_n$ and $\overline{P_n} P_n$, and in each the phases cancel. So we may choose, and choose $P_V > 0$: multiply each column of $V$ by the phase of its $P$. That needs
# $P_V \ne 0$ in every place. *Proof.* If $v^* P = 0$ for an eigenvector $v$, then its conjugate $P^\top v = 0$ too, and $A v = (-\frac12 I + S - P P^\top) v = (-\frac12 + i\mu)\, v$. But the eigenvalues of $A$ are $-1, \dots, -N$, which are real, and $\mu \neq 0$.
#
# For $N = 2$ by hand: $S = \frac{\sqrt3}{2} \begin{pmatrix} 0 & 1 \\ -1 & 0 \end{pmatrix}$. For $v = \frac{1}{\sqrt2} (1, i)$ we find $S v = \frac{i\sqrt3}{2} v$, so $\lambda = -\frac12 + \frac{\sqrt3}{2} i$. And
# $v^* P = \frac{1}{\sqrt2} \big( \sqrt{\tfrac12} - i \sqrt{\tfrac32} \big) = \frac12 - \frac{\sqrt3}{2} i$, of size one: $P_V = 1$ and $B_V = \sqrt2$.


# %%
def dplr_legs(N):
    """A = U (Lambda_U - P_U P_U*) U*,  U = (V, conj V),  P_V = V* P > 0.
    ->  Lambda, P_V, B_V (N/2,), V (N, N/2); Im Lambda > 0
    """
    A, P, S = nplr_legs(N)
    mu, vectors = np.linalg.eigh(-1j * S)
    V = vectors[:, N // 2 :]
    P_V = V.conj().T @ P
    V = V * (P_V / np.abs(P_V))  # the free phase: makes P_V positive
    P_V = V.conj().T @ P
    return -0.5 + 1j * mu[N // 2 :], P_V, np.sqrt(2) * P_V, V


def both(half):
    """One of each conjugate pair -> the full state: (x, conj x)."""
    return np.concatenate([half, half.conj()], axis=-1)


Lambda, P_V, B_V, V = dplr_legs(2)
np.testing.assert_allclose(Lambda, [-0.5 + 0.5j * np.sqrt(3)], rtol=1e-14)
np.testing.assert_allclose(P_V, [1], rtol=0, atol=1e-14)

for N in (2, 4, 8, 32, 64):
    A, P, S = nplr_legs(N)
    Lambda, P_V, B_V, V = dplr_legs(N)
    U = both(V)
    np.testing.assert_allclose(
        U.conj().T @ U, np.eye(N), rtol=0, atol=1e-12
    )
    assert np.all(P_V.real > 0.3) and np.abs(P_V.imag).max() < 1e-12
    A_U = np.diag(both(Lambda)) - np.outer(both(P_V), both(P_V).conj())
    back = U @ A_U @ U.conj().T
    assert np.abs(back - A).max() < 1e-13 * np.abs(A).max()
    np.testing.assert_allclose(
        U.conj().T @ legs(N)[1], both(B_V), rtol=0, atol=1e-11
    )
    # the package's own; eigenvectors agree since the phase is fixed
    for ours, theirs in zip(
        (Lambda, P_V, B_V, V), hippo.dplr_legs(N), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
print("up to N = 64, A comes back to 1e-13 of its largest entry")

# %% [markdown]
# At $N = 64$, where diagonalising would have cost at least forty digits, this costs none.
#
# ````{admonition} Trap: a star on C
# :class: warning
#
# Since $B$ and $P$ get a $V^*$, it is tempting to give $C$ one too and to store $V^* C$, the conjugate of $C V$. The shapes fit, all sizes are right, and the kernel is wrong: for $N = 8$ and a random $C$ it is off
# by nearly half of its largest value. A check with $C = B$ would *not* have found it, since then $C V = B^\top V$ is the conjugate of $V^* B = \sqrt2\, P_V$, which we chose real. Check with random numbers.
# ````

# %%
N, step, L = 8, 0.05, 128
A, B = legs(N)
Lambda, P_V, B_V, V = dplr_legs(N)


def kernel(Lambda, P_V, B_V, C_tilde_V):
    """Chapter 7's kernel with Q = P."""
    half = map(jnp.asarray, (Lambda, P_V, P_V, B_V, C_tilde_V))
    return np.asarray(dplr.kernel_dplr(*half, step, L))


left = np.eye(N) - step / 2 * A
Ab = np.linalg.solve(left, np.eye(N) + step / 2 * A)
tilde = np.eye(N) - np.linalg.matrix_power(Ab, L)  # C_tilde = C tilde
C = np.random.default_rng(3).normal(size=N)
K = by_powers(A, B, C, step, L)
right = kernel(Lambda, P_V, B_V, C @ tilde @ V)
assert largest_error(right, K) < 1e-12
starred = generating.to_tilde(
    *map(jnp.asarray, (V.conj().T @ C, Lambda, P_V, P_V)), step, L
)
starred = kernel(Lambda, P_V, B_V, starred)
print(f"a star on C: off by {largest_error(starred, K):.2f}")
assert largest_error(starred, K) > 0.4

# any other phase of the eigenvectors gives the same kernel:
phase = np.exp(1j * np.random.default_rng(4).uniform(0, 2 * np.pi, N // 2))
turned = V * phase
P_turned, B_turned = turned.conj().T @ nplr_legs(N)[1], turned.conj().T @ B
K_turned = kernel(Lambda, P_turned, B_turned, C @ tilde @ turned)
assert largest_error(K_turned, K) < 1e-12
# and with C = B the starred row is the right one:
assert largest_error(V.conj().T @ B, B @ V) < 1e-12

# %% [markdown]
# ## Where the eigenvalues stand
#
# All $\lambda_n$ of the normal part have the real part $-\frac12$. Their imaginary parts are frequencies, and it is worth knowing how far they reach: the fastest one decides how small a step must be to be seen.
#
# A guess by hand, with integrals in place of sums. For large $N$ let $n$ be a continuous variable, and $P_n^2 = n + \frac12 \approx n$. The equation $S v = i\mu\,v$ reads, with $w = P v$ as before,
#
# $$ \int_n^N w\, dm - \int_0^n w\, dm = i\mu\, \frac{w(n)}{n} , $$
#
# (divide row $n$ by $P_n$, and $v/P = w/P^2$). Let $W(n) = \int_0^n w\, dm$, so that $w = W'$, and let $h(n) = W(n) - \frac12 W(N)$. The left side is $W(N) - 2 W(n) = -2h$, and $w = h'$:
#
# $$ -2 h = i \mu\, \frac{h'}{n} \quad\Longrightarrow\quad h' = \frac{2 i n}{\mu}\, h \quad\Longrightarrow\quad h(n) = h(0)\, e^{i n^2 / \mu} . $$
#
# At the two ends $h(0) = -\frac12 W(N)$ and $h(N) = +\frac12 W(N)$. So $e^{i N^2/\mu} = -1$, which means $N^2 / \mu = \pi, 3\pi, 5\pi, \dots$:
#
# $$ \mu \approx \frac{N^2}{\pi}, \; \frac{N^2}{3\pi}, \; \frac{N^2}{5\pi}, \dots $$ (nplr-frequencies)
#
# The largest frequency grows with the square of $N$. For $N = 64$ the guess is $4096/\pi = 1304$. The approximation cannot hold to the end of the list, where the eigenvector swings as fast as $n$ can count.

# %%
for N in (16, 64, 256):
    mu = np.linalg.eigvalsh(-1j * nplr_legs(N)[2])[::-1]
    print(
        f"N = {N:3d}: largest {mu[0]:7.1f}, N^2/pi = {N**2 / np.pi:7.1f}; "
        f"smallest {mu[N // 2 - 1]:.2f}"
    )
    guess = N**2 / np.pi / np.array([1, 3, 5])
    np.testing.assert_allclose(
        mu[:3], guess, rtol=(0.2 if N == 16 else 0.011)
    )

N = 64
mu = np.sort(dplr_legs(N)[0].imag)[::-1]
n = np.arange(N // 2)
figure, axes = plt.subplots()
axes.semilogy(
    n, mu, marker="o", markersize=4, linestyle="", label="computed"
)
axes.semilogy(
    n, N**2 / np.pi / (2 * n + 1), label=r"the guess $N^2 / (\pi\,(2n+1))$"
)
axes.set(
    xlabel="n, from the fastest mode to the slowest",
    ylabel="imaginary part",
)
axes.legend()
assert np.all(mu[1:] < N**2 / np.pi / (2 * n[1:] + 1))
assert np.all(mu[:6] > 0.95 * N**2 / np.pi / (2 * n[:6] + 1))
plotting.show(
    figure,
    "The 32 positive imaginary parts for N = 64, from the fastest to the "
    "slowest, on a logarithmic scale. They fall from 1303 to 0.26. The "
    "first six lie within five percent of the guess, the later ones fall "
    "below it, most of all the last.",
)

# %% [markdown]
# What does a mode do? In the coordinates $V$ state $n$ answers an impulse by $V^* e^{\tau A} B$, and chapter 3 gave $e^{\tau A} B$: it is $e^{-\tau} p_n(e^{-\tau})$. If $A$ were normal, mode $n$ would answer by a damped oscillation
# $e^{\lambda_n \tau}$ times a constant. With the low-rank part it is not quite that. (Drawn is the imaginary part; the real part looks alike, with a fine ripple on top.)

# %%
tau = np.linspace(0, 6, 601)
Lambda, P_V, B_V, V = dplr_legs(64)
answers = np.exp(-tau)[:, None] * np.asarray(
    hippo.legs_basis(64, np.exp(-tau))
)
answers = answers @ V.conj()  # (times, modes): V* e^{tau A} B
damped = B_V / 2 * np.exp(tau[:, None] * Lambda)
figure, three = plt.subplots(3, 1, figsize=(6.4, 4.6), sharex=True)
for axes, mode in zip(three, (1, 4, 12), strict=True):
    axes.plot(
        tau, answers[:, mode].imag, linestyle="-", label="HiPPO's mode"
    )
    axes.plot(
        tau,
        damped[:, mode].imag,
        linestyle="--",
        label="half a damped oscillation",
    )
    axes.set_title(
        f"Im $\\lambda$ = {Lambda[mode].imag:.1f}",
        loc="left",
        fontsize=10,
    )
three[0].legend(
    ncols=2, loc="lower right", bbox_to_anchor=(1, 0.95), borderaxespad=0
)
three[1].set_ylabel("imaginary part of the answer")
three[2].set_xlabel(r"how long ago: the age $\tau$")
for mode in (1, 4):
    difference = np.abs((answers - damped).imag[:, mode]).max()
    assert difference < 0.05 * np.abs(damped.imag[:, mode]).max()
follows = tau <= 2  # the fastest one, against its envelope
envelope = np.abs(damped[:, 12])
difference = np.abs((answers - damped).imag[:, 12])
assert np.all(difference[follows] < 0.2 * envelope[follows])
late = tau >= 4
assert np.all(np.abs(answers.imag[late, 12]) < 0.2 * envelope[late])
plotting.show(
    figure,
    "The answers of three modes to an impulse, N = 64, with imaginary "
    "parts of lambda 0.9, 3.7 and 16.7. Each is a damped oscillation and "
    "lies on one half of B times the exponential of lambda tau. The "
    "fastest one follows for two units of time and is then damped more "
    "strongly than the exponential.",
)

# %% [markdown]
# HiPPO's memory, seen in these coordinates, is a bank of damped oscillations: a Fourier transform of the recent past that forgets. Where the factor one half comes from is a question of the exercises; that the low-rank part can
# nearly be replaced by it is where chapter 11 will begin.
#
# ## Half the state is enough
#
# In the new coordinates the state has $N$ complex numbers, twice as much to store as before. But half of them say nothing new. Let $u$, $x$ and $C$ be real. Then
#
# $$ x_U = U^* x = \begin{pmatrix} V^* x \\ V^\top x \end{pmatrix} = \begin{pmatrix} x_V \\ \overline{x_V} \end{pmatrix}, \qquad x_V = V^* x, $$ (nplr-half-state)
#
# as the conjugate of $V^* x$ is $V^\top \bar x = V^\top x$. (Here the bar is a conjugate.) The output needs $x_V$ alone,
#
# $$ y = C_U\, x_U = C_V\, x_V + \overline{C_V}\, \overline{x_V} = 2 \operatorname{Re}(C_V\, x_V), $$
#
# because a number plus its conjugate is twice its real part. The same goes for $P_U^* x_U = 2 \operatorname{Re}(P_V^* x_V)$: one real number, with one conjugate, that of $P$. So the upper half of $x_U' = \Lambda_U x_U - P_U P_U^* x_U + B_U u$ is
#
# $$ \begin{aligned}
# x_V' &= \Lambda\, x_V - P_V \cdot 2 \operatorname{Re}(P_V^* x_V) + B_V\, u, \\
# y &= 2 \operatorname{Re}(C_V\, x_V), \qquad x = 2 \operatorname{Re}(V\, x_V),
# \end{aligned} $$ (nplr-half)
#
# an equation in $x_V$ alone. Here $\Lambda$ is the half with positive imaginary parts. $N/2$ complex numbers are $N$ real ones, as many as $x$ had: nothing is lost, and nothing is stored twice. Which member of a pair is kept makes no
# difference.
#
# The product with $A$ got cheaper on the way: a few products for each of $N/2$ modes instead of $N^2$ in all. Mind the real part in the middle. It is what couples the pair; a code that writes $P_V\,(P_V^* x_V)$ there has dropped the partner.

# %%
N = 16
A, B = legs(N)
Lambda, P_V, B_V, V = dplr_legs(N)
rng = np.random.default_rng(5)
x, C, u = rng.normal(size=N), rng.normal(size=N), rng.normal()
x_V = V.conj().T @ x
np.testing.assert_allclose(2 * (V @ x_V).real, x, rtol=0, atol=1e-13)
np.testing.assert_allclose(
    2 * ((C @ V) @ x_V).real, C @ x, rtol=0, atol=1e-12
)
projection = 2 * (P_V.conj() @ x_V).real
rate = Lambda * x_V - P_V * projection + B_V * u
direct = V.conj().T @ (A @ x + B * u)
assert np.abs(rate - direct).max() < 1e-12 * np.abs(direct).max()
without_partner = Lambda * x_V - P_V * (P_V.conj() @ x_V) + B_V * u
assert np.abs(without_partner - direct).max() > 0.01 * np.abs(direct).max()

# %% [markdown]
# (In *time* a pair is twice a real part. In *frequency* it is not, as chapter 6 shows: there a mode and its partner share the same $2is$ in their denominators, and each of the four sums must be completed with the partners before they are multiplied.)
#
# ## The kernel of HiPPO, at last
#
# Everything is together. Real $A$, $B$ and a random real row $C$, with $N = 64$ and $L = 1024$. On one side the powers of chapter 2. On the other the new coordinates, chapter 5's $\tilde C = C (I - \bar A^L)$, which
# becomes $\tilde C V$ like every row, and chapter 7's kernel.

# %%
N, L = 64, 1024
A, B = map(jnp.asarray, legs(N))
Lambda, P_V, B_V, V = map(jnp.asarray, dplr_legs(N))
C = jnp.asarray(np.random.default_rng(6).normal(size=N))
for step in (1 / L, 0.1):
    Ab, Bb = ssm.discretize(A, B, step)
    K = ssm.kernel_by_powers(Ab, Bb, C, L)
    C_tilde_V = (C - C @ jnp.linalg.matrix_power(Ab, L)) @ V
    K_half = dplr.kernel_dplr(Lambda, P_V, P_V, B_V, C_tilde_V, step, L)
    assert K_half.dtype == jnp.float64
    assert largest_error(K_half, K) < 1e-12
# C_tilde can also be had in the new coordinates alone:
in_half = generating.to_tilde(C @ V, Lambda, P_V, P_V, step, L)
assert largest_error(in_half, C_tilde_V) < 1e-11
powers = L * N**2
cauchy = 4 * (L // 2 + 1) * N
transform = int(L * np.log2(L))
print("two steps: the same kernel, to 1e-12 of its largest value")
print(f"powers: {powers:,} products, {L} steps one after the other")
print(
    f"four sums: {cauchy:,} complex quotients; "
    f"inverse FFT: about {transform:,}"
)

# %% [markdown]
# Four million products in a chain of 1024 dependent steps became 131 thousand quotients that can all be computed at the same time, and one FFT. The count fell by the factor $N/2$, since $L N^2$ became $4 \cdot \frac L2 \cdot N$ (chapter 7's gain of $N/4$, doubled by half the frequencies). (A complex quotient costs several
# real products; it is the order in $N$ that has changed.) The coordinates are computed once, when a layer is made, and never again.
#
# ## It cannot explode
#
# The split {eq}`nplr-split` says one thing more, for free. Add $A = -\frac12 I + S - P P^\top$ and its transpose. The skew part cancels:
#
# $$ A + A^\top = -I - 2 P P^\top = -I - B B^\top , $$ (nplr-dissipation)
#
# with $B = \sqrt2\,P$. Without input, the squared length of the state changes by
#
# $$ \begin{aligned}
# \frac{d}{dt} |x|^2 &= x^\top x' + x'^\top x = x^\top (A + A^\top)\, x \\
# &= -|x|^2 - (B^\top x)^2 \le -|x|^2 ,
# \end{aligned} $$
#
# so $|x(t)| \le e^{-t/2} |x(0)|$. This is more than the eigenvalues say. They promise that the state fades in the end, and a matrix that is not normal may let it grow before, as chapter 2 has seen. Here the length falls at
# every moment.
#
# In the new coordinates it reads $A_U + A_U^* = \Lambda_U + \bar\Lambda_U - 2\, P_U P_U^*$ (conjugates as marked). Suppose training moves $\Lambda$ and $P$. As long as the real parts of $\Lambda$ are negative and *the same* $P$ stands on both sides, the right side stays
# negative, and the system stays stable whatever was learned. With a free $Q$ that is lost, which is why the layers of Part III tie $Q = P$.

# %%
A, P, S = nplr_legs(64)
_, B = legs(64)
expected = -np.eye(64) - np.outer(B, B)
np.testing.assert_allclose(A + A.T, expected, rtol=0, atol=1e-12)
np.testing.assert_allclose(-np.outer(B, B), -2 * np.outer(P, P), rtol=1e-14)
x = np.random.default_rng(7).normal(size=64)
for t in (0.01, 0.1, 1.0, 3.0):
    later = jax.scipy.linalg.expm(t * jnp.asarray(A)) @ x
    assert jnp.linalg.norm(later) <= np.exp(-t / 2) * np.linalg.norm(x)
# random Lambda with Re < 0 and random P, tied: never an unstable one
rng = np.random.default_rng(8)
draw = lambda: rng.normal(size=8) + 1j * rng.normal(size=8)
tied, free = [], []
for _ in range(200):
    half = draw()
    lam, P, Q = -0.1 - np.abs(half.real) + 3j * half.imag, draw(), draw()
    for spectrum, right in ((tied, P), (free, Q)):
        A_U = np.diag(both(lam)) - np.outer(both(P), both(right).conj())
        spectrum.append(np.linalg.eigvals(A_U).real.max())
assert max(tied) < 0
unstable = int(np.sum(np.array(free) > 0))
print(
    f"unstable of 200 random systems: tied {sum(np.array(tied) > 0)}, ",
    end="",
)
print(f"free Q {unstable}")
assert unstable > 100

# %% [markdown]
# ## What we have, and what is missing
#
# | | HiPPO | shape | new coordinates | shape | how |
# |---|---|---|---|---|---|
# | state | $x$, real | $N$ | $x_V$, complex | $N/2$ | $V^* x$, and back $2 \operatorname{Re} V x_V$ |
# | matrix | $A$ | $N \times N$ | $\Lambda$, with $\operatorname{Re} \Lambda = -\frac12$ | $N/2$ | `eigh` of $-iS$ |
# | low rank | $P_n = \sqrt{n + \frac12}$ | $N$ | $P_V > 0$ | $N/2$ | $V^* P$ |
# | input | $B_n = \sqrt{2n+1}$ | $N$, a column | $B_V = \sqrt2\, P_V$ | $N/2$ | $V^* B$ |
# | output | $C$ | $N$, a row | $C_V$ | $N/2$ | $C V$, no conjugate |
#
# * Diagonalising HiPPO is writing Legendre's polynomials in powers. It costs three quarters of a digit for each state, and from $N = 24$ on nothing is left.
# * One column times one row, added, makes HiPPO normal: $A = -\frac12 I + S - P P^\top$. Its normal part has unitary eigenvectors, which cost no digit.
# * Modes come in conjugate pairs, and one of each is enough.
# * The same split proves that the state never grows by itself.
#
# From here on the subscripts are dropped: $\Lambda$, $P$, $B$ and $C$ are those of the new coordinates, one of each pair.
#
# With the kernel a whole sequence can be processed at once, if it is there. When samples come one at a time, we want the recurrence of chapter 1 back, and its $\bar A$ has an inverse in it, of an $N \times N$ matrix.
# [Chapter 9](09_recurrence.ipynb) does without.
#
# ## Exercises

# %% [markdown]
# ````{exercise} Two states, all by hand
# :label: nplr-two
#
# For $N = 2$ the chapter found $\lambda = -\frac12 \pm \frac{\sqrt3}{2} i$ and $P_V = 1$. Write down $A_U$ and compute its eigenvalues from trace and determinant. Then compute the condition number of HiPPO's own two
# eigenvectors, scaled to length one, exactly.
# ````

# %% [markdown]
# ````{solution-start} nplr-two
# :class: dropdown
# ````
# $A_U = \begin{pmatrix} \lambda - 1 & -1 \\ -1 & \bar\lambda - 1 \end{pmatrix}$. The trace is $2 \operatorname{Re} \lambda - 2 = -3$. The determinant is $(\lambda - 1)(\bar\lambda - 1) - 1 = |\lambda|^2 - 2 \operatorname{Re}\lambda + 1 - 1 = 1 + 1 = 2$.
# The numbers with sum $-3$ and product $2$ are $-1$ and $-2$, HiPPO's eigenvalues.
#
# The eigenvectors of length one are $\frac12 (1, -\sqrt3)$ for $-1$ and $(0, 1)$ for $-2$. Their inner product is $-\frac{\sqrt3}{2}$, so $E^\top E = \begin{pmatrix} 1 & -\frac{\sqrt3}{2} \\ -\frac{\sqrt3}{2} & 1 \end{pmatrix}$
# with the eigenvalues $1 \pm \frac{\sqrt3}{2}$. These are the squares of the largest and the smallest stretch, and $|E^{-1}|$ is one over the smallest, so its square is $\frac{2 + \sqrt3}{2 - \sqrt3} = (2 + \sqrt3)^2$ and $\operatorname{cond}(E) = 2 + \sqrt3$, between the bounds 2 and 4.

# %%
lam = -0.5 + 0.5j * np.sqrt(3)
A_U = np.array([[lam - 1, -1], [-1, np.conj(lam) - 1]])
eigenvalues = np.sort(np.linalg.eigvals(A_U).real)
np.testing.assert_allclose(eigenvalues, [-2, -1], rtol=1e-12)
E = np.array([[0.5, 0], [-np.sqrt(3) / 2, 1]])
np.testing.assert_allclose(legs(2)[0] @ E, E * [-1, -2], rtol=0, atol=1e-14)
np.testing.assert_allclose(np.linalg.cond(E), 2 + np.sqrt(3), rtol=1e-12)

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Another window, another rank
# :label: nplr-legt
#
# HiPPO has a sibling that remembers a window of fixed length, LegT {cite:p}`gu2020hippo`, {cite:p}`voelker2019lmu`. Up to a factor its matrix is $A_{nm} = -\sqrt{(2n+1)(2m+1)}$ for $n \ge m$, and for $n < m$ the same times $(-1)^{n-m}$. What must be
# added to make it skew, and what is the rank of that?
# ````

# %% [markdown]
# ````{solution-start} nplr-legt
# :class: dropdown
# ````
# A matrix becomes skew when its symmetric part $\frac12 (A + A^\top)$ is taken away. At $(n, m)$ with $n \neq m$ it is $-\frac12 \sqrt{(2n+1)(2m+1)}\, \big( 1 + (-1)^{n-m} \big)$: minus the root where $n$ and $m$ are both even or both odd, zero
# otherwise. On the diagonal it is $-(2n+1)$, which fits. So it is $-(a a^\top + b b^\top)$, where $a_n = \sqrt{2n+1}$ for even $n$ and zero for odd ones, and $b$ the other way round. What has to be added has rank two: normal plus low rank again, with
# two columns, as the S4 paper says of this matrix (theorem 1).

# %%
N = 12
n = np.arange(N)
root = np.sqrt(2 * n + 1)
sign = np.where(n[:, None] >= n, 1, (-1) ** np.abs(n[:, None] - n))
A = -np.outer(root, root) * sign
a, b = root * (n % 2 == 0), root * (n % 2 == 1)
skew = A + np.outer(a, a) + np.outer(b, b)
np.testing.assert_allclose(skew, -skew.T, rtol=0, atol=1e-13)
assert np.linalg.matrix_rank((A + A.T) / 2) == 2
assert not_normal(A) > 0.1 and not_normal(skew) < 1e-13

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} The step does not let it grow either
# :label: nplr-contraction
#
# Show that the bilinear $\bar A$ of HiPPO never lengthens a state, $|\bar A x| \le |x|$, for every step. What does forward Euler do?
# ````

# %% [markdown]
# ````{solution-start} nplr-contraction
# :class: dropdown
# ````
# Let $v = \bar A x$, which means $v - \frac\Delta2 A v = x + \frac\Delta2 A x$, or $v - x = \frac\Delta2 A\,(v + x)$. Multiply from the left by $(v + x)^\top$. On the left stands $(v + x)^\top (v - x) = |v|^2 - |x|^2$. On the right,
# $\frac\Delta2\, (v + x)^\top A\, (v + x)$. A number is its own transpose, so this is $\frac\Delta4\, (v+x)^\top (A + A^\top)(v + x)$, which is never positive. Hence $|v| \le |x|$.
#
# Forward Euler has $|x + \Delta A x|^2 = |x|^2 + \Delta\, x^\top (A + A^\top)\, x + \Delta^2 |A x|^2$, and the last term wins unless the step is small: with $N = 64$ and $\Delta = 0.01$ it stretches some state.

# %%
A, B = map(jnp.asarray, legs(64))
for step in (0.001, 0.01, 0.1, 1.0, 10.0):
    Ab, _ = ssm.discretize(A, B, step)
    assert np.linalg.norm(Ab, 2) <= 1 + 1e-12  # the largest stretch
euler, _ = ssm.discretize(A, B, 0.01, "euler")
print(f"forward Euler stretches by up to {np.linalg.norm(euler, 2):.0f}")
assert np.linalg.norm(euler, 2) > 10

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Dropping the low rank
# :label: nplr-drop
#
# Somebody finds the low-rank part too much work and keeps only the normal matrix $-\frac12 I + S$, with the same $B$. How wrong is the output for a smooth input? Then halve $B$ and look again. Explain. *Hint:* what does $B^\top x$ mean, if the state is read as in
# chapter 3?
# ````

# %% [markdown]
# ````{solution-start} nplr-drop
# :class: dropdown
# ````
# $B^\top x = \sum_n \sqrt{2n+1}\, x_n = \sum_n x_n\, p_n(1)$ is the memory, read at $r = 1$: what it believes the *present* to be. For a smooth input and a good memory that is close to $u$. So the low-rank term is
#
# $$ -P P^\top x = -\tfrac12 B\, (B^\top x) \approx -\tfrac12 B\, u , $$
#
# and $A x + B u \approx \big( {-\frac12} I + S \big)\, x + \frac12 B u$. The low-rank part, on good days, does nothing but halve $B$. Dropping it without halving gives about twice the output. With the half it
# is close, and closer for larger $N$. This is one of the diagonal models of chapter 11 {cite:p}`gu2022s4d`. For noise, where the memory cannot know the present, the two remain different.

# %%
step, L = 0.01, 1000
t = step * (np.arange(L) + 0.5)
smooth = np.sin(t) + 0.5 * np.sin(2.3 * t) ** 2


def first_states(A, B, u):
    """x_0 ... x_4 over time, bilinear.   u: (L,)  ->  (L, 5)"""
    Ab, Bb = ssm.discretize(jnp.asarray(A), jnp.asarray(B), step)
    Ab, Bb = np.asarray(Ab), np.asarray(Bb)
    x, states = np.zeros(len(B)), []
    for u_k in u:
        x = Ab @ x + Bb * u_k
        states.append(x[:5])
    return np.array(states)


def relative(y, right):
    """|y - right| / |right|"""
    return np.linalg.norm(y - right) / np.linalg.norm(right)


for N in (8, 16, 64):
    A, P, S = nplr_legs(N)
    _, B = legs(N)
    normal = -0.5 * np.eye(N) + S
    right = first_states(A, B, smooth)
    whole = relative(first_states(normal, B, smooth), right)
    half = relative(first_states(normal, B / 2, smooth), right)
    print(
        f"N = {N:2d}: without P P^T {whole:.2f}, and with B / 2 {half:.3f}"
    )
    assert 0.8 < whole < 1.2 and half < 0.2
assert half < 0.02
noise = np.random.default_rng(9).normal(size=L)
noisy = relative(
    first_states(normal, B / 2, noise), first_states(A, B, noise)
)
assert noisy > 0.3

# %% [markdown]
# ````{solution-end}
# ````
