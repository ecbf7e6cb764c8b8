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
# # Primer: the JAX of this book
#
# **Which parts of JAX does one need to read the chapters?** Six: arrays that do not change, `jit`, `vmap`, `scan`, `grad` and
# random keys. One more section is about modules that hold parameters, and one about gradients of complex numbers, where
# JAX differs from what many expect. Ten minutes. If you know JAX, read only "Modules" and "Gradients of complex numbers".

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
import numpy as np
import optax
from flax import nnx

# %% [markdown]
# ## Arrays that do not change
#
# `jax.numpy` has the functions of NumPy. Its arrays cannot be written into: `x.at[i].set(v)` returns a *new* array that differs
# in one place. That is what lets JAX record a function as a formula, and everything below is something done to such a formula.

# %%
x = jnp.zeros(3)
y = x.at[1].set(5.0)
print("x is still", x.tolist(), "and y is", y.tolist())

# %% [markdown]
# ## `jit`: the formula, compiled
#
# Called for the first time, a jitted function runs once with placeholders in place of numbers. They have a shape and a type and
# no value. What they went through is compiled, and from then on the compiled program runs. Two things follow. A `print` inside
# happens once, while the formula is recorded. And an `if` cannot ask for a *value*, since there is none yet; it can ask for a shape.


# %%
@jax.jit
def mean_square(x):
    """sum_i x_i^2 / L.   x: (L,) -> a number"""
    print("recording for the shape", x.shape)
    return jnp.sum(x**2) / x.shape[0]


first, second = mean_square(jnp.ones(4)), mean_square(2 * jnp.ones(4))
print("results:", float(first), float(second))
assert (first, second) == (1, 4)

# %% [markdown]
# ## `vmap`: one function, many inputs
#
# Write the function for *one* vector. `vmap` makes the function for a stack of them, without a loop. `in_axes` says for each
# argument which axis is the stack's, `None` for one that all share.

# %%
A = jnp.array([[0.0, 1.0], [-1.0, 0.0]])
vectors = jnp.arange(6.0).reshape(3, 2)
turned = jax.vmap(lambda A, v: A @ v, in_axes=(None, 0))(A, vectors)
np.testing.assert_allclose(turned, vectors @ A.T)
print(turned.shape, "is three vectors, each turned by the same matrix")

# %% [markdown]
# ## `scan`: a loop that carries a state
#
# A state space model is a loop: new state from old state and input, one output for each step. `scan` is that loop as *one*
# operation. Its body takes `(state, input)` and returns `(new state, output)`. A Python loop under `jit` is written out step by step
# before it is compiled, so its compile time grows with the number of steps; the compile time of a scan does not.


# %%
def running_sum(u):
    """s_k = s_{k-1} + u_k, from 0.   u: (L,) -> all sums, (L,)"""

    def step(total, u_k):
        total = total + u_k
        return total, total

    last, sums = jax.lax.scan(step, jnp.zeros((), u.dtype), u)
    return sums


print(running_sum(jnp.array([1.0, 2.0, 3.0, 4.0])).tolist())
assert running_sum(jnp.arange(100.0))[-1] == 99 * 100 / 2

# %% [markdown]
# ## `grad`: the derivative of the formula
#
# `jax.grad(f)` is the function that computes the derivative of the number $f$ with respect to its first argument. It is exact, not a
# difference quotient: each operation in the recorded formula has its derivative, and the chain rule joins them, from
# the end to the beginning. We compare with a difference quotient, which in float64 is right to about ten digits when the step is $10^{-5}$.


# %%
def loss(w):
    """(w - 3)^2 + sin w"""
    return (w - 3) ** 2 + jnp.sin(w)


quotient = (loss(1 + 1e-5) - loss(1 - 1e-5)) / 2e-5
np.testing.assert_allclose(jax.grad(loss)(1.0), quotient, rtol=1e-9)
print(f"slope at 1: {jax.grad(loss)(1.0):.4f}")

# %% [markdown]
# ## Keys: randomness without a hidden state
#
# Every random function takes a key. The same key gives the same numbers, always. For other numbers one splits the key. There is
# no generator somewhere that remembers how often it was called, so a program gives the same result whichever part of it runs first.

# %%
key = jax.random.key(0)
left, right = jax.random.split(key)
assert jnp.all(jax.random.normal(left, (3,)) == jax.random.normal(left, (3,)))
assert jnp.all(jax.random.normal(left, (3,)) != jax.random.normal(right, (3,)))

# %% [markdown]
# ## Modules: parameters with a name
#
# A layer is a function with numbers that are trained. Flax's NNX keeps the two in one Python object: `nnx.Param` marks what is
# trained. The functions above want plain arrays, so a module can be taken apart, `nnx.split`, into its structure and its numbers,
# and put together again, `nnx.merge`. Training is: take apart, differentiate with respect to the numbers, change them, put together.
#
# Three names in the cell: `nnx.Param` is a box, and `self.a[...]` is the array in the box; `rngs.params()` hands out a fresh key; `jax.tree.map` applies a function to each array
# of a nested structure.


# %%
class Line(nnx.Module):
    """y = a x + b"""

    def __init__(self, rngs: nnx.Rngs):
        self.a = nnx.Param(jax.random.normal(rngs.params(), ()))
        self.b = nnx.Param(jnp.zeros(()))

    def __call__(self, x):
        return self.a[...] * x + self.b[...]


structure, numbers = nnx.split(Line(nnx.Rngs(0)))
x = jnp.linspace(-1, 1, 21)
target = 2 * x + 1


@jax.jit
def square_error(numbers):
    """mean_i (a x_i + b - target_i)^2"""
    return jnp.mean((nnx.merge(structure, numbers)(x) - target) ** 2)


for _ in range(200):
    gradient = jax.grad(square_error)(numbers)
    numbers = jax.tree.map(
        lambda number, slope: number - 0.3 * slope, numbers, gradient
    )
line = nnx.merge(structure, numbers)
print(f"y = {line.a[...]:.3f} x + {line.b[...]:.3f}")
assert square_error(numbers) < 1e-12

# %% [markdown]
# ## Gradients of complex numbers
#
# The parameters of S4 are complex. Which way is downhill for a complex number $w = a + ib$? We may change $a$ and $b$ one at a time, so the way
# up is the vector of the two partial derivatives, written as the complex number
#
# $$ \frac{\partial f}{\partial a} + i\,\frac{\partial f}{\partial b}. $$ (primer-uphill)
#
# Take $f(w) = |w|^2 = a^2 + b^2$ at $w = 3 + 4i$. By hand: $6 + 8i$, straight away from the origin. JAX returns the *conjugate* of that.

# %%
f = lambda w: jnp.abs(w) ** 2
w = jnp.asarray(3 + 4j)
returned = complex(jax.grad(f)(w))
print(f"jax.grad gives {returned:.0f}, uphill is 6+8j")
np.testing.assert_allclose(returned, 6 - 8j)

# %% [markdown]
# ````{admonition} Trap: descending along the conjugate
# :class: warning
#
# One step of length 0.1 down from $3 + 4i$ must shrink both parts, to $2.4 + 3.2i$. Without the conjugate the imaginary part
# grows, to $2.4 + 4.8i$: descent became ascent for half of the number. Nothing warns; the loss falls in one direction and rises in the other.
# ````

# %%
with_conjugate = complex(w - 0.1 * jax.grad(f)(w).conj())
without = complex(w - 0.1 * jax.grad(f)(w))
np.testing.assert_allclose([with_conjugate, without], [2.4 + 3.2j, 2.4 + 4.8j])

# %% [markdown]
# An optimiser such as Adam does not know about conjugates. So this book stores a complex parameter as *two real arrays*, and joins them where
# the formula needs the complex number. Then every gradient is real and there is nothing to forget. Below, Adam looks for the complex number
# $1 + 2i$ both ways.

# %%
target = 1 + 2j


def fitted(start, loss):
    """What Adam reaches in 500 steps from `start`."""
    optimizer = optax.adam(0.05)
    step = jax.jit(lambda w, state: optimizer.update(jax.grad(loss)(w), state, w))
    w, state = start, optimizer.init(start)
    for _ in range(500):
        updates, state = step(w, state)
        w = optax.apply_updates(w, updates)
    return w


pair = fitted(
    (jnp.zeros(()), jnp.zeros(())),
    lambda w: jnp.abs(w[0] + 1j * w[1] - target) ** 2,
)
raw = fitted(jnp.zeros((), jnp.complex128), lambda w: jnp.abs(w - target) ** 2)
print(f"two real arrays end at {complex(pair[0], pair[1]):.2f}")
where = "at" if abs(raw - target) < 0.1 else "more than 1 away from"
print(f"one complex array ends {where} 1+2j")
assert abs(complex(*pair) - target) < 1e-2 and abs(raw - target) > 1

# %% [markdown]
# ## What we have, and what is missing
#
# Formulas that are compiled, repeated, scanned and differentiated, and parameters as real numbers. What is missing is something worth writing down
# in them: [chapter 1](01_state_space_models.ipynb) begins with a mass on a spring.
#
# ## Exercises
#
# ````{exercise} A scan by hand
# :label: primer-scan
#
# Write the leaky average $x_k = 0.9\,x_{k-1} + 0.1\,u_k$, $x_{-1} = 0$, as a scan. What does it return for ten ones? Guess first: what is left of the 0 that it starts from?
# ````

# %% [markdown]
# ````{solution-start} primer-scan
# :class: dropdown
# ````
# Each step keeps nine tenths of the distance to 1, and the distance was 1 at the start. After ten steps it is $0.9^{10} \approx 0.35$, so the average is at 0.65.


# %%
def leaky(u):
    """x_k = 0.9 x_{k-1} + 0.1 u_k.   u: (L,) -> x: (L,)"""

    def step(x, u_k):
        x = 0.9 * x + 0.1 * u_k
        return x, x

    return jax.lax.scan(step, jnp.zeros((), u.dtype), u)[1]


np.testing.assert_allclose(leaky(jnp.ones(10))[-1], 1 - 0.9**10)

# %% [markdown]
# ````{solution-end}
# ````

# %% [markdown]
# ````{exercise} The gradient of a real part
# :label: primer-real-part
#
# For $f(w) = \mathrm{Re}(w^2)$ at $w = 1 + i$: which way is uphill, and what does `jax.grad` return?
# ````

# %% [markdown]
# ````{solution-start} primer-real-part
# :class: dropdown
# ````
# $f = a^2 - b^2$, so uphill is $2a - 2bi = 2 - 2i$. `jax.grad` returns the conjugate, $2 + 2i$, which is the usual complex derivative $2w$.

# %%
returned = complex(jax.grad(lambda w: jnp.real(w**2))(jnp.asarray(1 + 1j)))
np.testing.assert_allclose(returned, 2 + 2j)

# %% [markdown]
# ````{solution-end}
# ````
