"""Integer networks whose data and results are codes, as sensors and other programs have them.

```python
import jax
import jaxeff
from jaxeff.compression import Int, calibrate, integer
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
g = integer(f, calibrate(f, params, x, {"*:linear": Int(8)}).spec)
h = g.coded(params, x)                   # data on the first layers' grids, results on one of 8 bits
(q,) = h.encode(x)                       # uint8
codes = h.convert(params, q)
logits = h.decode(h(codes, q))           # deploy(h, (codes, q)) compiles it
assert q.dtype == h(codes, q).dtype == jax.numpy.uint8
assert jax.numpy.abs(logits - g(params, x)).max() <= h.results[0].step
```

A code q stands for `(q - zero) * step`: `h.arguments[0].step`, `h.arguments[0].zero`. Headers of C
libraries have both as numbers. Codes of data and results may have up to 16 bits, as int16:
`g.coded(params, x, arguments=Uniform(16, range=(-1, 1)), results=Uniform(16, range=(-9, 9)))`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.compression.integers._layers import Move
from jaxeff.compression.integers._operators import Codes, IntegerError, WideCodes, is_wide
from jaxeff.compression.integers._values import FloatValue
from jaxeff.compression.numerics import Tensor
from jaxeff.compression.quantizers import Uniform


@dataclass(frozen=True, eq=False)
class Argument(FloatValue):
    """Data of a call, which remember the grids that they are read on.

    Attributes:
        seen: The grids so far; None for a reader of floats.
    """

    seen: list[Codes | None]

    @classmethod
    def of_codes(cls, codes: Array, grid: Codes, seen: list[Codes | None]) -> Argument:
        """Makes data that come as codes."""
        argument = cls(grid.read(codes), seen)
        argument._codes[grid] = codes
        return argument

    def dequantize(self) -> Array:
        """Returns the data in float."""
        self.seen.append(None)
        return self.x

    def requantize(self, grid: Codes) -> Array:
        """Returns the data's codes on a grid."""
        self.seen.append(grid)
        return super().requantize(grid)

    def moved(self, move: Move) -> Argument:
        """Moves the elements."""
        # The same list: readers of the moved data are readers of these.
        new = Argument(move(self.x), self.seen)
        new._codes.update((grid, move(codes)) for grid, codes in self._codes.items())
        return new


Given = dict[int, Argument]
"""Leaves of a call's arguments that others stand for, by their place among all."""
Grid = Codes | WideCodes | None
"""Of a leaf of data or results; None for one that is whole numbers anyway."""
Run = Callable[[tuple[Any, ...], Given, Sequence[Grid] | None], Any]
"""`run(args, given, results)`: the integer network, with results on grids."""
Convert = Callable[[Any, tuple[Any, ...], Given, Sequence[Grid]], Any]
"""`convert(params, data, given, results)`: the parameters of such a network."""


@dataclass(eq=False)
class Coded:
    """The function that `Integer.coded` returns: `h(params, *codes)`.

    Attributes:
        arguments: The grid of every leaf of the data; None for one that is whole numbers anyway.
        results: The grid of every leaf of the results; None for one that is whole numbers anyway.
    """

    arguments: tuple[Grid, ...]
    results: tuple[Grid, ...]
    _run: Run
    _convert: Convert

    def __call__(self, params: Any, *codes: Any) -> Any:
        """Computes codes of the results.

        Raises:
            TypeError: There are more or fewer arrays of data, or codes of another dtype than their
                grid's: uint8 of up to 8 bits, int16 of more.
        """
        floats, notes = self._read(params, codes)
        return self._run((params, *floats), notes, self.results)

    def convert(self, params: Any, *codes: Any) -> Any:
        """Converts parameters to codes, as `Integer.convert` does, for these results.

        Args:
            params: Float parameters of the model.
            *codes: Codes of data, uint8 or int16; only shapes count.

        Raises:
            TypeError: As for a call.
        """
        floats, notes = self._read(params, codes)
        return self._convert(params, floats, notes, self.results)

    def _read(self, params: Any, codes: tuple[Any, ...]) -> tuple[tuple[Any, ...], Given]:
        """Makes stand-ins for data in float, and what is read in their place."""
        leaves, structure = jax.tree.flatten(codes)
        self._check(leaves)
        first = len(jax.tree.leaves(params))
        notes = {
            first + i: Argument.of_codes(leaf, grid, [])
            for i, (leaf, grid) in enumerate(zip(leaves, self.arguments, strict=True))
            if isinstance(grid, Codes)
        }
        floats = [_data(*pair) for pair in zip(leaves, self.arguments, strict=True)]
        return jax.tree.unflatten(structure, floats), notes

    def _check(self, leaves: Sequence[Any]) -> None:
        """Checks that data are codes, where codes are read."""
        if len(leaves) != len(self.arguments):
            raise TypeError(
                f"The data are {len(self.arguments)} arrays, but {len(leaves)} were given."
            )
        for i, (leaf, grid) in enumerate(zip(leaves, self.arguments, strict=True)):
            # Floats would be taken for codes, and signed codes for others.
            if grid is None:
                continue
            dtype = jnp.uint8 if isinstance(grid, Codes) else jnp.int16
            if jnp.result_type(leaf) != dtype:
                raise TypeError(
                    f"Array {i} of the data is {jnp.result_type(leaf)}, but codes are "
                    f"{jnp.dtype(dtype)}: encode(...) makes them."
                )

    @property
    def code_grids(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The steps and zeros of data and of results, which an export writes down."""
        both = (self.arguments, self.results)
        of_data, of_results = (
            tuple(None if grid is None else (grid.step, grid.zero) for grid in grids)
            for grids in both
        )
        return of_data, of_results

    def encode(self, *args: Any) -> tuple[Any, ...]:
        """Writes data as codes, one tree for each argument."""
        return _mapped(lambda grid, x: grid.write(jnp.asarray(x)), self.arguments, args)

    def decode(self, results: Any) -> Any:
        """Reads the codes of results."""
        return _mapped(lambda grid, q: grid.read(q), self.results, results)


def _data(leaf: Any, grid: Grid) -> Any:
    """Returns data that the function itself, one of floats, takes."""
    # Values are never read where kernels read codes: no array is made of them.
    if isinstance(grid, Codes):
        return jnp.zeros(jnp.shape(leaf), jnp.float32)
    return leaf if grid is None else grid.read(leaf)


def coded(
    run: Run,
    convert: Convert,
    params: Any,
    args: tuple[Any, ...],
    results: Uniform | Sequence[Uniform] | None,
    arguments: Uniform | None = None,
) -> Coded:
    """Finds the grids of data and results; the rest is as for `Integer.coded`."""
    # Leaves of the parameters come before those of the data, as in the program.
    first, leaves = len(jax.tree.leaves(params)), jax.tree.leaves(args)
    seen: dict[int, list[Codes | None]] = {
        i: []
        for i, leaf in enumerate(leaves)
        if arguments is None and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    }

    @jax.jit
    def outputs(params: Any, args: tuple[Any, ...]) -> Any:
        of_data = jax.tree.leaves(args)
        by_argument = {first + i: Argument(of_data[i], notes) for i, notes in seen.items()}
        return run((params, *args), by_argument, None)

    # Running the example once tells both: the grids that data are read on, and the results' range.
    result_leaves = jax.tree.leaves(outputs(params, args))
    paths = [
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(args)[0]
    ]
    grids: list[Grid] = [
        _grid_of(seen[i], paths[i]) if i in seen else _wide_grid(arguments, leaf, paths[i])
        for i, leaf in enumerate(leaves)
    ]
    floats = [i for i, y in enumerate(result_leaves) if jnp.issubdtype(y.dtype, jnp.floating)]
    if results is None:
        quantizers: Sequence[Uniform] = [
            Uniform(8, range=(float(result_leaves[i].min()), float(result_leaves[i].max())))
            for i in floats
        ]
    else:
        quantizers = results if isinstance(results, Sequence) else [results] * len(floats)
    if len(quantizers) != len(floats):
        raise IntegerError(
            f"There are {len(floats)} results in float, and {len(quantizers)} grids."
        )
    grids_of_results: list[Grid] = [None] * len(result_leaves)
    for i, quantizer in zip(floats, quantizers, strict=True):
        tensor = Tensor("result", f"[{i}]", "activation", np.ndim(result_leaves[i]))
        kind = WideCodes if is_wide(quantizer) else Codes
        grids_of_results[i] = kind.of(quantizer, tensor)
    return Coded(tuple(grids), tuple(grids_of_results), run, convert)


def _wide_grid(quantizer: Uniform | None, leaf: Any, path: str) -> Grid:
    """Returns the grid that data come on, whatever reads them; None for whole numbers."""
    if quantizer is None or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
        return None
    if not is_wide(quantizer):
        raise IntegerError(
            f"The data args{path} would have codes of {quantizer.bits} bits: of up to 8 bits they "
            "are on the grid of the layer that reads them (leave `arguments` out); of 9 to 16 on "
            "a grid of their own."
        )
    return WideCodes.of(quantizer, Tensor("args", path, "activation", np.ndim(leaf)))


def _grid_of(seen: Sequence[Codes | None], path: str) -> Codes:
    """Returns the one grid that data are read on."""
    # Several layers may read it, as long as they agree on the grid.
    grids = set(seen)
    if None in grids or len(grids) != 1:
        how = "in floating point" if None in grids else f"on {len(grids)} grids"
        how = how if grids else "by nobody"
        raise IntegerError(
            f"The data args{path} are read {how}, so that codes can't stand for them: let what "
            "reads them be layers with one setting of the spec (no arithmetic before these), or "
            "take int16 on a grid of their own, arguments=Uniform(16, range=(low, high))."
        )
    (grid,) = grids
    assert grid is not None
    return grid


def _mapped(act: Callable[[Any, Any], Any], grids: Sequence[Grid], tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    if len(leaves) != len(grids):
        raise TypeError(f"There are {len(grids)} arrays to map, but {len(leaves)} were given.")
    pairs = zip(grids, leaves, strict=True)
    return jax.tree.unflatten(structure, [x if grid is None else act(grid, x) for grid, x in pairs])
