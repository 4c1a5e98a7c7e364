"""Sessions of a bundle with state: calls that follow each other on arrays that stay.

Each session has arrays of its own, so any number of them run beside each other, each from any
thread; the calls of one take turns. The arrays stay on the board: a call is given the other
arguments and returns the other results.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from jaxeff.store import open_regular, write_atomically
from jaxeff_export.artifact import (
    SignatureError,
    TensorSpec,
    belongs,
    check_leaves,
    count_leaves,
    digest,
    rebuild,
)
from jaxeff_export.bundle.files import BundleError, Manifest, pack_arrays, unpack_arrays
from jaxeff_export.bundle.running._numbers import require_numbers
from jaxeff_export.bundle.running._state_memory import MachineMemory, StateMemory

_NAMES = TensorSpec("a digest of its arrays' names", (32,), "uint8")  # the first in a file


class Session:
    """Calls of a function whose state stays in the bundle; made by ``bundle.session()``.

    Args:
      manifest: the bundle's.
      memory: where the state is.
      initial: what it begins with.
      treedef: the exact structure of results, where this process knows it.
    """

    def __init__(
        self,
        manifest: Manifest,
        memory: StateMemory,
        initial: Sequence[np.ndarray],
        treedef: Any = None,
    ) -> None:
        self._manifest, self._memory, self._initial = manifest, memory, list(initial)
        self._treedef = treedef
        places = manifest.places
        self._state = [manifest.inputs[old] for old, _ in places]
        kept = {old for old, _ in places}
        told = digest("\n".join(spec.name for spec in self._state).encode())
        self._names = np.frombuffer(bytes.fromhex(told), np.uint8)
        self._data = [spec for i, spec in enumerate(manifest.inputs) if i not in kept]
        self._arguments = [name for name in manifest.arguments if name not in manifest.state]

    def __getstate__(self) -> NoReturn:
        """Refuses to be pickled or copied.

        Raises:
          TypeError: saying what to do instead.
        """
        raise TypeError(
            "a Session is arrays on a board, which no pickle holds: its save and load, or state "
            "and restore, take them elsewhere."
        )

    def step(self, *inputs: Any) -> Any:
        """Calls the function on what is not state, and updates the state.

        Args:
          *inputs: the data arguments without those that are state.

        Returns:
          What the function returned under JAX before the new state, with numpy arrays as leaves;
          a tuple if that is several elements.

        Raises:
          SignatureError: naming an input of another shape or dtype than it was compiled for, or
            one that holds NaN and is rounded to codes.
          BoardError: if the board fails, which loses the state.
        """
        arrays = check_leaves(inputs, self._arguments, self._data)
        if self._manifest.rounds_inputs:
            require_numbers(arrays, self._data)
        # Calls of one session follow each other, from whatever threads.
        with self._memory.turn:
            results = self._memory.call(arrays)
        return self._result(results)

    def reset(self) -> None:
        """Begins again, with the state of the example that the bundle was deployed with."""
        self._write(self._initial)

    def state(self) -> dict[str, Any]:
        """Copies the state: by argument, with numpy arrays as leaves."""
        with self._memory.turn:
            arrays = self._memory.read()
        return self._trees(arrays)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Sets the state, such as to what `state` returned of this session or of another.

        Args:
          state: by argument, all of them.

        Raises:
          SignatureError: naming what is missing, or of another shape or dtype.
          TypeError: if it is no mapping.
        """
        names = self._manifest.state
        if not isinstance(state, Mapping):
            raise TypeError(
                f"the state is a mapping of {', '.join(names)}, as session.state() returns it, not "
                f"a {type(state).__name__}; reset begins again."
            )
        if set(state) != set(names):
            raise SignatureError(
                f"the state is {', '.join(names)}, what was given {', '.join(state) or 'nothing'}"
            )
        # In the order of the results, which is that of the arrays on the board.
        specs = [spec for name in names for spec in self._state if belongs(spec, name)]
        self._write(check_leaves([state[name] for name in names], names, specs))

    def save(self, path: str | Path) -> Path:
        """Writes the state to one file, whole or not at all."""
        with self._memory.turn:
            arrays = self._memory.read()
        path = Path(path)
        write_atomically(path, pack_arrays([self._names, *arrays]))
        return path

    def load(self, path: str | Path) -> None:
        """Sets the state to that of a file that `save` wrote.

        Raises:
          BundleError: if the file is missing, damaged, or of a session with other state.
        """
        try:
            with open_regular(Path(path)) as (file, _):
                data = file.read()
        except OSError as error:
            raise BundleError(f"{path} cannot be read: {error.strerror}") from error
        try:
            names, *arrays = unpack_arrays(data, [_NAMES, *self._state])
        except ValueError as error:
            raise BundleError(f"{path} is no state of this bundle: {error}") from error
        # Arrays of other names may have the same shapes.
        if not np.array_equal(names, self._names):
            raise BundleError(
                f"{path} is the state of another bundle: this one's is, in this order, "
                f"{', '.join(spec.name for spec in self._state)}; restore takes it by name"
            )
        self._write(arrays)

    def tensors(self, manifest: Manifest) -> tuple[list[Any], threading.RLock]:
        """Returns the arrays on the board, for another bundle whose state they are as well.

        Raises:
          BundleError: if its state is another, or these arrays are on no board that keeps them.
        """
        # The same names, shapes and dtypes: one array serves both.
        theirs = [manifest.inputs[old] for old, _ in manifest.places]
        if not isinstance(self._memory, MachineMemory) or theirs != self._state:
            ours = ", ".join(f"{s.name} {s.dtype}{list(s.shape)}" for s in self._state)
            raise BundleError(f"the shared session has other state, or none that stays: {ours}")
        return self._memory.state, self._memory.turn

    def _write(self, arrays: Sequence[np.ndarray]) -> None:
        with self._memory.turn:
            self._memory.write(arrays)

    def _result(self, results: Sequence[np.ndarray]) -> Any:
        """Rebuilds what a call returns beside the state."""
        structure, count = self._manifest.structure, len(self._manifest.state)
        if self._treedef is None:
            items = structure["items"][: len(structure["items"]) - count]
            tree = rebuild({"kind": "tuple", "items": items}, results)
        else:
            # Nothing in place of the new state, which stays on the board.
            left = self._treedef.num_leaves - len(results)
            tree = jax.tree.unflatten(self._treedef, [*results, *[None] * left])[:-count]
        return tree[0] if len(tree) == 1 else tree

    def _trees(self, arrays: Sequence[np.ndarray]) -> dict[str, Any]:
        structure, names = self._manifest.structure, self._manifest.state
        rest, trees = list(arrays), {}
        for name, item in zip(names, structure["items"][-len(names) :], strict=True):
            count = count_leaves(item)
            trees[name], rest = rebuild(item, rest[:count]), rest[count:]
        return trees
