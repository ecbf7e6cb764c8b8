"""Random systems and the dense float64 recurrence that is the oracle of every kernel."""

import numpy as np
import scipy.linalg


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
    return kernel_of(*dense_discretization(Lambda, P, Q, B, step), full(C), L)


def random_dplr(N, seed, *, tied=False, real=False):
    """Lambda, P, Q, B, C with N/2 modes: a stable system, shifted until its spectral abscissa is at most -0.05."""
    rng = np.random.default_rng(seed)
    draw = lambda: rng.normal(size=N // 2) + (0 if real else 1j) * rng.normal(size=N // 2)
    Lambda = -0.1 - np.abs(rng.normal(size=N // 2)) + 3j * rng.normal(size=N // 2)
    P = draw() / np.sqrt(N)
    Q = P if tied else draw() / np.sqrt(N)
    abscissa = np.linalg.eigvals(dense_A(Lambda, P, Q)).real.max()
    return Lambda - max(0, abscissa + 0.05), P + 0j, Q + 0j, draw() + 0j, draw() + 0j


def diagonal_discretization(Lambda, B, step, discretization):
    """Ab and Bb of A = diag(Lambda) over the whole state: dense solves, or one dense exponential of [[A, B], [0, 0]]."""
    if discretization == "bilinear":
        return dense_discretization(Lambda, np.zeros_like(Lambda), np.zeros_like(Lambda), B, step)
    N = 2 * len(Lambda)
    block = np.zeros((N + 1, N + 1), complex)
    block[:N, :N], block[:N, N] = np.diag(full(Lambda)), full(B)
    power = scipy.linalg.expm(step * block)
    return power[:N, :N], power[:N, N]


def kernel_of(Ab, Bb, C, L):
    """K_l = C Ab^l Bb, one step after the other; C over the whole state."""
    K, x = [], Bb
    for _ in range(L):
        K.append(C @ x)
        x = Ab @ x
    return np.array(K).real
