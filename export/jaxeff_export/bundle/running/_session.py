"""Sessions of a bundle with state: calls that follow each other on arrays that stay.

Each session has arrays of its own, so any number of them run beside each other, each from any
thread; the calls of one take turns. The arrays stay where the calls are, on the board
(`MachineMemory`, in a `LoadedMachine`) or here beside them (`HostMemory`): a call is given the
other arguments and returns the other results.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import jax
import numpy as np

from jaxeff.store import open_regular, write_atomically
from jaxeff_export import artifact
from jaxeff_export.bundle.files import BundleError, Manifest, pack_arrays, unpack_arrays


class LoadedMachine:
    """Calls a library on arrays that it was given once and that later calls write into.

    Args:
      machine: TVM's virtual machine.
      operands: what the library takes before the data, on the board.
      tensors: the data, on the board.
      specs: what the data are.
      put: makes such tensors of arrays.
      remote: whether the board is another process, whose memory can't be looked into, and which
        takes copies of what it is given.
    """

    def __init__(
        self,
        machine: Any,
        operands: Sequence[Any],
        tensors: Sequence[Any],
        specs: Sequence[artifact.TensorSpec],
        put: Callable[[Sequence[np.ndarray]], list[Any]],
        remote: bool,
    ) -> None:
        self.machine, self.tensors = machine, list(tensors)
        self._operands, self._put, self._remote = operands, put, remote
        self._dtypes = [artifact.dtype_of(spec.dtype) for spec in specs]
        self._views = [self._view(*pair) for pair in zip(tensors, self._dtypes, strict=True)]
        # Looked up once. The machine's own get_outputs is a recursive closure, a cycle that would
        # keep a remote session alive until some later garbage collection.
        names = "invoke_stateful", "get_output", "get_output_arity"
        self._invoke, self._get_output, self._arity = (machine.module[name] for name in names)
        self._outputs: int | None = None
        machine.set_input("main", *operands, *tensors)

    def give(self, arrays: Sequence[np.ndarray], places: Iterable[int] | None = None) -> None:
        """Copies data to where the machine finds them.

        Arrays have the data's shapes, but for a batch that varies, and dtypes; `places` says which
        of the data they are, all by default.
        """
        moved = self._remote
        for i, array in zip(range(len(arrays)) if places is None else places, arrays, strict=True):
            view = self._views[i]
            if view is not None and view.shape == array.shape:
                # TVM's own copies take tens of microseconds of Python, more than small networks.
                np.copyto(view, array)
            elif tuple(self.tensors[i].shape) == array.shape:
                self.tensors[i].copyfrom(array)
            else:  # another batch than that of the call before
                (self.tensors[i],), moved = self._put([array]), True
                self._views[i] = self._view(self.tensors[i], self._dtypes[i])
        if moved:
            self.machine.set_input("main", *self._operands, *self.tensors)

    def invoke(self) -> None:
        """Calls the function."""
        self._invoke("main")

    def output(self, index: int) -> Any:
        """Returns a result of the last call, on the board; the next call may overwrite it."""
        # A single result is no tuple of one, which is said by a negative number of them.
        if self._outputs is None:
            self._outputs = int(self._arity("main"))
        return self._get_output("main") if self._outputs < 0 else self._get_output("main", index)

    def read(self, index: int, spec: artifact.TensorSpec) -> np.ndarray:
        """Copies a result of the last call, in the shape that the manifest has."""
        tensor = self.output(index)
        view = self._view(tensor, artifact.dtype_of(spec.dtype))
        # A copy: the next call writes into the same memory.
        array = tensor.numpy() if view is None else view.copy()
        return array if spec.varies else array.reshape([int(n) for n in spec.shape])

    def _view(self, tensor: Any, dtype: np.dtype) -> np.ndarray | None:
        """Looks at a tensor's memory, where that is here and NumPy has such numbers itself."""
        return None if self._remote or dtype.isbuiltin != 1 else np.from_dlpack(tensor)


class StateMemory(Protocol):
    """Arrays of a session on a board."""

    turn: threading.RLock

    def call(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Calls the function on data, and returns its results without the state."""

    def read(self) -> list[np.ndarray]:
        """Copies the state from the board."""

    def write(self, arrays: Sequence[np.ndarray]) -> None:
        """Copies a state to the board."""


class MachineMemory:
    """Arrays of a session beside a virtual machine, which is given them once.

    Args:
      machine: a virtual machine of its own, given all data, state among them.
      manifest: the bundle's.
      on_board: runs an action on the board, given what it does.
      turn: held by calls that use the arrays.
      copies: whether the machine takes copies of what it is given, as it does across RPC.
    """

    def __init__(
        self,
        machine: LoadedMachine,
        manifest: Manifest,
        on_board: Callable[[str, Callable[[], Any]], Any],
        turn: threading.RLock,
        copies: bool,
    ) -> None:
        self.turn = turn
        self._on_board, self._copies = on_board, copies
        self._machine = machine
        olds = [old for old, _ in manifest.places]
        self._news = [new for _, new in manifest.places]
        self.state = [machine.tensors[old] for old in olds]
        self._data = [i for i in range(len(machine.tensors)) if i not in olds]
        self._results = [
            (i, spec) for i, spec in enumerate(manifest.outputs) if i not in self._news
        ]

    def call(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Calls the function on data, and returns its results without the state."""

        def call() -> list[np.ndarray]:
            # State isn't touched: kernels write over it where it lies.
            self._machine.give(leaves, self._data)
            self._machine.invoke()
            if self._copies:
                # From one place of the board to another.
                for new, tensor in zip(self._news, self.state, strict=True):
                    self._machine.output(new).copyto(tensor)
            return [self._machine.read(*result) for result in self._results]

        return self._on_board("run the library", call)

    def read(self) -> list[np.ndarray]:
        """Copies the state from the board."""
        return self._on_board("read the state", lambda: [t.numpy() for t in self.state])

    def write(self, arrays: Sequence[np.ndarray]) -> None:
        """Copies a state to the board."""

        def write() -> None:
            for tensor, array in zip(self.state, arrays, strict=True):
                tensor.copyfrom(array)

        self._on_board("write the state", write)


class HostMemory:
    """Arrays of a session in this process, for boards that keep nothing between calls.

    Args:
      call: calls the function on all data and returns all results.
      example: all data to begin with.
      manifest: the bundle's.
    """

    def __init__(
        self,
        call: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
        example: Sequence[np.ndarray],
        manifest: Manifest,
    ) -> None:
        self.turn = threading.RLock()
        self._call, self._places = call, manifest.places
        self._arrays = list(example)

    def call(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Calls the function on data, and returns its results without the state."""
        olds = {old for old, _ in self._places}
        fresh = iter(leaves)
        # In the order of the arguments, among which state may stand anywhere.
        taken = [a if i in olds else next(fresh) for i, a in enumerate(self._arrays)]
        results = self._call(taken)
        self.write([results[new] for _, new in self._places])
        news = {new for _, new in self._places}
        return [result for i, result in enumerate(results) if i not in news]

    def read(self) -> list[np.ndarray]:
        """Copies the state."""
        return [self._arrays[old].copy() for old, _ in self._places]

    def write(self, arrays: Sequence[np.ndarray]) -> None:
        """Sets the state."""
        for (old, _), array in zip(self._places, arrays, strict=True):
            # A copy: the caller may change what it gave.
            self._arrays[old] = np.array(array)


def require_numbers(arrays: Sequence[np.ndarray], specs: Sequence[artifact.TensorSpec]) -> None:
    """Refuses arrays that hold NaN; infinities are taken.

    Args:
      arrays: the data of a call, flattened.
      specs: what they are.

    Raises:
      SignatureError: naming the first array that holds NaN.
    """
    for array, spec in zip(arrays, specs, strict=True):
        # Whole numbers have no NaN; ml_dtypes' floats are of no kind that NumPy knows.
        if array.dtype.kind not in "biu" and not spec.dtype.startswith(("int", "uint")):
            is_nan = np.isnan(array)
            if is_nan.any():
                raise artifact.SignatureError(
                    f"input {spec.name} holds NaN ({np.count_nonzero(is_nan)} of {array.size} "
                    "values), and the function rounds its data to codes, which have none; replace "
                    "NaN by numbers before the call"
                )


_NAMES = artifact.TensorSpec("a digest of its arrays' names", (32,), "uint8")  # the first in a file


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
        told = artifact.digest("\n".join(spec.name for spec in self._state).encode())
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
        arrays = artifact.check_leaves(inputs, self._arguments, self._data)
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
            raise artifact.SignatureError(
                f"the state is {', '.join(names)}, what was given {', '.join(state) or 'nothing'}"
            )
        # In the order of the results, which is that of the arrays on the board.
        specs = [spec for name in names for spec in self._state if artifact.belongs(spec, name)]
        self._write(artifact.check_leaves([state[name] for name in names], names, specs))

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
            tree = artifact.rebuild({"kind": "tuple", "items": items}, results)
        else:
            # Nothing in place of the new state, which stays on the board.
            left = self._treedef.num_leaves - len(results)
            tree = jax.tree.unflatten(self._treedef, [*results, *[None] * left])[:-count]
        return tree[0] if len(tree) == 1 else tree

    def _trees(self, arrays: Sequence[np.ndarray]) -> dict[str, Any]:
        structure, names = self._manifest.structure, self._manifest.state
        rest, trees = list(arrays), {}
        for name, item in zip(names, structure["items"][-len(names) :], strict=True):
            count = artifact.count_leaves(item)
            trees[name], rest = artifact.rebuild(item, rest[:count]), rest[count:]
        return trees
