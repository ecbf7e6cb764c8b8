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
# # State space models
#
# **A system changes at every moment, a network sees one number after another. How does a differential equation become a recurrence, and what is lost on the way?**
#
# This chapter starts from a mass on a spring and ends with four ways to turn any linear system into a step that a program can run, each derived, measured and told apart from the others.
# It needs linear algebra with complex eigenvalues, the product rule, and the series of $e^x$ and of $1/(1-x)$. What JAX does is said where it is first used; the [primer](00_primer.ipynb) has the rest.

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
import scipy.integrate
import scipy.linalg
import scipy.signal

from annotated_s4 import plotting, ssm

plotting.use_style()

# %% [markdown]
# ## A mass on a spring
#
# What does a system have to remember so that its past can be forgotten?
#
# A mass is held by a spring. Pull it and let go: it swings, and friction makes the swings smaller. The whole chapter uses this one system, since everything about it can be worked out on paper.
#
# Call its position $q$, with $q = 0$ where it is at rest. Three things accelerate it: the spring pulls it back, the more the further it is out; friction brakes it, the more the faster it is;
# and we may push it with a force $u(t)$. With a mass of 1,
#
# $$ q'' = -\omega_0^2\, q - 2\gamma\, q' + u . $$ (ssm-newton)
#
# Here $\omega_0$ is the natural frequency, $\gamma$ the damping, and a prime is a derivative with respect to time. The past enters only through where the mass is and how fast it moves: two springs that agree in $q$ and $q'$ now, and are pushed alike
# from now on, move alike for ever. So these two numbers are the **state**
#
# $$ x = \begin{pmatrix} q \\ q' \end{pmatrix}, \qquad x' = \begin{pmatrix} q' \\ q'' \end{pmatrix} . $$
#
# The first row of $x'$ is the second entry of $x$. The second row is the law of motion {eq}`ssm-newton`, written with the entries of $x$. Together they are one equation with matrices, and reading the position off is another:
#
# $$ x' = A x + B u, \qquad y = C x, $$ (ssm-continuous)
#
# $$ A = \begin{pmatrix} 0 & 1 \\ -\omega_0^2 & -2\gamma \end{pmatrix}, \quad B = \begin{pmatrix} 0 \\ 1 \end{pmatrix}, \quad C = \begin{pmatrix} 1 & 0 \end{pmatrix} . $$
#
# This is a **state space model**: $u$ goes in, $y$ comes out, and what lies between them is the state. $A$ says how the state changes by itself, $B$ how the input enters it, $C$ how the output is read from it. Call $N$ the number of entries of the state, here 2; $I$ is the $N \times N$ identity. A longer state makes a larger $A$, and nothing else changes.
# In code all three are arrays, $B$ and $C$ both of shape `(N,)`.


# %%
def spring(frequency, damping):
    """q'' = -frequency^2 q - 2 damping q' + u  as  x' = A x + B u,  y = C x.

    ->  A (2, 2), B (2,), C (2,)
    """
    A = jnp.array([[0.0, 1.0], [-(frequency**2), -2 * damping]])
    return A, jnp.array([0.0, 1.0]), jnp.array([1.0, 0.0])


frequency, damping = 2.0, 0.2
A, B, C = spring(frequency, damping)

q, velocity, u = 0.3, -1.0, 0.5
acceleration = -(frequency**2) * q - 2 * damping * velocity + u
np.testing.assert_allclose(
    A @ jnp.array([q, velocity]) + B * u, [velocity, acceleration], rtol=0, atol=1e-15
)

# %% [markdown]
# Before we solve anything, a guess. With $\omega_0 = 2$ and no friction the motion would be a cosine of $2t$: one swing takes $2\pi/2$, about 3.1 seconds. With friction the swings shrink. If they do so like $e^{-\gamma t}$, then with $\gamma = 0.2$
# they are down to $e^{-1}$, a little over a third, after 5 seconds.

# %% [markdown]
# ## The exact solution
#
# Where is the system at time $t$, exactly?
#
# Start with a state of one number and no input: $x' = \lambda x$ has the solution $e^{\lambda t} x(0)$. For a matrix the same series works. The **matrix exponential** is
#
# $$ e^{tA} = I + tA + \tfrac{1}{2}\, t^2 A^2 + \tfrac{1}{6}\, t^3 A^3 + \dots $$ (ssm-exponential)
#
# The factorials in the denominators win against the powers, so the sum converges for every $A$ and $t$. Differentiate it with respect to $t$, term by term:
#
# $$ \frac{d}{dt}\, e^{tA} = A + t A^2 + \tfrac{1}{2}\, t^2 A^3 + \dots = A\, e^{tA} . $$
#
# So $x(t) = e^{tA} x(0)$ has the derivative $x' = A x$ and the right start, $e^{0A} = I$. Read $e^{tA}$ as "carry a state $t$ seconds on". Only powers of $A$ are in it, so it commutes with $A$.
#
# With an input, ask what each part of the past has become by now. Stand at the time $t$ and look back: $\tau$ is how long ago something was. The state $\tau$ ago, carried on to now as if no input had come since, is $e^{\tau A} x(t - \tau)$.
# How does this depend on $\tau$? By the product rule, and with $x' = Ax + Bu$ at the time $t - \tau$,
#
# $$ \begin{aligned}
# \frac{d}{d\tau} \left[ e^{\tau A} x(t-\tau) \right]
# &= e^{\tau A} A\, x(t-\tau) - e^{\tau A} x'(t-\tau) \\
# &= e^{\tau A} \left[ A x - A x - B u \right]_{\text{at } t-\tau} \\
# &= -e^{\tau A} B\, u(t-\tau) .
# \end{aligned} $$
#
# The state has dropped out; only the input is left. Integrate both sides over $\tau$ from 0 to some $\Delta$. On the left stands the value at $\tau = \Delta$ less the value at $\tau = 0$, which is $x(t)$ itself:
#
# $$ e^{\Delta A} x(t-\Delta) - x(t) = -\int_0^{\Delta} e^{\tau A} B\, u(t-\tau)\, d\tau . $$
#
# Solve for $x(t)$:
#
# $$ x(t) = e^{\Delta A} x(t-\Delta) + \int_0^{\Delta} e^{\tau A} B\, u(t-\tau)\, d\tau . $$ (ssm-exact)
#
# This is called **variation of constants**. In words: the state now is an old state carried on, and everything that has come in since, each piece carried on from when it came. Nothing is approximated. With $\Delta = t$ it starts from $x(0)$.
#
# To check it, take the integral with a quadrature rule and compare with SciPy's solver for differential equations, which knows nothing of exponentials.

# %%
dense_A, dense_B, dense_C = (np.asarray(M) for M in (A, B, C))


def state_at(t, x_start, u):
    """x(t) = e^{tA} x(0) + integral_0^t e^{age A} B u(t - age) d age.   ->  (2,)"""
    nodes, weights = np.polynomial.legendre.leggauss(40)  # on [-1, 1]
    ages = t * (nodes + 1) / 2
    entered = [scipy.linalg.expm(age * dense_A) @ dense_B * u(t - age) for age in ages]
    integral = t / 2 * weights @ np.array(entered)
    return scipy.linalg.expm(t * dense_A) @ x_start + integral


def push(t):
    return np.sin(3 * t)


def slope(t, x):
    return dense_A @ x + dense_B * push(t)


x_start = np.array([1.0, 0.0])
solver = scipy.integrate.solve_ivp(slope, (0, 5), x_start, rtol=1e-11, atol=1e-12)
by_formula = state_at(5.0, x_start, push)
np.testing.assert_allclose(by_formula, solver.y[:, -1], rtol=0, atol=1e-8)
print(f"position after five seconds: {by_formula[0]:.3f}")

# %% [markdown]
# ### The spring in closed form
#
# For the spring even the exponential can be written out. The diagonal of $A$ is $0, -2\gamma$, with the mean $-\gamma$. Take this mean out of $A$ and square what is left:
#
# $$ \begin{aligned}
# (A + \gamma I)^2 &= \begin{pmatrix} \gamma & 1 \\ -\omega_0^2 & -\gamma \end{pmatrix}^{\!2} \\
# &= \begin{pmatrix} \gamma^2 - \omega_0^2 & \gamma - \gamma \\ -\omega_0^2\gamma + \gamma\omega_0^2 & -\omega_0^2 + \gamma^2 \end{pmatrix} \\
# &= -\omega_\gamma^2\, I, \qquad \omega_\gamma = \sqrt{\omega_0^2 - \gamma^2} .
# \end{aligned} $$
#
# We take the damping to be weak, $\gamma < \omega_0$, so that $\omega_\gamma$ is a real number. The square of this matrix is then a negative number times $I$, as if it were $i\omega_\gamma$. Sort its exponential series into even and odd powers, and replace each square:
#
# $$ \begin{aligned}
# e^{t(A + \gamma I)} &= \left( 1 - \tfrac12 \omega_\gamma^2 t^2 + \dots \right) I \\
# &\quad + \left( t - \tfrac16 \omega_\gamma^2 t^3 + \dots \right) (A + \gamma I) \\
# &= \cos(\omega_\gamma t)\, I + \frac{\sin(\omega_\gamma t)}{\omega_\gamma}\, (A + \gamma I) .
# \end{aligned} $$
#
# Since $\gamma I$ commutes with everything, $e^{t(A + \gamma I)} = e^{\gamma t} e^{tA}$. Divide by $e^{\gamma t}$:
#
# $$ e^{tA} = e^{-\gamma t} \left[ \cos(\omega_\gamma t)\, I + \frac{\sin(\omega_\gamma t)}{\omega_\gamma} (A + \gamma I) \right] . $$ (ssm-closed)
#
# The guess was right: swings of the frequency $\omega_\gamma$, here almost $\omega_0$, under an envelope $e^{-\gamma t}$.
#
# A constant force is no new problem. It moves the place of rest to the state where $x' = 0$, that is $A x_{\text{rest}} + B u = 0$: the mass stands still at $q = u / \omega_0^2$. Put $B u = -A x_{\text{rest}}$ into the
# equation of motion: the distance from that place obeys $(x - x_{\text{rest}})' = A x + B u = A (x - x_{\text{rest}})$, the equation without a force. So
#
# $$ x(t) = x_{\text{rest}} + e^{tA} \left( x(0) - x_{\text{rest}} \right) . $$ (ssm-step-force)

# %%
damped_frequency = np.sqrt(frequency**2 - damping**2)


def motion(t, x_start, force=0.0):
    """x(t) = x_rest + e^{tA} (x(0) - x_rest), the spring.   t: (L,)  ->  (L, 2)"""
    rest = np.array([force / frequency**2, 0.0])
    away = x_start - rest
    turned = (dense_A + damping * np.eye(2)) @ away / damped_frequency
    angle = damped_frequency * t
    swing = np.outer(np.cos(angle), away) + np.outer(np.sin(angle), turned)
    return rest + np.exp(-damping * t)[:, None] * swing


times = np.linspace(0, 12, 241)
by_expm = np.array([scipy.linalg.expm(t * dense_A) @ x_start for t in times])
np.testing.assert_allclose(motion(times, x_start), by_expm, rtol=0, atol=1e-12)
after_push = state_at(5.0, x_start, lambda t: 1.5)
np.testing.assert_allclose(
    motion(np.array([5.0]), x_start, 1.5)[0], after_push, rtol=0, atol=1e-12
)
print(f"one swing takes {2 * np.pi / damped_frequency:.2f} s")
print(f"after 5 s the envelope is at {np.exp(-damping * 5):.2f}")

# %%
figure, axes = plt.subplots()
axes.plot(times, motion(times, x_start)[:, 0], label="pulled to 1 and let go")
axes.plot(
    times,
    motion(times, np.zeros(2), force=2.0)[:, 0],
    label="pushed with a force of 2 from rest",
)
axes.plot(
    times,
    np.exp(-damping * times),
    color="grey",
    linestyle=":",
    linewidth=1.2,
    label="envelope of the first",
)
axes.plot(times, -np.exp(-damping * times), color="grey", linestyle=":", linewidth=1.2)
axes.set(xlabel="time t in seconds", ylabel="position q", ylim=(-1.1, 1.75))
axes.legend(loc="upper right", ncols=2)
plotting.show(
    figure,
    "The position of the mass over twelve seconds. Let go at 1, it swings about zero nearly four times, each swing smaller, inside an exponential envelope. "
    "Pushed with a constant force of 2, it swings in the same rhythm about its new place of rest, one half.",
)

# %% [markdown]
# ## One number a step
#
# A network does not get a function $u(t)$; it gets numbers $u_0, u_1, u_2, \dots$, one every $\Delta$ seconds. Which time does each of them belong to?
#
# This has to be fixed once, since two programs that are both right disagree if one counts a step later. Two uses of one word first: *the step* is the length $\Delta$; *step $k$* is the $k$-th interval, counted from 0. In this book **step $k$ runs from $k\Delta$ to $(k+1)\Delta$**, and the number $u_k$ stands for the input during that step.
# The state $x_k$ and the output $y_k$ belong to the step's *end*. Call that time
#
# $$ t_k = (k+1)\,\Delta, \qquad t_{-1} = 0 . $$
#
# So $x_{-1}$ is the state before the first input, and $x_k$ already contains $u_k$. What we look for are two fixed arrays that make one step out of the differential equation:
#
# $$ x_k = \bar A\, x_{k-1} + \bar B\, u_k, \qquad y_k = C x_k, \qquad x_{-1} = 0 . $$ (ssm-recurrence)
#
# This is a **recurrence**. A sequence has $L$ steps. The recurrence needs one matrix-vector product a step, and it needs nothing of the past but $x_{k-1}$. If the mass was pulled before we came, $x_{-1}$ is that state instead of zero.

# %%
step, held = 0.6, np.array([2.0, 2.0, -1.0, 0.5, 3.0, 0.0, 0.0])
fine = np.linspace(0, step, 31)
pieces, x = [], np.zeros(2)
for u_k in held:
    pieces.append(motion(fine, x, force=u_k))
    x = pieces[-1][-1]

figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(6.4, 3.8))
edges = step * np.arange(len(held) + 1)
above.stairs(held, edges, baseline=None, linewidth=1.8)
for k, u_k in enumerate(held):
    above.text(edges[k] + step / 2, u_k + 0.25, f"$u_{k}$", ha="center")
above.set(ylabel="input u", ylim=(-1.6, 4.2))
below.plot(
    np.concatenate([k * step + fine for k in range(len(held))]),
    np.concatenate(pieces)[:, 0],
    label="q(t)",
)
below.plot(
    edges[1:],
    [piece[-1, 0] for piece in pieces],
    "o",
    color="black",
    label="$y_k = q(t_k)$",
)
for k, piece in enumerate(pieces):
    below.annotate(
        f"$y_{k}$",
        (edges[k + 1], piece[-1, 0]),
        xytext=(7, 5) if k in (2, 6) else (-3, -16),
        textcoords="offset points",
    )
below.set(
    xlabel="time t in seconds",
    ylabel="position q",
    xticks=edges,
    ylim=(-0.85, 1.4),
    xlim=(-0.1, 4.5),
)
below.legend(loc="upper right", ncols=2)
plotting.show(
    figure,
    "Above, an input that is held: seven flat pieces u_0 to u_6, each one step long. Below, the position of the mass moves smoothly; at the end of each step "
    "a dot marks the output: y_0 stands at the end of the step in which u_0 acts, and so on.",
)

# %% [markdown]
# ## Four ways to take an area
#
# What are $\bar A$ and $\bar B$? Integrate $x' = A x + B u$ over one step, with the input $u_k$ that stands for that step:
#
# $$ x(t_k) - x(t_{k-1}) = \int_{t_{k-1}}^{t_k} \left[ A\, x(t) + B\, u_k \right] dt . $$ (ssm-area)
#
# On the right is the area under the curve $x'(t)$, over an interval of the width $\Delta$. The trouble is that $x(t)$ inside the step is what we do not know. Each method below is an answer to one question: *which height do we give this area?*

# %%
start, end = 0.9, 1.7
shown, inside = np.linspace(0.6, 2.0, 80), np.linspace(start, end, 40)


def speed(t):  # lifted by 2.2, so that the area lies above the axis
    return motion(np.atleast_1d(t), x_start)[:, 1] + 2.2


heights = {
    "Euler: the left end": np.full(40, speed(start)),
    "backward Euler: the right end": np.full(40, speed(end)),
    "bilinear: the mean of both ends": np.linspace(speed(start), speed(end), 40)[:, 0],
    "zero-order hold: the curve itself": speed(inside),
}
figure, panels = plt.subplots(2, 2, sharex=True, sharey=True, figsize=(6.4, 4.2))
for axes, (name, height) in zip(panels.flat, heights.items(), strict=True):
    axes.fill_between(
        inside,
        height,
        color="#56B4E9",
        alpha=0.35,
        hatch="///",
        edgecolor="#0072B2",
        linewidth=1.2,
    )
    axes.plot(shown, speed(shown), color="black", linestyle="-")
    axes.set(
        xticks=[start, end],
        xticklabels=["$t_{k-1}$", "$t_k$"],
        ylim=(0, 3.4),
        yticks=[],
    )
    axes.text(0.03, 0.97, name, transform=axes.transAxes, va="top")
    axes.grid(False)
for axes in panels[:, 0]:
    axes.set_ylabel("$x'(t)$")
plotting.show(
    figure,
    "Four panels with the same rising curve x'(t) over one step. The hatched area is a rectangle as high as the left end (too small here), a rectangle as high as the right end (too large), "
    "a trapezoid between both ends (nearly right), and the area under the curve itself.",
)

# %% [markdown]
# Each of the four functions below takes `A` of shape `(N, N)`, `B` of shape `(N,)` and the step.
#
# **Euler** takes the height at the left end, where $x = x_{k-1}$ is known:
#
# $$ \begin{aligned}
# x_k &= x_{k-1} + \Delta \left( A x_{k-1} + B u_k \right) \\
# &= \left( I + \Delta A \right) x_{k-1} + \Delta B\, u_k .
# \end{aligned} $$ (ssm-euler)


# %%
def euler(A, B, step):
    """Ab = I + step A,  Bb = step B.   ->  (N, N), (N,)"""
    return jnp.eye(len(A)) + step * A, step * B


# %% [markdown]
# **Backward Euler** takes the height at the right end, where the new state itself stands. It is then on both sides; bring it to one:
#
# $$ \begin{aligned}
# x_k &= x_{k-1} + \Delta \left( A x_k + B u_k \right) \\
# \left( I - \Delta A \right) x_k &= x_{k-1} + \Delta B\, u_k \\
# x_k &= \left( I - \Delta A \right)^{-1} x_{k-1} + \left( I - \Delta A \right)^{-1} \Delta B\, u_k .
# \end{aligned} $$ (ssm-backward)
#
# `jnp.linalg.solve(left, right)` is `left`$^{-1}$ `right`, computed without forming the inverse first.


# %%
def backward_euler(A, B, step):
    """Ab = (I - step A)^-1,  Bb = (I - step A)^-1 step B.   ->  (N, N), (N,)"""
    identity = jnp.eye(len(A))
    left = identity - step * A
    return jnp.linalg.solve(left, identity), jnp.linalg.solve(left, step * B)


# %% [markdown]
# **Bilinear** takes the mean of the two ends, the trapezoid. The input is $u_k$ at both:
#
# $$ \begin{aligned}
# x_k &= x_{k-1} + \tfrac{\Delta}{2} \left( A x_{k-1} + B u_k \right) + \tfrac{\Delta}{2} \left( A x_k + B u_k \right) \\
# \left( I - \tfrac{\Delta}{2} A \right) x_k &= \left( I + \tfrac{\Delta}{2} A \right) x_{k-1} + \Delta B\, u_k \\
# x_k &= \left( I - \tfrac{\Delta}{2} A \right)^{-1} \left( I + \tfrac{\Delta}{2} A \right) x_{k-1} \\
# &\quad + \left( I - \tfrac{\Delta}{2} A \right)^{-1} \Delta B\, u_k .
# \end{aligned} $$ (ssm-bilinear)
#
# It is the method of S4 {cite:p}`gu2022s4`, and signal processing knows it as Tustin's {cite:p}`astrom1997control`.


# %%
def bilinear(A, B, step):
    """Ab = (I - step/2 A)^-1 (I + step/2 A),  Bb = (I - step/2 A)^-1 step B."""
    identity = jnp.eye(len(A))
    left, right = identity - step / 2 * A, identity + step / 2 * A
    return jnp.linalg.solve(left, right), jnp.linalg.solve(left, step * B)


# %% [markdown]
# **Zero-order hold** takes the area exactly, on one condition: the input really is held at $u_k$ during the step. Then the exact solution {eq}`ssm-exact` with $t = t_k$ has a constant under its integral, which comes out:
#
# $$ x_k = e^{\Delta A} x_{k-1} + \left[ \int_0^{\Delta} e^{\tau A}\, d\tau\; B \right] u_k . $$ (ssm-zoh)
#
# So $\bar A = e^{\Delta A}$, and $\bar B$ is the bracket. How to compute the bracket? Since $A e^{\tau A}$ is the derivative of $e^{\tau A}$, multiplying by $A$ makes it one that can be taken:
#
# $$ A \int_0^{\Delta} e^{\tau A}\, d\tau = \int_0^{\Delta} \frac{d}{d\tau}\, e^{\tau A}\, d\tau = e^{\Delta A} - I, $$
#
# which gives $\bar B = A^{-1} (e^{\Delta A} - I) B$ if $A$ has an inverse. A mass without a spring has none ($\omega_0 = 0$ makes a column of zeros), and yet nothing is wrong with its motion. A better way treats the held input as one more entry of the state, one that does not change
# {cite:p}`vanloan1978integrals`:
#
# $$ \begin{pmatrix} x \\ u \end{pmatrix}' = \begin{pmatrix} A & B \\ 0 & 0 \end{pmatrix} \begin{pmatrix} x \\ u \end{pmatrix} . $$ (ssm-block)
#
# This larger system has no input, so the exponential of its block matrix carries it over the step. Its powers are
#
# $$ \begin{pmatrix} A & B \\ 0 & 0 \end{pmatrix}^{\!2} = \begin{pmatrix} A^2 & A B \\ 0 & 0 \end{pmatrix}, \qquad
# \begin{pmatrix} A & B \\ 0 & 0 \end{pmatrix}^{\!3} = \begin{pmatrix} A^3 & A^2 B \\ 0 & 0 \end{pmatrix}, \;\dots $$
#
# and the series of the exponential has in its upper row, on the left, $I + \Delta A + \frac12 \Delta^2 A^2 + \dots = e^{\Delta A}$, and on the right
#
# $$ \begin{aligned}
# \Delta B + \tfrac12 \Delta^2 A B + \tfrac16 \Delta^3 A^2 B + \dots
# &= \int_0^{\Delta} \left( I + \tau A + \tfrac12 \tau^2 A^2 + \dots \right) d\tau\; B \\
# &= \int_0^{\Delta} e^{\tau A}\, d\tau\; B .
# \end{aligned} $$
#
# Both arrays stand in the upper rows of one exponential, and no inverse is needed.


# %%
def zoh(A, B, step):
    """exp(step [[A, B], [0, 0]]) = [[Ab, Bb], [0, 1]].   ->  Ab (N, N), Bb (N,)"""
    N = len(A)
    block = jnp.zeros((N + 1, N + 1)).at[:N, :N].set(A).at[:N, N].set(B)
    power = jax.scipy.linalg.expm(step * block)
    return power[:N, :N], power[:N, N]


# %% [markdown]
# (`block.at[...].set(...)` is how JAX writes into an array: its arrays never change, so this makes a new one.)
#
# The four under one name, as the package has them:

# %%
methods = {f.__name__: f for f in (euler, backward_euler, bilinear, zoh)}


def discretize(A, B, step, method="bilinear"):
    """Ab (N, N) and Bb (N,) of x_k = Ab x_{k-1} + Bb u_k.

    A: (N, N), B: (N,), step: a number, in the time unit of A
    """
    return methods[method](A, B, step)


# %% [markdown]
# First a case for paper: a state of one number with $x' = -x$, from 1, over a step of 0.1. Euler gives $1 - 0.1 = 0.9$, backward Euler $1/1.1 = 0.909$, bilinear $0.95/1.05 = 0.9048$. The truth is $e^{-0.1} = 0.9048$. And a mass without a spring or friction, pushed from rest
# with 1 for one step, moves by $\frac12 \Delta^2$ and gains the speed $\Delta$.

# %%
for method in methods:
    Ab, _ = discretize(jnp.array([[-1.0]]), jnp.array([1.0]), 0.1, method)
    print(f"{method:15s} {float(Ab[0, 0]):.5f}")
print(f"{'exact':15s} {np.exp(-0.1):.5f}")

Ab, Bb = discretize(*spring(frequency=0.0, damping=0.0)[:2], 0.6, "zoh")
np.testing.assert_allclose(Ab, [[1, 0.6], [0, 1]], rtol=0, atol=1e-15)
np.testing.assert_allclose(Bb, [0.6**2 / 2, 0.6], rtol=0, atol=1e-15)

# %% [markdown]
# Then all four against the package and against SciPy, on the spring and on a random system with $N = 5$. For the hold, also against the form with the inverse.

# %%
generator = np.random.default_rng(0)
random_A = jnp.array(generator.normal(size=(5, 5)) - 3 * np.eye(5))
random_B, random_C = (jnp.array(generator.normal(size=5)) for _ in range(2))
scipys_names = ["euler", "backward_diff", "bilinear", "zoh"]


def for_scipy(A, B, C):
    """A, B, C and a zero D as SciPy wants them: B a column, C a row."""
    A, B, C = (np.asarray(M) for M in (A, B, C))
    return A, B[:, None], C[None, :], np.zeros((1, 1))


for system in [(A, B, C), (random_A, random_B, random_C)]:
    a, b, _, _ = for_scipy(*system)
    for method, scipys_name in zip(methods, scipys_names, strict=True):
        Ab, Bb = discretize(*system[:2], 0.1, method)
        packages_Ab, packages_Bb = ssm.discretize(*system[:2], 0.1, method)
        np.testing.assert_allclose(Ab, packages_Ab, rtol=0, atol=1e-14)
        np.testing.assert_allclose(Bb, packages_Bb, rtol=0, atol=1e-14)
        scipys = scipy.signal.cont2discrete(for_scipy(*system), 0.1, scipys_name)
        np.testing.assert_allclose(Ab, scipys[0], rtol=0, atol=1e-13)
        np.testing.assert_allclose(Bb, scipys[1][:, 0], rtol=0, atol=1e-13)
    with_inverse = np.linalg.solve(a, (scipy.linalg.expm(0.1 * a) - np.eye(len(a))) @ b)
    np.testing.assert_allclose(Bb, with_inverse[:, 0], rtol=0, atol=1e-13)
print("two systems, four methods: chapter = package = SciPy")

# %% [markdown]
# ## The recurrence as a scan
#
# How do we run it over a whole sequence? The recurrence {eq}`ssm-recurrence` is a loop, and in NumPy it is one line inside a `for`. JAX has that loop as a function: `jax.lax.scan(advance, x, u)` calls `x, y_k = advance(x, u_k)` for each `u_k` in turn,
# hands the state from call to call, and returns the last state together with all `y_k`, stacked.


# %%
def recurrence(Ab, Bb, C, u, x):
    """x_k = Ab x_{k-1} + Bb u_k,  y_k = C x_k.

    u: (L,), x: the state before u_0 (N,)  ->  the last state (N,), y (L,)
    """

    def advance(x, u_k):
        x = Ab @ x + Bb * u_k
        return x, C @ x

    return jax.lax.scan(advance, x, u)


run = jax.jit(recurrence)

# %% [markdown]
# `jax.jit` turns a function into a compiled one: at the first call JAX runs it once with placeholders instead of numbers, writes down what happens to them, and compiles that; later calls with the same shapes use the compiled program.
# Without `scan`, a Python loop inside `jit` would be written down step by step, $L$ times; with it the body is written down once.
#
# Three checks: a loop in NumPy, the package, and SciPy's `dlsim`.

# %%
L = 200
u = generator.normal(size=L)
Ab, Bb = discretize(random_A, random_B, 0.1)
last, y = run(Ab, Bb, random_C, u, jnp.zeros(5))

ab, bb, c = (np.asarray(M) for M in (Ab, Bb, random_C))
x, looped = np.zeros(5), []
for u_k in u:
    x = ab @ x + bb * u_k
    looped.append(c @ x)
np.testing.assert_allclose(y, looped, rtol=0, atol=1e-13)
np.testing.assert_allclose(last, x, rtol=0, atol=1e-13)

packages_last, packages_y = ssm.scan_ssm(Ab, Bb, random_C, jnp.array(u))
np.testing.assert_allclose(y, packages_y, rtol=0, atol=1e-13)
np.testing.assert_allclose(last, packages_last, rtol=0, atol=1e-13)

# %% [markdown]
# ````{admonition} Trap: SciPy's input arrives one step late
# :class: warning
#
# `scipy.signal.dlsim` computes $y_k = C x_k$ *before* $x_{k+1} = \bar A x_k + \bar B u_k$: its $u_k$ reaches the output only at $k+1$. With $\bar A = \frac12$, $\bar B = C = 1$ and the input $1, 0, 0$ our recurrence gives $1, \frac12, \frac14$, and `dlsim` gives $0, 1, \frac12$.
# Both are right about their own convention. Compared entry by entry they look like a bug, as large as the signal itself. To line them up, give `dlsim` one more input at the end, any number, and drop its first output. (Its argument `x0` is the state before the first input, our $x_{-1}$.)
# ````


# %%
def dlsim(Ab, Bb, C, u, x=None):
    """y_k = (scipy.signal.dlsim's y_{k+1}).   u: (L,), x before u_0: (N,)  ->  y (L,)"""
    longer = np.append(u, 0.0)[:, None]
    return scipy.signal.dlsim((*for_scipy(Ab, Bb, C), 1.0), longer, x0=x)[1][1:, 0]


tiny = (np.full((1, 1), 0.5), np.ones(1), np.ones(1))  # Ab, Bb, C
impulse = np.array([1.0, 0.0, 0.0])
late = scipy.signal.dlsim((*for_scipy(*tiny), 1.0), impulse[:, None])[1][:, 0]
ours = run(*tiny, impulse, jnp.zeros(1))[1]
print("dlsim as it comes:", [f"{value:.2f}" for value in late])
print("this book:        ", [f"{value:.2f}" for value in np.asarray(ours)])
assert np.array_equal(late, [0, 1, 0.5]) and np.array_equal(ours, [1, 0.5, 0.25])

np.testing.assert_allclose(y, dlsim(Ab, Bb, random_C, u), rtol=0, atol=1e-13)

# %% [markdown]
# ## The spring, moving
#
# Now the recurrence moves the mass. A force of 4 pushes it for six seconds and then lets go. By hand: with the force it settles at $u/\omega_0^2 = 4/4 = 1$. On the way there it overshoots. After half a swing the cosine in the closed form is $-1$ and the sine 0, so it is past the
# place of rest by $e^{-\gamma \pi/\omega_\gamma}$ of the distance it came. Half a swing takes 1.6 seconds, $0.2 \cdot 1.6 = 0.32$, and $e^{-0.32} = 0.73$: the highest point is about 1.73.
#
# The force is held during each step, so zero-order hold has to be exact at every sample. The bilinear method need not be.

# %%
step = 0.05
times = step * np.arange(1, 241)
force = np.where(times <= 6 + step / 2, 4.0, 0.0)
Ab, Bb = discretize(A, B, step, "zoh")
last, position = run(Ab, Bb, C, force, jnp.zeros(2))
position = np.asarray(position)

pushed = motion(times[:120], np.zeros(2), force=4.0)
released = motion(times[:120], pushed[-1])
closed = np.concatenate([pushed, released])
np.testing.assert_allclose(position, closed[:, 0], rtol=0, atol=1e-12)
np.testing.assert_allclose(position, dlsim(Ab, Bb, C, force), rtol=0, atol=1e-12)
np.testing.assert_allclose(last, closed[-1], rtol=0, atol=1e-12)

trapezoid = run(*discretize(A, B, step, "bilinear"), C, force, jnp.zeros(2))[1]
print(f"highest point: {position.max():.2f}")
error = np.abs(trapezoid - closed[:, 0]).max()
print(f"largest error: zero-order hold below 1e-12, bilinear {error:.4f}")
assert abs(position.max() - 1.73) < 0.005

# %%
figure, (above, below) = plt.subplots(2, 1, figsize=(5.6, 3.4), height_ratios=(1, 1.6))
coils = np.linspace(0, 1, 41)
zigzag = 0.18 * np.where(np.arange(41) % 2, 1, -1) * ((coils > 0.08) & (coils < 0.92))
above.axvline(-2.0, color="black", linewidth=5)
above.axvline(0, color="grey", linestyle=":", linewidth=1)
(coil,) = above.plot([], [], color="#0072B2", linestyle="-", linewidth=1.2)
(mass,) = above.plot([], [], "s", color="#D55E00", markersize=20)
arrow = above.annotate(
    "", (0, 0), (0, 0), arrowprops={"arrowstyle": "-|>", "linewidth": 2}
)
label = above.text(-1.9, 0.55, "")
above.set(xlim=(-2.05, 2.4), ylim=(-0.6, 0.9), yticks=[])
above.grid(False)
below.axhline(1, xmax=0.5, color="grey", linestyle=":", linewidth=1)
below.plot(
    times, closed[:, 0], color="grey", linestyle=":", linewidth=1.2, label="closed form"
)
(trace,) = below.plot([], [], ".", color="#0072B2", markersize=4, label="recurrence")
below.set(
    xlabel="time t in seconds", ylabel="position q", xlim=(0, 12), ylim=(-1.2, 2.1)
)
below.legend(loc="upper right", ncols=2)
figure.draw_without_rendering()
figure.set_layout_engine("none")  # the layout is found once and stays


def draw(frame):
    k = 6 * frame + 5
    q = float(position[k])
    coil.set_data(-2.0 + (q + 1.85) * coils, zigzag)
    mass.set_data([q], [0])
    arrow.set_visible(force[k] > 0)
    arrow.set_position((q + 0.15, 0))
    arrow.xy = (q + 0.85, 0)
    label.set_text(
        f"t = {times[k]:.2f} s, " + ("force 4" if force[k] > 0 else "no force")
    )
    trace.set_data(times[: k + 1], position[: k + 1])


plotting.animate(
    figure,
    draw,
    frames=40,
    alt="Animation: a mass on a spring is pushed by a constant force for six seconds. It runs past its new place of rest at 1 up to 1.73, swings about it and calms down; then the force stops, and it swings about 0. "
    "Below, the positions that the recurrence gives fall on the dotted curve of the closed form.",
)

# %% [markdown]
# ## When does a step explode?
#
# A mass on a spring with friction comes to rest. Does the recurrence?
#
# Look at one eigenvector at a time. Let $A v = \lambda v$. Then $(I + \Delta A)\, v = (1 + \Delta\lambda)\, v$, so Euler's $\bar A$ has the same eigenvector, with the factor $g = 1 + \Delta\lambda$. The inverse of $I - \Delta A$ divides it by $1 - \Delta\lambda$, and so on:
# every method multiplies the part of the state along $v$ by one number per step,
#
# $$ \begin{aligned}
# \text{Euler: } & g = 1 + \Delta\lambda, &
# \text{backward: } & g = \frac{1}{1 - \Delta\lambda}, \\
# \text{bilinear: } & g = \frac{1 + \Delta\lambda/2}{1 - \Delta\lambda/2}, &
# \text{hold: } & g = e^{\Delta\lambda} .
# \end{aligned} $$ (ssm-factors)
#
# After $k$ steps that is $g^k$. It dies out if $|g| < 1$ and explodes if $|g| > 1$. The differential equation itself multiplies by $e^{\lambda t}$, of size $e^{t \operatorname{Re}\lambda}$: it dies out where $\operatorname{Re}\lambda < 0$. Does each method agree?
#
# * **Euler**: $|1 + \Delta\lambda| < 1$ says that $\Delta\lambda$ lies less than 1 away from $-1$: a disc. Much of the left half plane is outside.
# * **Backward Euler**: $|1 - \Delta\lambda| > 1$ says that $\Delta\lambda$ lies more than 1 away from $+1$: all of the left half plane, and most of the right one too. It calms down systems that really explode.
# * **Bilinear**: $|2 + \Delta\lambda| < |2 - \Delta\lambda|$ says that $\Delta\lambda$ is nearer to $-2$ than to $+2$: the left half plane exactly.
# * **Zero-order hold**: $|e^{\Delta\lambda}| = e^{\Delta \operatorname{Re}\lambda} < 1$: the left half plane exactly.

# %%
factors = {
    "euler": lambda scaled: 1 + scaled,
    "backward_euler": lambda scaled: 1 / (1 - scaled),
    "bilinear": lambda scaled: (1 + scaled / 2) / (1 - scaled / 2),
    "zoh": lambda scaled: np.exp(scaled),
}
eigenvalues = np.linalg.eigvals(np.asarray(random_A))
for method, factor in factors.items():
    Ab, _ = discretize(random_A, random_B, 0.3, method)
    of_the_matrix = np.sort_complex(np.linalg.eigvals(np.asarray(Ab)))
    predicted = np.sort_complex(factor(0.3 * eigenvalues))
    np.testing.assert_allclose(of_the_matrix, predicted, rtol=0, atol=1e-10)
# Backward Euler calms what really explodes:
assert abs(factors["backward_euler"](3.0)) == 0.5 and np.exp(3.0) > 20

# %%
spring_eigenvalues = np.linalg.eigvals(dense_A)
real, imaginary = np.meshgrid(np.linspace(-3.2, 3.2, 321), np.linspace(-2.2, 2.2, 221))
names = dict(zip(methods, ["Euler", "backward Euler", "bilinear", "zero-order hold"]))
places = [(-1.35, 1.6), (-2.0, 1.05), (-2.0, 1.6), (-2.0, 1.6)]  # for two labels
card = {"facecolor": "#fbfaf7", "edgecolor": "none", "pad": 1.5}

figure, panels = plt.subplots(2, 2, sharex=True, sharey=True, figsize=(6.4, 4.8))
for axes, method, place in zip(panels.flat, methods, places, strict=True):
    with np.errstate(divide="ignore", invalid="ignore"):
        g = np.abs(factors[method](real + 1j * imaginary))
    plane = real, imaginary, g
    axes.contourf(
        *plane, levels=[0, 1], colors=["#56B4E9"], alpha=0.35, hatches=["///"]
    )
    axes.contour(*plane, levels=[1], colors="#0072B2", linewidths=1.8)
    axes.axvline(0, color="black", linestyle="-", linewidth=0.8)
    for step, marker in [(0.5, "o"), (0.05, "s")]:
        ours, label = step * spring_eigenvalues, f"spring, step {step}"
        style = {"color": "#D55E00", "markeredgecolor": "black", "label": label}
        axes.plot(ours.real, ours.imag, marker, **style)
    axes.text(-3, 1.8, names[method], weight="bold", bbox=card)
    axes.text(place[0], 0, "|g| < 1", ha="center", va="center", bbox=card)
    axes.text(place[1], 0, "|g| > 1", ha="center", va="center", bbox=card)
    axes.set_aspect("equal")
    axes.grid(False)
panels[0, 0].legend(loc="lower right", fontsize=8, handletextpad=0.1)
for axes in panels[1]:
    axes.set_xlabel(r"real part of $\Delta\lambda$")
for axes in panels[:, 0]:
    axes.set_ylabel("imaginary part")
plotting.show(
    figure,
    "Four complex planes of step times eigenvalue; where a method's factor is below 1 in size the plane is hatched. Euler: only a disc of radius 1 about -1. Backward Euler: everything outside a disc of radius 1 about +1. "
    "Bilinear and zero-order hold: the left half plane exactly. The spring's two eigenvalues at a step of 0.5 lie left of the imaginary axis, but outside Euler's disc; at a step of 0.05 they lie inside.",
)

# %% [markdown]
# The spring's eigenvalues are $\lambda = -\gamma \pm i \omega_\gamma$, close to the imaginary axis, where Euler's disc is thin. Work out the size of Euler's factor for it:
#
# $$ |1 + \Delta\lambda|^2 = (1 - \Delta\gamma)^2 + \Delta^2 \omega_\gamma^2 = 1 - 2\Delta\gamma + \Delta^2 \omega_0^2 , $$ (ssm-euler-spring)
#
# since $\gamma^2 + \omega_\gamma^2 = \omega_0^2$. At a step of 0.5, about six samples per swing, that is $1 - 0.2 + 1 = 1.8$. So $|g| = 1.34$, and a millionfold takes $\ln 10^6 / \ln 1.34$, about 47 steps. The true spring has lost all but a hundredth of its swing by then.
# Sixty steps of each method, from the same pull:

# %%
step, steps = 0.5, 60
sizes = {}
for method in methods:
    ab = np.asarray(discretize(A, B, step, method)[0])
    g = np.abs(factors[method](step * spring_eigenvalues)).max()
    assert np.isclose(np.abs(np.linalg.eigvals(ab)).max(), g)
    x, sizes[method] = x_start, [1.0]
    for _ in range(steps):
        x = ab @ x
        sizes[method].append(np.linalg.norm(x))
    print(f"{method:15s} |g| = {g:.3f}")

assert sizes["euler"][-1] > 1e6
assert all(sizes[method][-1] < 0.02 for method in ("backward_euler", "bilinear", "zoh"))
first = int(np.argmax(np.array(sizes["euler"]) > 1e6))
envelope = np.exp(-damping * step * first)
print(f"Euler passes a million at step {first}; the envelope is then at {envelope:.3f}")
assert 44 <= first <= 48

# %%
figure, axes = plt.subplots()
for (method, size), marker in zip(sizes.items(), "osv^", strict=True):
    axes.semilogy(size, marker=marker, markevery=10, label=names[method])
axes.set(xlabel="step k", ylabel="size of the state", ylim=(1e-11, 1e9))
axes.legend(loc="lower left")
plotting.show(
    figure,
    "The size of the spring's state over sixty steps of half a second, on a logarithmic scale. Forward Euler grows along a straight line beyond ten million. "
    "Zero-order hold, which is exact, falls slowly; bilinear falls nearly as slowly; backward Euler falls far too fast.",
)

# %% [markdown]
# Backward Euler is stable and wrong in the other direction: it swallows the swing that the spring still has. A network that is to remember for thousands of steps can afford neither. That is why S4 and its relatives use the last two.

# %% [markdown]
# ## How fast do the errors shrink?
#
# Halve the step. How much smaller is the error at the same *time*?
#
# Compare each factor with the exact one, $e^{\Delta\lambda} = 1 + \Delta\lambda + \frac12 (\Delta\lambda)^2 + \frac16 (\Delta\lambda)^3 + \dots$. The quotients are geometric series: $1/(1-\Delta\lambda) = 1 + \Delta\lambda + (\Delta\lambda)^2 + \dots$, and
#
# $$ \begin{aligned}
# \frac{1 + \Delta\lambda/2}{1 - \Delta\lambda/2}
# &= \left( 1 + \tfrac{\Delta\lambda}{2} \right) \left( 1 + \tfrac{\Delta\lambda}{2} + \tfrac{(\Delta\lambda)^2}{4} + \tfrac{(\Delta\lambda)^3}{8} + \dots \right) \\
# &= 1 + \Delta\lambda + \tfrac12 (\Delta\lambda)^2 + \tfrac14 (\Delta\lambda)^3 + \dots
# \end{aligned} $$
#
# Subtract $e^{\Delta\lambda}$. What one step does wrong is, to leading order,
#
# $$ \begin{aligned}
# \text{Euler: } & -\tfrac12 (\Delta\lambda)^2, \\
# \text{backward: } & +\tfrac12 (\Delta\lambda)^2, \\
# \text{bilinear: } & +\tfrac{1}{12} (\Delta\lambda)^3 .
# \end{aligned} $$ (ssm-local)
#
# ($\frac14 - \frac16 = \frac{1}{12}$.) A fixed time $t$ takes $t/\Delta$ steps, and in a stable system the errors add up and are not amplified. So one power of $\Delta$ is lost on the way: in total Euler's error shrinks like $\Delta$, the bilinear one like $\Delta^2$
# {cite:p}`hairer1993ode`. The power that is left is called the **order**: first and second.

# %%
scaled = 0.001
shares = {"euler": (-1 / 2, 2), "backward_euler": (1 / 2, 2), "bilinear": (1 / 12, 3)}
for method, (share, power) in shares.items():
    error = factors[method](scaled) - np.exp(scaled)
    assert np.isclose(error, share * scaled**power, rtol=5e-3)

# %% [markdown]
# That was a free response: no input. With a *held* input nothing new can happen. Held, the input is one more entry of the state, and each method, applied to the larger system {eq}`ssm-block`, gives back its own $\bar A$ and $\bar B$ in the upper rows. For zero-order hold that is how we computed them; the next cell checks the other three.
#
# One gap is left. The orders were found on eigenvectors, one number $\lambda$ at a time, and the larger matrix need not have enough of them (its eigenvalue 0 belongs to the held input). But the comparison of the series holds for matrices as it stands, with $\Delta A$ in place of $\Delta\lambda$: only powers of one matrix are in it, and they commute. So the orders of the held input are those of the free response.

# %%
block = jnp.zeros((3, 3)).at[:2, :2].set(A).at[:2, 2].set(B)
for method in ("euler", "backward_euler", "bilinear"):
    Ab, Bb = discretize(A, B, 0.3, method)
    larger, _ = discretize(block, jnp.zeros(3), 0.3, method)
    np.testing.assert_allclose(larger[:2, :2], Ab, rtol=0, atol=1e-14)
    np.testing.assert_allclose(larger[:2, 2], Bb, rtol=0, atol=1e-14)
    np.testing.assert_allclose(larger[2], [0, 0, 1], rtol=0, atol=1e-14)

# %% [markdown]
# The third case is another matter. Let $u(t) = \sin 3t$ be smooth, and let $u_k = u(t_k)$ be its **samples**. Now nobody holds the input. What should come out?
#
# The recurrence lets $u_k$ stand for the whole step. But the mean of a smooth function over the step is its value in the *middle*, up to terms in $\Delta^2$. In the middle of the step, at $t_k - \frac{\Delta}{2}$, the recurrence uses $u(t_k)$, a value that the true input reaches only half a step later. So it runs, in effect, on the input $u(t + \frac{\Delta}{2})$.
# $A$ and $B$ do not depend on time, so a shifted input gives a shifted output, if nothing was there before the shift: hence from rest, and with $u(0) = 0$. The output comes half a step early too:
#
# $$ y_k \approx y\!\left( t_k + \tfrac{\Delta}{2} \right) \approx y(t_k) + \tfrac{\Delta}{2}\, y'(t_k) . $$ (ssm-early)
#
# That is an error of first order, whatever is done with $A$. Euler and backward Euler have an error of first order already and get a second one. Not even zero-order hold escapes: it is exact for the held input, and the held input is not the one that we have. And the cure can be read off: feed it the mean of the two samples at the ends of the step, $\frac12 (u_{k-1} + u_k)$,
# which is the middle up to terms in $\Delta^2$. (It is also the trapezoid rule, if one puts $u(t_{k-1})$ and $u(t_k)$ at the two ends when the area is taken.)
#
# An error like $\Delta^p$ is a line of slope $p$ in a plot of two logarithms; the table shows the fitted slopes. The prediction is this. Free response: 1, 1, 2, exact. Held input: 1, 1, 2, exact. Sampled input: 1, 1, 1, 1. Means of two samples: 1, 1, 2, 2. Now measure. The exact outputs, every quarter of a second for four seconds, come from `scipy.linalg.expm`:
#
# * free: $C e^{tA} x(0)$;
# * held: random forces, held for a quarter of a second each. The *step* divides the quarter while the input stays the same; for each quarter, the form with $A^{-1}$ from above;
# * sampled: $\sin 3t$ is itself an entry of a system without an input, $(\sin 3t, \cos 3t)' = (3 \cos 3t, -3 \sin 3t)$. Put it under the spring, and one exponential has it all.

# %%
quarters = 0.25 * np.arange(1, 17)
forces = generator.normal(size=16)

free = [dense_C @ scipy.linalg.expm(t * dense_A) @ x_start for t in quarters]
exact = {"free": np.array(free)}

carry = scipy.linalg.expm(0.25 * dense_A)
enter = np.linalg.solve(dense_A, (carry - np.eye(2)) @ dense_B)
x, exact["held"] = np.zeros(2), []
for u_k in forces:
    x = carry @ x + enter * u_k
    exact["held"].append(dense_C @ x)

turn = np.array([[0, 3], [-3, 0]])
driven = np.block([[dense_A, np.outer(dense_B, [1, 0])], [np.zeros((2, 2)), turn]])
at_zero = np.array([0, 0, 0, 1.0])  # spring at rest, sin 0, cos 0
exact_states = np.array([scipy.linalg.expm(t * driven) @ at_zero for t in quarters])
exact["sampled"] = exact["means"] = exact_states[:, 0]


# %%
def inputs(case, per_quarter):
    """The inputs of a case, so many a quarter of a second.  ->  (16 per_quarter,)"""
    t = 0.25 / per_quarter * np.arange(16 * per_quarter + 1)  # 0 and all t_k
    sine = np.sin(3 * t)
    return {
        "free": np.zeros(16 * per_quarter),
        "held": np.repeat(forces, per_quarter),
        "sampled": sine[1:],
        "means": (sine[:-1] + sine[1:]) / 2,
    }[case]


per_quarter = np.array([8, 16, 32, 64, 128, 256])
errors, slopes = {}, {}
for case in exact:
    for method in methods:
        errors[case, method] = []
        for m in per_quarter:
            Ab, Bb = discretize(A, B, 0.25 / m, method)
            start = x_start if case == "free" else np.zeros(2)
            y = np.asarray(run(Ab, Bb, C, inputs(case, m), start)[1])
            errors[case, method].append(np.abs(y[m - 1 :: m] - exact[case]).max())
        logs = np.log(0.25 / per_quarter), np.log(errors[case, method])
        slopes[case, method] = np.polyfit(*logs, 1)[0]

# %%
expected = {
    "free": {"euler": 1, "backward_euler": 1, "bilinear": 2, "zoh": None},
    "held": {"euler": 1, "backward_euler": 1, "bilinear": 2, "zoh": None},
    "sampled": {"euler": 1, "backward_euler": 1, "bilinear": 1, "zoh": 1},
    "means": {"euler": 1, "backward_euler": 1, "bilinear": 2, "zoh": 2},
}
print("order            " + "".join(f"{case:>9s}" for case in expected))
for method in methods:
    row = f"{names[method]:17s}"
    for case, orders in expected.items():
        if orders[method] is None:
            assert max(errors[case, method]) < 1e-12
            row += f"{'exact':>9s}"
        else:
            assert abs(slopes[case, method] - orders[method]) < 0.1
            row += f"{slopes[case, method]:9.1f}"
    print(row)

# The prediction of half a step, with the finest step: y' is the exact velocity.
finest = 0.25 / 256
early = finest / 2 * exact_states[:, 1]
for method in ("bilinear", "zoh"):
    Ab, Bb = discretize(A, B, finest, method)
    y = np.asarray(run(Ab, Bb, C, inputs("sampled", 256), np.zeros(2))[1])
    error = y[255::256] - exact["sampled"]
    np.testing.assert_allclose(error, early, rtol=0, atol=0.01 * np.abs(early).max())

# %% [markdown]
# The prediction holds in every entry, and in the sampled case the error is half a step of $y'$, to a hundredth of itself.

# %%
titles = {
    "free": "(a) free response",
    "held": "(b) held input",
    "sampled": "(c) sampled input",
}
figure, panels = plt.subplots(1, 3, sharey=True, figsize=(7.2, 3.6))
for axes, (case, title) in zip(panels, titles.items(), strict=True):
    for method, marker in zip(methods, "osv^", strict=True):
        if expected[case][method] is not None:
            axes.loglog(
                0.25 / per_quarter,
                errors[case, method],
                marker=marker,
                markersize=5,
                markerfacecolor="none",
                label=names[method],
            )
    axes.set_xlabel(r"step $\Delta$ in seconds")
    axes.text(0.04, 0.97, title, transform=axes.transAxes, va="top", weight="bold")
for axes in panels[:2]:
    axes.text(0.3, 0.03, "zero-order hold:\nbelow 1e-12", transform=axes.transAxes)
panels[2].loglog(
    0.25 / per_quarter,
    errors["means", "bilinear"],
    color="black",
    marker="D",
    markersize=4,
    linestyle="-",
    label="bilinear, means",
)
panels[0].set(ylabel="largest error of y", ylim=(1e-8, 3))
legend = panels[2].get_legend_handles_labels()
figure.legend(*legend, loc="outside lower center", ncols=3)
plotting.show(
    figure,
    "Largest error against step, both logarithmic, in three panels. Free response and held input: Euler and backward Euler fall with slope 1, bilinear with slope 2, zero-order hold is below 1e-12 and off the scale. "
    "Sampled input: all four fall with slope 1, bilinear and zero-order hold on one line; only bilinear fed with means of two samples falls with slope 2.",
)

# %% [markdown]
# ````{admonition} Trap: a second-order method of first order
# :class: warning
#
# Textbooks call the bilinear method second order. Fed with the samples of a smooth signal, one for each step, it measures as first order (slope 1.0 in panel c), and so does zero-order hold. The code is right: $u_k$ stands for a whole step and comes half a step early.
# Means of two samples bring the second order back (slope 2.0). SciPy hides them elsewhere: its `cont2discrete(..., "bilinear")` returns the same $\bar A$ and $\bar B$ as ours but another $C$, and a direct path from $u_k$ to $y_k$ besides; these two take the mean.
# ````
#
# Check the last sentence: SciPy's four arrays as they come, with plain samples, give what our recurrence gives with means.

# %%
scipys = scipy.signal.cont2discrete(for_scipy(A, B, C), 0.25 / 8, "bilinear")
assert np.abs(scipys[2] - dense_C).max() > 1e-3 and scipys[3][0, 0] > 0
samples = inputs("sampled", 8)
with_means = run(*discretize(A, B, 0.25 / 8), C, inputs("means", 8), jnp.zeros(2))[1]
by_scipy = scipy.signal.dlsim(scipys, samples[:, None])[1][:, 0]
np.testing.assert_allclose(by_scipy, with_means, rtol=0, atol=1e-13)

# %% [markdown]
# Which of the cases is ours? A sentence or a row of pixels has no values between its samples. There, "$u_k$ holds for one step" is a definition and no approximation. The S4 paper {cite:p}`gu2022s4` speaks of samples of a continuous signal, $u_k = u(k\Delta)$ in its way of counting, which is the third case; this book takes the input as held. The formulas for $\bar A$ and $\bar B$ are the same. What differs is what they are compared with: for a sampled sound the output comes half a step early, in training and ever after.

# %% [markdown]
# ## What the step means
#
# Nothing in $A$ knows of samples; $A$ speaks of seconds. The step is where the two meet, and this is worth more than it seems. **The same $A$ at half the step is the same system, sampled twice as fast.** For zero-order hold exactly: two half steps with the same input are one whole step,
#
# $$ e^{\frac{\Delta}{2} A}\, e^{\frac{\Delta}{2} A} = e^{\Delta A} . $$
#
# So if every input is given twice and the step is halved, every second output has to be the old one. For the bilinear method this holds up to its error of second order: what is left should drop to a quarter when the rate doubles again.

# %%
forces = generator.normal(size=32)  # each held for 0.4 seconds


def difference(method, step):
    """How far half the step moves the outputs at shared times, over the largest."""
    y = {}
    for shorter in (1, 2):  # the step as it is, and half of it
        Ab, Bb = discretize(A, B, step / shorter, method)
        u = np.repeat(forces, round(0.4 / step) * shorter)
        y[shorter] = np.asarray(run(Ab, Bb, C, u, np.zeros(2))[1])
    return np.abs(y[2][1::2] - y[1]).max() / np.abs(y[1]).max()


assert difference("zoh", 0.2) < 1e-12
once, again = difference("bilinear", 0.2), difference("bilinear", 0.1)
print(f"bilinear, step 0.2 -> 0.1: {once:.1%};  0.1 -> 0.05: {again:.1%}")
assert 3.7 < once / again < 4.3

# %% [markdown]
# So a system that was found at one rate runs on a recording at twice that rate, with half the step. And the step sets how far the memory reaches when it is counted in *samples*: the spring's swing falls to a third in $1/\gamma = 5$ seconds, which is 50 steps of 0.1 and 500 steps of 0.01. Small steps, long memory. Chapter 3 comes back to it.
#
# ````{admonition} Trap: the step has a unit
# :class: warning
#
# Only the products $\Delta A$ and $\Delta B$ enter. $A$ and $B$ count per unit of time, and the step must be in that unit: if they count per second, it is in seconds. A recording with 100 samples a second has the step 0.01. Neither 100 (its rate) nor 10 (its milliseconds) nor 1 ("one sample") will do, and no method complains.
# With a constant force of 1 the mass has moved by $\frac12 \Delta^2 = 0.00005$ after the first sample; with the step in milliseconds it is at 0.23, as if ten seconds had passed.
# ````

# %%
first = {step: float(C @ discretize(A, B, step, "zoh")[1]) for step in (0.01, 10.0)}
print(
    f"first output with step 0.01: {first[0.01]:.5f}, with step 10: {first[10.0]:.2f}"
)
ten_seconds = motion(np.array([10.0]), np.zeros(2), force=1.0)[0, 0]
np.testing.assert_allclose(first[10.0], ten_seconds, rtol=0, atol=1e-12)

# With A and B per millisecond, a step of 10 is right: the same Ab and Bb.
Ab, Bb = discretize(A, B, 0.01, "zoh")
same_Ab, same_Bb = discretize(A / 1000, B / 1000, 10.0, "zoh")
np.testing.assert_allclose(Ab, same_Ab, rtol=0, atol=1e-14)
np.testing.assert_allclose(Bb, same_Bb, rtol=0, atol=1e-14)

# %% [markdown]
# ## What we have, and what is missing
#
# We have a differential equation $x' = Ax + Bu$, $y = Cx$, four ways to make a step of it, each derived, and a scan that runs it. Bilinear and zero-order hold are stable exactly where the system is. The step is a length of time, and the same system can be read at any rate.
#
# What is missing is speed. The scan does one step after the other: a thousand samples are a thousand small matrix products, each of which waits for the one before it, on a machine that would rather do them all at once. [Chapter 2](02_convolution.ipynb) finds that the recurrence
# has a second form that does them all at once.

# %% [markdown]
# ## Exercises

# %% [markdown]
# ````{exercise} The hold of one number
# :label: ssm-scalar-hold
#
# For a state of one number, $x' = \lambda x + u$, work out $\bar A$ and $\bar B$ of zero-order hold by hand. What is $\bar B$ for $\lambda \to 0$? Write it as a function that is accurate for $\lambda = 10^{-9}$ too.
# ````

# %% [markdown]
# ````{solution-start} ssm-scalar-hold
# :class: dropdown
# ````
# $\bar A = e^{\Delta\lambda}$, and
#
# $$ \bar B = \int_0^\Delta e^{\lambda\tau}\, d\tau = \frac{e^{\Delta\lambda} - 1}{\lambda} = \Delta + \tfrac12 \lambda \Delta^2 + \dots $$
#
# which goes to $\Delta$: without $\lambda$ the state adds up its input. For small $\lambda$ the subtraction loses the digits in which $e^{\Delta\lambda}$ and 1 agree; `expm1` computes the difference without it.


# %%
def scalar_hold(eigenvalue, step):
    """Ab = exp(step eigenvalue),  Bb = (exp(step eigenvalue) - 1) / eigenvalue"""
    return jnp.exp(step * eigenvalue), jnp.expm1(step * eigenvalue) / eigenvalue


for eigenvalue in (-2.0, -1e-9):
    matrix = zoh(jnp.array([[eigenvalue]]), jnp.ones(1), 0.1)
    np.testing.assert_allclose(
        scalar_hold(eigenvalue, 0.1), [matrix[0][0, 0], matrix[1][0]], rtol=1e-14
    )
naive = (np.exp(-1e-10) - 1) / -1e-9
assert abs(naive / 0.1 - 1) > 1e-8  # half of its sixteen digits are gone

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} The largest step for Euler
# :label: ssm-largest-step
#
# How small must the step be so that Euler's method does not explode on the spring? What happens without friction? Find the bound from the size of Euler's factor {eq}`ssm-euler-spring`, and check it from both sides.
# ````

# %% [markdown]
# ````{solution-start} ssm-largest-step
# :class: dropdown
# ````
# $1 - 2\Delta\gamma + \Delta^2\omega_0^2 < 1$ means $\Delta\, \omega_0^2 < 2\gamma$, so
#
# $$ \Delta < \frac{2\gamma}{\omega_0^2} . $$
#
# For our spring that is $0.4/4 = 0.1$ seconds, 32 samples per swing. Without friction the bound is 0: no step is small enough.

# %%
bound = 2 * damping / frequency**2


def largest_factor(A, step):
    """max |g| over the eigenvalues of Euler's Ab"""
    return np.abs(np.linalg.eigvals(np.asarray(euler(A, B, step)[0]))).max()


assert largest_factor(A, 0.99 * bound) < 1 < largest_factor(A, 1.01 * bound)
assert all(largest_factor(spring(2.0, 0.0)[0], step) > 1 for step in (0.1, 0.01, 0.001))
samples_per_swing = 2 * np.pi / damped_frequency / bound
print(f"bound {bound:.2f} s: {samples_per_swing:.0f} samples per swing")

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} From the half plane to the disc
# :label: ssm-half-plane
#
# Show by algebra that the bilinear factor has $|g| < 1$ exactly where $\operatorname{Re}\lambda < 0$, for every step. Where does the imaginary axis go?
# ````

# %% [markdown]
# ````{solution-start} ssm-half-plane
# :class: dropdown
# ````
# Multiply out $|2 \pm \Delta\lambda|^2 = (2 \pm \Delta\lambda)\, \overline{(2 \pm \Delta\lambda)}$ (the bar here is the complex conjugate):
#
# $$ |2 \pm \Delta\lambda|^2 = 4 \pm 4 \Delta \operatorname{Re}\lambda + \Delta^2 |\lambda|^2 . $$
#
# The denominator of $|g|^2$ has the minus sign and the numerator the plus sign. Their difference is
#
# $$ |2 - \Delta\lambda|^2 - |2 + \Delta\lambda|^2 = -8 \Delta \operatorname{Re}\lambda , $$
#
# positive exactly if $\operatorname{Re}\lambda < 0$. On the imaginary axis both are equal: the axis goes to the circle $|g| = 1$. Zero goes to 1; far up or down the axis, $g$ comes close to $-1$.

# %%
samples = generator.normal(size=1000) * 3 + 1j * generator.normal(size=1000) * 3
g = factors["bilinear"](samples)
assert np.array_equal(np.abs(g) < 1, samples.real < 0)
np.testing.assert_allclose(
    np.abs(factors["bilinear"](1j * samples.imag)), 1, rtol=0, atol=1e-14
)
assert abs(factors["bilinear"](1e6j) + 1) < 1e-5

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} Energy without friction
# :label: ssm-energy
#
# Without friction and force the energy $\frac12 (q'^2 + \omega_0^2 q^2)$ stays what it is. What does each method do to it in one step? Predict the energy after 100 steps of 0.05 with $\omega_0 = 2$, then compute it.
# ````

# %% [markdown]
# ````{solution-start} ssm-energy
# :class: dropdown
# ````
# The eigenvalues are $\pm i \omega_0$. Energy is a square, so each step multiplies it by $|g|^2$: by $1 + \Delta^2\omega_0^2$ for Euler, by its inverse for backward Euler, by 1 for the other two, whose factors lie on the circle. (That $|g|^2$ is the whole story needs a state whose energy is a plain sum of squares: take $(\omega_0 q, q')$ as
# coordinates, and $A$ becomes $\omega_0$ times a quarter turn, which every method maps to a turn times a size.) With $\Delta\omega_0 = 0.1$: $1.01^{100} = 2.70$, its inverse 0.37, and 1, 1.

# %%
calm, _, _ = spring(frequency=2.0, damping=0.0)
for method, predicted in {
    "euler": 1.01**100,
    "backward_euler": 1.01**-100,
    "bilinear": 1.0,
    "zoh": 1.0,
}.items():
    q, velocity = (
        np.linalg.matrix_power(np.asarray(discretize(calm, B, 0.05, method)[0]), 100)
        @ x_start
    )
    energy = (velocity**2 + 4 * q**2) / 2
    np.testing.assert_allclose(
        energy / 2, predicted, rtol=1e-12
    )  # it was 2 at the start
    print(f"{names[method]:16s} {energy / 2:.2f} of the energy after 100 steps")

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} A sequence in two halves
# :label: ssm-halves
#
# The state is all that a step needs of the past. So a sequence may be cut anywhere: run the first part, keep its last state, run the rest from there. Check that nothing changes, with the cut at 77 of 200, and see what is wrong if the state is not handed on.
# ````

# %% [markdown]
# ````{solution-start} ssm-halves
# :class: dropdown
# ````
# The last state of the first run is the `x` of the second. Without it, what is missing is the free response of the state that was dropped.

# %%
u = generator.normal(size=200)
Ab, Bb = discretize(A, B, 0.1)
last, whole = run(Ab, Bb, C, u, jnp.zeros(2))
between, first = run(Ab, Bb, C, u[:77], jnp.zeros(2))
end, second = run(Ab, Bb, C, u[77:], between)
np.testing.assert_allclose(jnp.concatenate([first, second]), whole, rtol=0, atol=1e-13)
np.testing.assert_allclose(end, last, rtol=0, atol=1e-13)

forgotten = run(Ab, Bb, C, u[77:], jnp.zeros(2))[1]
free = run(Ab, Bb, C, np.zeros(123), between)[1]
np.testing.assert_allclose(second - forgotten, free, rtol=0, atol=1e-13)
assert np.abs(free).max() > 0.01

# %% [markdown]
# ````{solution-end}
# ````
