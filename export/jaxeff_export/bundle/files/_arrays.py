"""Arrays in a file, and recorded ones that a board's results are compared with.

Arrays are numpy's npz without pickle, and without losing dtypes numpy has no name for. A self-check
replays recorded pairs of inputs and JAX's outputs.
"""

import io
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np

from jaxeff.store import max_inflated_size, require_member
from jaxeff_export.artifact import TensorSpec, dtype_of

_DENSE = 0.75
"""Part of an array's entries that aren't zero, above which compressing saves little."""


def pack_arrays(arrays: Sequence[np.ndarray]) -> bytes:
    """Makes the content of an npz file of `arrays`, in order.

    Dtypes of ml_dtypes (bfloat16, float8) are stored as unsigned integers of their width; the
    reader's specs say what they were.
    """
    stored = {f"{index:05d}": _storable(np.asarray(array)) for index, array in enumerate(arrays)}
    # Codes take a byte each in memory, whole vectors of them, and in a file what they say; zeros of
    # pruned weights take next to nothing there.
    if any(array.dtype in (np.int8, np.uint8) or _is_sparse(array) for array in stored.values()):
        data = _npz(np.savez_compressed, stored)
        if sum(array.nbytes for array in stored.values()) <= max_inflated_size(len(data)):
            return data  # otherwise nobody would read it
    return _npz(np.savez, stored)


def unpack_arrays(data: bytes, specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """Reads the arrays of `pack_arrays`, checked against their specs before they are inflated.

    Raises:
      ValueError: if the content is no npz file, or an array is missing or another than `specs` say.
    """
    arrays: list[np.ndarray] = []
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(archive.namelist()) != len(specs):
                raise ValueError(f"it has {len(archive.namelist())} arrays, not {len(specs)}")
            # One budget for all: many arrays of allowed size could fill memory together.
            left = max_inflated_size(len(data))
            for index, spec in enumerate(specs):
                arrays.append(_unpacked(archive, f"{index:05d}.npy", spec, left))
                left -= arrays[-1].nbytes
    except ValueError:
        raise
    except Exception as error:  # at a zip file that is none, nearly any
        raise ValueError(f"it is no readable npz file ({error})") from error
    return arrays


class ArrayPlaces(NamedTuple):
    """Where a parameter's numbers lie in an array that was made of it, so that both are one file.

    Attributes:
      derived: which of the derived arrays it is.
      places: of every number, in the parameter's order, its place in the flattened array.
    """

    derived: int
    places: np.ndarray

    def read(self, derived: Sequence[np.ndarray], spec: TensorSpec) -> np.ndarray:
        """Reads the parameter.

        Raises:
          ValueError: if it can't be of that shape and dtype.
        """
        array, shape = derived[self.derived].reshape(-1), tuple(int(n) for n in spec.shape)
        if array.dtype != dtype_of(spec.dtype) or math.prod(shape) != len(self.places):
            raise ValueError(f"{spec.name} is of another shape or dtype than what holds it")
        if len(self.places) and not 0 <= self.places.min() <= self.places.max() < len(array):
            raise ValueError(f"{spec.name} has a number beyond the array that holds it")
        return array[self.places].reshape(shape)


def pack_places(places: Sequence[np.ndarray]) -> bytes:
    """Makes the content of a file of places: layouts repeat, and so do the steps in them."""
    steps = {f"{i:05d}": np.diff(p, prepend=0).astype(np.int32) for i, p in enumerate(places)}
    return _npz(np.savez_compressed, steps)


def unpack_places(data: bytes, counts: Sequence[int]) -> list[np.ndarray]:
    """Reads the places of `pack_places`, of so many numbers each.

    Raises:
      ValueError: as `unpack_arrays`.
    """
    specs = [TensorSpec(f"places[{i}]", (count,), "int32") for i, count in enumerate(counts)]
    return [np.cumsum(steps, dtype=np.int64) for steps in unpack_arrays(data, specs)]


def _npz(save: Callable[..., None], arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    save(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _unpacked(archive: zipfile.ZipFile, name: str, spec: TensorSpec, most: int) -> np.ndarray:
    """Reads an array of at most `most` bytes, if its header promises what `spec` does."""
    member, dtype = require_member(archive, name), dtype_of(spec.dtype)
    # The header alone is inflated here: dtype, shape and size are checked before memory is taken
    # for them.
    with archive.open(member) as file:
        if np.lib.format.read_magic(file) != (1, 0):  # later ones have headers of any length
            raise ValueError(f"{spec.name} has a header that jaxeff does not write")
        shape, _, stored = np.lib.format.read_array_header_1_0(file)
    if stored != dtype and stored != _stand_in(dtype):
        raise ValueError(f"{spec.name} has dtype {stored}, not {spec.dtype}")
    if not spec.admits(shape) or any(size < 0 for size in shape):
        raise ValueError(f"{spec.name} has shape {shape}, not {spec.shape}")
    if math.prod(shape) * stored.itemsize > most:
        raise ValueError(f"{spec.name} is inflated to more than such a file may hold")
    with archive.open(member) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):  # its checksum is looked at where the member ends
            raise ValueError(f"{spec.name} is followed by something else")
    return array.view(dtype)


def _is_sparse(array: np.ndarray) -> bool:
    return bool(array.size) and int(np.count_nonzero(array)) <= _DENSE * array.size


def _storable(array: np.ndarray) -> np.ndarray:
    # NumPy's own kinds; ml_dtypes' are written as integers, which any reader of npz knows.
    return array if array.dtype.kind in "biufc" else array.view(_stand_in(array.dtype))


def _stand_in(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"u{dtype.itemsize}")


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
      max_abs_error: the largest deviation from JAX's result, over what is finite there; NaN if
        they differ in what is NaN or infinite.
      scale: the largest finite magnitude in JAX's result.
      tolerance: the relative deviation that counts as rounding in this dtype.
    """

    name: str
    max_abs_error: float
    scale: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the deviation is rounding; NaN is where JAX's result is NaN too."""
        # A comparison with NaN is false: results that differ in what is finite never pass.
        return self.max_abs_error <= self.tolerance * self.scale


@dataclass(frozen=True, repr=False)
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

    def __bool__(self) -> bool:
        return self.passed

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
        if np.isnan(worst.max_abs_error):
            return (
                f"{self.board} disagrees with JAX: {worst.name} has NaN or infinity where JAX's "
                "result has other numbers"
            )
        return (
            f"{self.board} disagrees with JAX: {worst.name} is off by {worst.max_abs_error:.3g} "
            f"where its largest value is {worst.scale:.3g}"
        )

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, repr=False)
class DataCheck(SelfCheck):
    """A board's results over a data set, beside JAX's; prints as a line.

    Attributes:
      examples: number of them.
      same: examples whose results have JAX's bits; NaN is NaN.
      agreeing: examples that are decided as by JAX; None if the first result is no decision.
      right: examples that are decided as their labels say; None without labels.
      right_in_jax: the same of JAX.
      undecided: examples among whose scores JAX has NaN; they are right by no label.
    """

    examples: int
    same: int
    agreeing: int | None = None
    right: int | None = None
    right_in_jax: int | None = None
    undecided: int = 0

    @property
    def accuracy(self) -> float | None:
        """Share of examples that the board decides as their labels say."""
        return None if self.right is None else self.right / self.examples

    @property
    def agreement(self) -> float | None:
        """Share of examples that are decided as by JAX."""
        return None if self.agreeing is None else self.agreeing / self.examples

    def __str__(self) -> str:
        said = []
        if self.right is not None:
            theirs = (self.right_in_jax or 0) / self.examples
            said.append(f"accuracy {self.accuracy:.4g} (JAX: {theirs:.4g})")
        if self.agreeing is not None:
            said.append(f"{self.agreeing:,} decided as by JAX")
        said.append(f"{self.same:,} with JAX's bits")
        if self.undecided:
            said.append(f"{self.undecided:,} whose scores are NaN in JAX, so without a class")
        return f"{super().__str__()}; of {self.examples:,} examples: {', '.join(said)}"


def compare_data(
    board: str,
    ours: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    labels: np.ndarray | None,
    specs: Sequence[TensorSpec],
) -> DataCheck:
    """Compares a board's results over a data set with JAX's.

    Args:
      board: the name of the board.
      ours: the board's results, with an axis of examples first.
      theirs: JAX's.
      labels: integers `[examples]`, or None.
      specs: specs of the results of a call.

    Raises:
      ValueError: if there are labels and the first result is no decision.
    """
    checked = compare(board, specs, [ours], [RecordedPair([], theirs)])
    count = len(ours[0])
    # Compared as bytes: zeros of two signs differ.
    pairs = zip(map(_one_nan, ours), map(_one_nan, theirs), strict=True)
    alike = [
        np.array([a.tobytes() == b.tobytes() for a, b in zip(*pair, strict=True)]) for pair in pairs
    ]
    same = int(np.logical_and.reduce(alike).sum())
    mine, its = _decisions(ours[0]), _decisions(theirs[0])
    if mine is None or its is None:
        if labels is not None:
            raise ValueError(
                f"data: the first result, {specs[0].name}, is {ours[0].dtype}"
                f"{list(ours[0].shape[1:])} for an example, neither scores of classes nor a class; "
                "give data=(x, None) to compare results alone"
            )
        return DataCheck(board, checked.outputs, count, same)
    agreeing, undecided = int((mine == its).sum()), int((its == _UNDECIDED).sum())
    right = theirs_right = None
    if labels is not None:
        right, theirs_right = int((mine == labels).sum()), int((its == labels).sum())
    return DataCheck(board, checked.outputs, count, same, agreeing, right, theirs_right, undecided)


_UNDECIDED = np.iinfo(np.int64).min
"""The class of an example among whose scores is NaN: no label's, and the same in JAX."""


def _is_nan(values: np.ndarray) -> np.ndarray:
    exact = np.issubdtype(values.dtype, np.integer) or values.dtype == np.bool_
    return np.zeros(values.shape, bool) if exact else values != values


def _one_nan(values: np.ndarray) -> np.ndarray:
    """Writes all NaN with the same bits, of which more than one pattern stands for it."""
    missing = _is_nan(values)
    return np.where(missing, values.dtype.type("nan"), values) if missing.any() else values


def _decisions(scores: np.ndarray) -> np.ndarray | None:
    """Reads classes of examples: the largest score, or a whole number; None of anything else."""
    scores = scores.reshape(len(scores), -1) if scores.size == len(scores) else scores
    if scores.ndim == 2 and scores.shape[1] > 1:
        return np.where(_is_nan(scores).any(1), _UNDECIDED, scores.argmax(1))
    is_integer = np.issubdtype(scores.dtype, np.integer) or scores.dtype == np.bool_
    return scores[:, 0] if is_integer and scores.ndim == 2 else None


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
    # Infinities (a log-probability of an impossible class) and NaN have to be the same ones.
    if ours.shape != theirs.shape or not np.array_equal(
        ours[~finite], theirs[~finite], equal_nan=True
    ):
        return float("nan"), scale
    with np.errstate(invalid="ignore"):
        # Where both are infinite the difference is NaN, which `where` leaves out below.
        difference = np.abs(ours - theirs)
    return float(np.max(difference, where=finite, initial=0.0)), scale
