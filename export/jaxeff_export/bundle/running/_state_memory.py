"""Where the state of a session lies: on the board between its calls, or here beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from jaxeff_export.artifact import TensorSpec
from jaxeff_export.bundle.files import Manifest


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
      machine: a virtual machine of its own.
      operands: what the library takes before the data.
      tensors: all data on the board, state among them.
      put: makes such tensors of arrays.
      manifest: the bundle's.
      on_board: runs an action on the board, given what it does.
      turn: held by calls that use the arrays.
      copies: whether the machine takes copies of what it is given, as it does across RPC.
    """

    def __init__(
        self,
        machine: Any,
        operands: Sequence[Any],
        tensors: Sequence[Any],
        put: Callable[[Sequence[np.ndarray]], list[Any]],
        manifest: Manifest,
        on_board: Callable[[str, Callable[[], Any]], Any],
        turn: threading.RLock,
        copies: bool,
    ) -> None:
        self.turn = turn
        self._on_board, self._copies = on_board, copies
        self._machine, self._outputs = machine, manifest.outputs
        self._operands, self._tensors, self._put = operands, list(tensors), put
        olds = [old for old, _ in manifest.places]
        self._news = [new for _, new in manifest.places]
        self.state = [tensors[old] for old in olds]
        self._data = [i for i in range(len(tensors)) if i not in olds]
        self._results = [i for i in range(len(manifest.outputs)) if i not in self._news]
        # Once, unless it takes copies: later calls write into these very arrays.
        machine.set_input("main", *operands, *tensors)
        self._invoke, self._output = (
            machine.module[name] for name in ("invoke_stateful", "get_output")
        )

    def call(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Calls the function on data, and returns its results without the state."""
        # A single result is no tuple of one.
        alone = len(self._outputs) == 1

        def output(i: int) -> Any:
            return self._output("main") if alone else self._output("main", i)

        def call() -> list[np.ndarray]:
            self._give(leaves)
            self._invoke("main")
            if self._copies:
                # From one place of the board to another.
                for new, tensor in zip(self._news, self.state, strict=True):
                    output(new).copyto(tensor)
            return [output(i).numpy() for i in self._results]

        results = self._on_board("run the library", call)
        specs = [self._outputs[i] for i in self._results]
        return [_shaped(result, spec) for result, spec in zip(results, specs, strict=True)]

    def _give(self, leaves: Sequence[np.ndarray]) -> None:
        """Copies data to the board; state isn't touched, kernels write over it where it lies."""
        moved = self._copies
        for i, leaf in zip(self._data, leaves, strict=True):
            # Another batch than that of the call before.
            if tuple(self._tensors[i].shape) != leaf.shape:
                (self._tensors[i],), moved = self._put([leaf]), True
            else:
                self._tensors[i].copyfrom(leaf)
        if moved:
            self._machine.set_input("main", *self._operands, *self._tensors)

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
        given = iter(leaves)
        # In the order of the arguments, among which state may stand anywhere.
        taken = [a if i in olds else next(given) for i, a in enumerate(self._arrays)]
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


def _shaped(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    return array if spec.varies else array.reshape([int(n) for n in spec.shape])
