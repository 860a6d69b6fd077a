"""A sweep explains itself: t(b) = c0 + c1 * coverage(b) + c2 * b, with no part below zero.

c0: what every step costs (launches, host, latency of collectives). c1: reading all experts once. c2: what each token
adds (bytes on the wire, KV, arithmetic). c0 cannot tell slow collectives from slow launches: that needs a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True)
class Fit:
    """Milliseconds. `rms` is the relative error of the fit over its points."""

    c0: float
    c1: float
    c2: float
    rms: float
    points: int

    def step_ms(self, coverage: float, b: float) -> float:
        return self.c0 + self.c1 * coverage + self.c2 * b


def decompose(steps: Mapping[int, float], coverage: Callable[[float], float]) -> Fit | None:
    """Relative least squares over (b -> step in ms), every constant >= 0. None below four points: anything would fit.

    With three constants the best non-negative solution is the best of the eight in which some are held at zero.
    """
    if len(steps) < 4:
        return None
    rows = [((1.0 / t, coverage(b) / t, b / t), t) for b, t in sorted(steps.items())]
    best: tuple[float, tuple[float, ...]] | None = None
    for size in (1, 2, 3):
        for kept in combinations(range(3), size):
            solution = _least_squares([[row[i] for i in kept] for row, _ in rows])
            if solution is None or min(solution) < 0:
                continue
            whole = [0.0, 0.0, 0.0]
            for i, value in zip(kept, solution, strict=True):
                whole[i] = value
            error = sum((sum(c * x for c, x in zip(whole, row, strict=True)) - 1.0) ** 2 for row, _ in rows)
            if best is None or error < best[0] - 1e-15:
                best = (error, tuple(whole))
    if best is None:
        return None
    error, (c0, c1, c2) = best
    return Fit(c0, c1, c2, math.sqrt(error / len(rows)), len(rows))


def rms_with(steps: Mapping[int, float], coverage: Callable[[float], float], c1: float) -> float:
    """The relative error of the best fit whose reading of all experts takes `c1` ms: how much the sweep minds it."""
    rows = [((1.0 / t, b / t), 1.0 - c1 * coverage(b) / t) for b, t in sorted(steps.items())]
    errors = [sum(rest * rest for _, rest in rows)]
    for kept in ((0,), (1,), (0, 1)):
        solution = _least_squares([[row[i] for i in kept] for row, _ in rows], [rest for _, rest in rows])
        if solution is not None and min(solution) >= 0:
            error = 0.0
            for row, rest in rows:
                error += (sum(c * row[i] for c, i in zip(solution, kept, strict=True)) - rest) ** 2
            errors.append(error)
    return math.sqrt(min(errors) / len(rows))


def _least_squares(rows: list[list[float]], goals: Sequence[float] | None = None) -> list[float] | None:
    """x that brings each row * x nearest to its goal (1): the normal equations, by Gauss-Jordan with pivoting."""
    size = len(rows[0])
    goals = goals or [1.0] * len(rows)
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(size)]
        + [sum(row[i] * goal for row, goal in zip(rows, goals, strict=True))]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda i: abs(matrix[i][column]))
        if abs(matrix[pivot][column]) < 1e-12:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        matrix[column] = [value / matrix[column][column] for value in matrix[column]]
        for other in range(size):
            if other != column:
                factor = matrix[other][column]
                matrix[other] = [a - factor * b for a, b in zip(matrix[other], matrix[column], strict=True)]
    return [row[size] for row in matrix]
