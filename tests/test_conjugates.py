"""No conjugate is there that no test needs, and none is missing.

In the syntax tree of the modules of the kernels, each `.conj()` is deleted and each complex argument is conjugated, one at a
time. Each time at least one of a few quick checks must fail.
"""

import ast
import copy
import sys
import types
from pathlib import Path
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np
import pytest

from tests.systems import dense_discretization, dense_kernel, diagonal_discretization, full, kernel_of, random_dplr

PACKAGE = Path(__file__).resolve().parent.parent / "annotated_s4"
MODULES = ("hippo", "generating", "cauchy", "vandermonde", "dplr", "diagonal")  # each imports only from those before it
# Functions without annotations: which of their arguments are complex.
SYSTEM = {"Lambda", "P", "Q", "B", "C_tilde"}
UNANNOTATED = {
    "_kernel_dense": SYSTEM,
    "_kernel_textbook": SYSTEM,
    "_convert": {"row", "Lambda", "P", "Q"},
    "_project": {"Q", "x"},
    "_exponents": {"scaled"},
    "_block": SYSTEM,
}
# The textbook form of a diagonal kernel takes the real part of a sum over pairs, and a pair that is twice the same mode has the
# same real part: there is nothing to notice.
SAME_VALUE = "without part.conj()"
L, STEP = 6, 0.1


def complex_arguments(function):
    """The names of a function's arguments that are complex, by their annotation."""
    for argument in function.args.args:
        annotation = ast.unparse(argument.annotation) if argument.annotation else ""
        if annotation.startswith(("Complex[", "Inexact[")) or argument.arg in UNANNOTATED.get(function.name, ()):
            yield argument.arg


def is_conjugation(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "conj"


class Delete(ast.NodeTransformer):
    """x.conj() -> x at one place."""

    def __init__(self, place):
        self.place = place

    def visit_Call(self, node):
        self.generic_visit(node)
        return node.func.value if is_conjugation(node) and (node.lineno, node.col_offset, node.end_col_offset) == self.place else node


def mutants(module):
    """Every tree that differs from the module's by one conjugate, with a name that says by which."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text())
    for node in ast.walk(tree):
        if is_conjugation(node):
            place = (node.lineno, node.col_offset, node.end_col_offset)
            yield f"{module}:{node.lineno} without {ast.unparse(node)}", Delete(place).visit(copy.deepcopy(tree))
        if isinstance(node, ast.FunctionDef):
            for name in complex_arguments(node):
                changed = copy.deepcopy(tree)
                twin = next(n for n in ast.walk(changed) if isinstance(n, ast.FunctionDef) and n.lineno == node.lineno)
                twin.body[:0] = ast.parse(f"{name} = {name}.conj()").body
                yield f"{module}:{node.name} with {name} conjugated", changed


def load(mutated=None, tree=None):
    """The modules, one of them from a changed tree."""
    loaded = {}
    with patch.dict(sys.modules):
        for name in MODULES:
            source = ast.fix_missing_locations(tree) if name == mutated else ast.parse((PACKAGE / f"{name}.py").read_text())
            module = types.ModuleType(f"annotated_s4.{name}")
            sys.modules[module.__name__] = loaded[name] = module
            exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    return loaded


def close(found, expected):
    return np.all(np.isfinite(found)) and np.abs(np.asarray(found) - expected).max() < 1e-10 * np.abs(expected).max()


def checks(modules):
    """Each check as a function that says whether it holds, the quickest first."""
    hippo, generating, cauchy, vandermonde, dplr, diagonal = (modules[name] for name in MODULES)
    system = random_dplr(4, 0)
    Lambda, P, Q, B, C = (jnp.asarray(x) for x in system)
    Ab, Bb = dense_discretization(*system[:4], STEP)
    factor = np.eye(4) - np.linalg.matrix_power(Ab, L)
    C_tilde = (full(system[4]) @ factor)[:2]
    K = dense_kernel(*system, STEP, L)
    z = np.exp(-2j * np.pi * np.arange(L) / L)
    K_hat = np.array([np.sum(K * w ** np.arange(L)) for w in z])
    theta = np.array([0.3, 2.0])

    def legs():
        Lambda, P, B, V = (np.asarray(x) for x in hippo.dplr_legs(4))
        U, A = np.concatenate([V, V.conj()], 1), np.asarray(hippo.hippo_legs(4)[0])
        rebuilt = U @ (np.diag(full(Lambda)) - np.outer(full(P), full(P).conj())) @ U.conj().T
        return close(rebuilt, A) and close(U @ full(B), np.asarray(hippo.hippo_legs(4)[1]))

    def pairs():
        s, c = np.sin(theta / 2), np.cos(theta / 2)
        expected = [np.sum(full(system[1]) / (2j * s[j] - STEP * c[j] * full(system[0]))) for j in range(2)]
        return close(cauchy.pair_sum(P, Lambda, jnp.asarray(STEP), jnp.asarray(theta)), expected)

    def real_pairs():
        rows = jnp.stack([P, Q])[None]
        found = cauchy.pair_sum_real(rows, STEP * Lambda[None], jnp.asarray(theta), False)[0]
        return close(found, np.array([cauchy.pair_sum(row, Lambda, jnp.asarray(STEP), jnp.asarray(theta)) for row in rows[0]]))

    def textbook_sum():
        expected = [np.sum(system[1] / (w - system[0])) for w in z]
        return close(cauchy.cauchy_textbook(P, jnp.asarray(z), Lambda), expected)

    def generating_function():
        rotation = np.exp(0.3j)  # no symmetry that a conjugate could hide in
        arguments = (rotation * Ab, rotation * Bb, full(C_tilde) * rotation, z[1:3])
        expected = [arguments[2] @ np.linalg.solve(np.eye(4) - w * arguments[0], arguments[1]) for w in z[1:3]]
        return close(generating.generating_function(*map(jnp.asarray, arguments)), expected)

    def powers():
        expected = np.array([np.sum(system[1] * np.exp(l * STEP * system[0])) for l in range(L)])
        textbook = vandermonde.vandermonde_textbook(P, STEP * Lambda, L)
        pairs = (form(P, STEP * Lambda, L) for form in (vandermonde.vandermonde_pairs, vandermonde.vandermonde_two_level))
        return close(textbook, expected) and all(close(found, 2 * expected.real) for found in pairs)

    def diagonal_kernels(method):
        def holds():
            for which in ("zoh", "bilinear"):
                expected = kernel_of(*diagonal_discretization(system[0], system[3], STEP, which), full(system[4]), L)
                if not close(diagonal.kernel_diagonal(Lambda, B, C, STEP, L, which, method), expected):
                    return False
            powers = np.exp(STEP * np.outer(full(system[0]), np.arange(L)))
            softmax = (full(system[1] / system[0]) @ (powers / powers.sum(1, keepdims=True))).real
            return close(diagonal.kernel_dss(Lambda, P, STEP, L, method), softmax)

        return holds

    def diagonal_step():
        for which in ("zoh", "bilinear"):
            Ab, Bb = diagonal_discretization(system[0], system[3], STEP, which)
            found = diagonal.discretize_diagonal(Lambda, B, STEP, which).step(state, jnp.asarray(0.5))
            if not close(found, (Ab @ full(np.asarray(state)) + 0.5 * Bb)[:2]):
                return False
        return True

    step = jnp.asarray(STEP)
    state = jnp.asarray([0.3 - 0.4j, 1.0 + 0.2j])
    return {
        "legs": legs,
        "pairs": pairs,
        "textbook sum": textbook_sum,
        "values": lambda: close(generating.kernel_from_values(jnp.asarray(K_hat)), K),
        "generating function": generating_function,
        "step": lambda: close(
            dplr.discretize_dplr(Lambda, P, Q, B, STEP).step(state, jnp.asarray(0.5)), (Ab @ full(state) + 0.5 * Bb)[:2]
        ),
        "dense": lambda: close(dplr.kernel_dplr(Lambda, P, Q, B, jnp.asarray(C_tilde), STEP, L, "dense"), K),
        "textbook": lambda: close(dplr.kernel_dplr(Lambda, P, Q, B, jnp.asarray(C_tilde), STEP, L, "textbook"), K),
        "powers": powers,
        "exprel": lambda: close(diagonal.exprel(Lambda), (np.exp(system[0]) - 1) / system[0]),
        "diagonal dense": diagonal_kernels("dense"),
        "diagonal two-level": diagonal_kernels("two_level"),
        "blocked": lambda: close(dplr.kernel_dplr(Lambda, P, Q, B, jnp.asarray(C_tilde), STEP, L, "blocked"), K),
        "real pairs": real_pairs,
        "diagonal textbook": diagonal_kernels("textbook"),
        "diagonal step": diagonal_step,
        "to tilde": lambda: close(generating.to_tilde(C, Lambda, P, Q, step, L), C_tilde),
        "from tilde": lambda: close(generating.from_tilde(jnp.asarray(C_tilde), Lambda, P, Q, step, L), system[4]),
    }


def test_without_a_change_every_check_holds(float64):
    for name, holds in checks(load()).items():
        assert holds(), name


@pytest.mark.parametrize("module", MODULES)
def test_every_conjugate_is_needed_and_none_is_missing(float64, module):
    survivors = []
    for name, tree in mutants(module):
        if not name.endswith(SAME_VALUE) and all(holds() for holds in checks(load(module, tree)).values()):
            survivors.append(name)
    assert not survivors, "no check notices these"


def test_there_is_something_to_change():
    names = [name for module in MODULES for name, _ in mutants(module)]
    assert sum("without" in name for name in names) >= 10 and sum("conjugated" in name for name in names) >= 30
