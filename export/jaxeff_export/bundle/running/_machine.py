"""A virtual machine and the arrays of one call at a time, which stay in place between calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxeff_export.artifact import TensorSpec, dtype_of


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
        specs: Sequence[TensorSpec],
        put: Callable[[Sequence[np.ndarray]], list[Any]],
        remote: bool,
    ) -> None:
        self.machine, self.tensors = machine, list(tensors)
        self._operands, self._put, self._remote = operands, put, remote
        self._dtypes = [dtype_of(spec.dtype) for spec in specs]
        self._views = [self._view(*pair) for pair in zip(tensors, self._dtypes, strict=True)]
        # Looked up once. The machine's own get_outputs is a recursive closure, a cycle that would
        # keep a remote session alive until some later garbage collection.
        names = "invoke_stateful", "get_output", "get_output_arity"
        self._invoke, self._get_output, self._arity = (machine.module[name] for name in names)
        self._outputs: int | None = None
        machine.set_input("main", *operands, *tensors)

    def give(self, arrays: Sequence[np.ndarray], places: Iterable[int] | None = None) -> None:
        """Copies data to where the machine finds them.

        Args:
          arrays: of the data's shapes, but for a batch that varies, and dtypes.
          places: which of the data they are; all by default.
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

    def read(self, index: int, spec: TensorSpec) -> np.ndarray:
        """Copies a result of the last call, in the shape that the manifest has."""
        tensor = self.output(index)
        view = self._view(tensor, dtype_of(spec.dtype))
        # A copy: the next call writes into the same memory.
        array = tensor.numpy() if view is None else view.copy()
        return array if spec.varies else array.reshape([int(n) for n in spec.shape])

    def _view(self, tensor: Any, dtype: np.dtype) -> np.ndarray | None:
        """Looks at a tensor's memory, where that is here and NumPy has such numbers itself."""
        return None if self._remote or dtype.isbuiltin != 1 else np.from_dlpack(tensor)


__all__ = ["LoadedMachine"]
