"""Random systems and the dense float64 recurrence that is the oracle of every kernel."""

import numpy as np


def full(x):
    """One of each conjugate pair -> the whole state."""
    return np.concatenate([x, np.conj(x)], axis=-1)


def dense_A(Lambda, P, Q):
    """diag(Lambda) - P Q* over the whole state."""
    return np.diag(full(Lambda)) - np.outer(full(P), full(Q).conj())


def dense_discretization(Lambda, P, Q, B, step):
    """Ab and Bb of the bilinear form, with dense solves."""
    A = dense_A(Lambda, P, Q)
    left, right = np.eye(len(A)) - step / 2 * A, np.eye(len(A)) + step / 2 * A
    return np.linalg.solve(left, right), np.linalg.solve(left, step * full(B))


def dense_kernel(Lambda, P, Q, B, C, step, L):
    """K_l = C Ab^l Bb, one step after the other."""
    Ab, x = dense_discretization(Lambda, P, Q, B, step)
    K = []
    for _ in range(L):
        K.append(full(C) @ x)
        x = Ab @ x
    return np.array(K).real


def random_dplr(N, seed, *, tied=False, real=False):
    """Lambda, P, Q, B, C with N/2 modes: a stable system, shifted until its spectral abscissa is at most -0.05."""
    rng = np.random.default_rng(seed)
    draw = lambda: rng.normal(size=N // 2) + (0 if real else 1j) * rng.normal(size=N // 2)
    Lambda = -0.1 - np.abs(rng.normal(size=N // 2)) + 3j * rng.normal(size=N // 2)
    P = draw() / np.sqrt(N)
    Q = P if tied else draw() / np.sqrt(N)
    abscissa = np.linalg.eigvals(dense_A(Lambda, P, Q)).real.max()
    return Lambda - max(0, abscissa + 0.05), P + 0j, Q + 0j, draw() + 0j, draw() + 0j
