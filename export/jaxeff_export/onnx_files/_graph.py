"""A graph of ONNX in the making: nodes, constants, and the dtypes that the format knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jaxeff_export.onnx_files._grids import Whole, stored

_VERSIONS = {18: 9, 21: 10}  # operator sets, and the version of the format that came with them

Value = str | np.ndarray
"""The name of a tensor, or a constant that is known already."""
Kind = tuple[Any, tuple[int, ...]]
"""A dtype and a shape."""


class OnnxError(ValueError):
    """A function has what ONNX, or this export to it, can't express; the message names it."""


class OnnxGraph:
    """Nodes and constants, in order.

    Attributes:
        nodes: What was emitted.
        constants: Tensors with values, by name.
        whole: The whole numbers and steps of constants on a grid, by their `id`.
    """

    def __init__(self) -> None:
        """Starts an empty graph."""
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.whole: dict[int, Whole] = {}
        self._known: dict[int, tuple[str, np.ndarray]] = {}
        self._outside: list[list[Any]] = []
        self._in_blocks = False
        self._count = 0

    @property
    def versions(self) -> tuple[int, int]:
        """The operator set and the version of the format: newer for 4 bits, and for blocks."""
        few = any(a.dtype in (ml_dtypes.int4, ml_dtypes.uint4) for a in self.constants.values())
        opset = 21 if few or self._in_blocks else 18
        return opset, _VERSIONS[opset]

    def name(self, value: Value) -> str:
        """Returns the name of a value; a constant becomes a tensor of the file, once."""
        if isinstance(value, str):
            return value
        if id(value) not in self._known:  # held, so that no other array gets its id
            self._known[id(value)] = self._written(value), value
        return self._known[id(value)][0]

    def _written(self, value: np.ndarray) -> str:
        found = self.whole.get(id(value))
        if found is not None and (parts := stored(found)) is not None:
            codes, steps, zeros, axis, block = parts
            along = {} if axis is None else {"axis": axis}
            along |= {} if block is None else {"block_size": block}
            self._in_blocks |= block is not None
            # A constant is read by any graph inside this one: it is made where all can read it.
            here = self.nodes
            self.nodes = [*self._outside, here][0]
            made = self.emit("DequantizeLinear", [codes, steps, zeros], **along)
            self.nodes = here
            return made
        made = f"c{len(self.constants)}"
        self.constants[made] = value
        return made

    def _moved(self, value: np.ndarray, move: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Moves the elements of a constant, and those of its whole numbers."""
        if id(value) not in self.whole:
            return move(value)
        found = self.whole[id(value)].moved(move)
        self.whole[id(found.values)] = found
        return found.values

    def emit(self, op: str, inputs: Sequence[Value], **attributes: Any) -> str:
        """Adds a node with one result and returns the result's name."""
        return self.emit_all(op, inputs, 1, **attributes)[0]

    def emit_all(
        self, op: str, inputs: Sequence[Value], results: int, **attributes: Any
    ) -> list[str]:
        """Adds a node with some results and returns their names."""
        import onnx  # optional

        made = [f"v{self._count + 1 + i}" for i in range(results)]
        self._count += results
        names = [self.name(value) for value in inputs]
        self.nodes.append(onnx.helper.make_node(op, names, made, **attributes))
        return made

    def inside(
        self,
        inputs: Sequence[Kind],
        results: Sequence[Kind],
        write: Callable[[list[str]], Sequence[Value]],
    ) -> Any:
        """Makes the graph that a node holds, such as the body of a loop.

        Args:
            inputs: Dtypes and shapes of its inputs.
            results: The same of its results.
            write: Emits its nodes for the names of its inputs, and returns its results.
        """
        import onnx  # optional

        given = [f"v{self._count + 1 + i}" for i in range(len(inputs))]
        self._count += len(inputs)
        self._outside.append(self.nodes)
        self.nodes = []
        # Results are made inside, also those that are inputs, constants or come from outside.
        made = [self.emit("Identity", [value]) for value in write(given)]
        nodes, self.nodes = self.nodes, self._outside.pop()
        info = onnx.helper.make_tensor_value_info
        return onnx.helper.make_graph(
            nodes,
            f"inside{self._count}",
            [info(n, tensor_type(dtype), s) for n, (dtype, s) in zip(given, inputs, strict=True)],
            [info(n, tensor_type(dtype), s) for n, (dtype, s) in zip(made, results, strict=True)],
        )

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        """Permutes axes; of a constant at once."""
        if list(order) == list(range(len(order))):
            return value
        if not isinstance(value, str):
            return self._moved(value, lambda a: np.ascontiguousarray(a.transpose(order)))
        return self.emit("Transpose", [value], perm=list(order))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Changes a shape; of a constant at once."""
        if not isinstance(value, str):
            return self._moved(value, lambda a: a.reshape(shape))
        return self.emit("Reshape", [value, integers(shape)])

    def cast(self, value: Value, dtype: Any) -> Value:
        """Converts to a dtype; a constant at once."""
        if not isinstance(value, str):
            return value.astype(dtype)
        return self.emit("Cast", [value], to=tensor_type(dtype))


def integers(values: Iterable[int]) -> np.ndarray:
    """Makes the constant that operators take shapes and axes by."""
    return np.array(list(values), np.int64)


def tensor_type(dtype: Any) -> int:
    """Finds ONNX's number of a dtype.

    Raises:
        OnnxError: The format has none.
    """
    import onnx  # optional

    kinds = onnx.TensorProto
    types = {
        "float64": kinds.DOUBLE, "float32": kinds.FLOAT, "float16": kinds.FLOAT16,
        "int64": kinds.INT64, "int32": kinds.INT32, "int16": kinds.INT16, "int8": kinds.INT8,
        "uint64": kinds.UINT64, "uint32": kinds.UINT32, "uint16": kinds.UINT16,
        "uint8": kinds.UINT8, "bool": kinds.BOOL, np.dtype(ml_dtypes.bfloat16).name: kinds.BFLOAT16,
    }  # fmt: skip
    # A random key has a dtype of JAX alone.
    name = str(dtype) if jax.dtypes.issubdtype(dtype, jax.dtypes.extended) else np.dtype(dtype).name
    if name not in types:
        raise OnnxError(f"to_onnx: an array of dtype {name} can't be written.")
    return types[name]
