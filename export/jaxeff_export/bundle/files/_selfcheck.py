"""Self-check of a board: recorded pairs of inputs and JAX's outputs, replayed and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np

from jaxeff_export.artifact import TensorSpec


class RecordedPair(NamedTuple):
    """Recorded call that a self-check replays.

    Attributes:
      inputs: flattened.
      outputs: what JAX computed from them, flattened.
      batch: the number of examples in them, if that may vary.
    """

    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]
    batch: int | None = None


@dataclass(frozen=True)
class OutputCheck:
    """The comparison of one result.

    Attributes:
      name: name of the result.
      max_abs_error: the largest deviation from JAX's result; NaN if they differ in what is finite.
      scale: the largest finite magnitude in JAX's result.
      tolerance: the relative deviation that counts as rounding in this dtype.
    """

    name: str
    max_abs_error: float
    scale: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the deviation is rounding; NaN never is."""
        # A comparison with NaN is false: results that differ in what is finite never pass.
        return self.max_abs_error <= self.tolerance * self.scale


@dataclass(frozen=True)
class SelfCheck:
    """The replay of a bundle's recorded pairs on a board.

    Sharp edge: integer layers are held to the bits of XLA where their data come as codes or from
    the input. Behind floats that XLA and a library add up in other orders (norms, softmax), a few
    codes of many differ by one, which is more than rounding: the check says by how much, and
    fails. Then compare with the step of a code, or judge results by their accuracy.

    Attributes:
      board: name of the board.
      outputs: one comparison per result, of every batch that is recorded.
    """

    board: str
    outputs: tuple[OutputCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether every result agrees."""
        return all(output.passed for output in self.outputs)

    @property
    def max_abs_error(self) -> float:
        """The largest deviation over all results."""
        return float(np.max([output.max_abs_error for output in self.outputs], initial=0.0))

    @property
    def max_relative_error(self) -> float:
        """The largest deviation, each result's relative to its own largest magnitude."""
        ratios = [
            0.0 if output.max_abs_error == 0 else output.max_abs_error / (output.scale or 1e-300)
            for output in self.outputs
        ]
        return float(np.max(ratios, initial=0.0))

    def __str__(self) -> str:
        if self.passed:
            return f"{self.board} agrees with JAX: max abs error {self.max_abs_error:.3g}"
        worst = next(output for output in self.outputs if not output.passed)
        return (
            f"{self.board} disagrees with JAX: {worst.name} is off by {worst.max_abs_error:.3g} "
            f"where its largest value is {worst.scale:.3g}"
        )


def compare(
    board: str,
    specs: Sequence[TensorSpec],
    ours: Sequence[Sequence[np.ndarray]],
    pairs: Sequence[RecordedPair],
) -> SelfCheck:
    """Compares a board's results with the recorded ones.

    Args:
      board: the name of the board.
      specs: specs of the results of a call.
      ours: the board's, one sequence per pair.
      pairs: what is recorded.
    """
    checks = []
    for results, pair in zip(ours, pairs, strict=True):
        of = "" if pair.batch is None else f" of a batch of {pair.batch}"
        for spec, actual, expected in zip(specs, results, pair.outputs, strict=True):
            error, scale = _deviation(actual, expected)
            checks.append(OutputCheck(spec.name + of, error, scale, tolerance(expected.dtype)))
    return SelfCheck(board, tuple(checks))


def tolerance(dtype: np.dtype) -> float:
    """Returns the deviation, relative to a result's largest magnitude, that passes as rounding.

    A thousand units in the last place for float32 and float64, which a deep network's reordered
    sums reach; eight for the short formats; none for integers and booleans.
    """
    if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
        return 0.0
    precision = float(ml_dtypes.finfo(dtype).eps)
    # 1e-6 lies between float32 (1.2e-7) and float16 (9.8e-4).
    return precision * (1000.0 if precision < 1e-6 else 8.0)


def _deviation(actual: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    wide = np.complex128 if np.issubdtype(expected.dtype, np.complexfloating) else np.float64
    # float64 holds the shorter formats exactly, so the difference is that of the results.
    ours, theirs = np.asarray(actual, wide), np.asarray(expected, wide)
    finite = np.isfinite(theirs)
    scale = float(np.max(np.abs(theirs), where=finite, initial=0.0))
    # Infinities (a log-probability of an impossible class) have to be the same ones.
    same_elsewhere = np.array_equal(ours[~finite], theirs[~finite])
    if ours.shape != theirs.shape or not same_elsewhere:
        return float("nan"), scale
    with np.errstate(invalid="ignore"):
        # Where both are infinite the difference is NaN, which `where` leaves out below.
        difference = np.abs(ours - theirs)
    return float(np.max(difference, where=finite, initial=0.0)), scale
