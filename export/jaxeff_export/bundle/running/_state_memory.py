"""Where the state of a session lies: on the board between its calls, or here beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from jaxeff_export.bundle.files import Manifest
from jaxeff_export.bundle.running._machine import LoadedMachine


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
