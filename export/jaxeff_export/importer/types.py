"""StableHLO tensor types as shapes and TVM dtypes, and constant attributes as numpy arrays."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from .errors import Unsupported

_DTYPES = {
    "i1": "bool",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
}
_NUMPY = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


@dataclasses.dataclass(frozen=True)
class TensorType:
    """A static tensor type: its shape and TVM's name of its dtype."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, ty: Any) -> TensorType:
        """Read the type of a TVM buffer or Relax tensor."""
        return cls(tuple(int(n) for n in ty.shape), str(ty.dtype))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def numpy_dtype(self) -> np.dtype:
        """The numpy dtype (from ml_dtypes where numpy has none)."""
        return numpy_dtype(self.dtype)


def numpy_dtype(dtype: str) -> np.dtype:
    """Return the numpy dtype of a TVM dtype name."""
    return _NUMPY.get(dtype) or np.dtype(dtype)


def tensor_type(mlir_type: Any) -> TensorType:
    """Read a ranked, static tensor type.

    Raises:
        Unsupported: TVM has no such element type, or the shape is dynamic.
    """
    if not isinstance(mlir_type, ir.RankedTensorType):
        raise Unsupported(f"the type {mlir_type} is not a tensor")
    element = str(mlir_type.element_type)
    if element not in _DTYPES:
        raise Unsupported(f"TVM has no element type {element}")
    if not mlir_type.has_static_shape:
        raise Unsupported(f"the shape of {mlir_type} is dynamic")
    return TensorType(tuple(mlir_type.shape), _DTYPES[element])


def dense_array(attribute: Any) -> np.ndarray:
    """Read a dense elements attribute into an array of its exact shape and dtype.

    Raises:
        Unsupported: the element type or the storage is not one this importer reads.
    """
    kind = tensor_type(attribute.type)
    if not isinstance(attribute, ir.DenseElementsAttr):
        raise Unsupported(f"constants stored as {type(attribute).__name__} are not read")
    if kind.dtype == "bfloat16":
        return _bit_pattern(attribute, kind).view(kind.numpy_dtype)
    return np.array(attribute, dtype=kind.numpy_dtype).reshape(kind.shape)


def _bit_pattern(attribute: Any, kind: TensorType) -> np.ndarray:
    """Read 16-bit floats that the bindings cannot, by way of StableHLO's own interpreter."""
    dims = "".join(f"{d}x" for d in kind.shape)
    text = f"""func.func @main() -> tensor<{dims}ui16> {{
        %0 = stablehlo.constant {attribute}
        %1 = stablehlo.bitcast_convert %0 : ({attribute.type}) -> tensor<{dims}ui16>
        return %1 : tensor<{dims}ui16>
    }}"""
    module = ir.Module.parse(text, attribute.context)
    (bits,) = stablehlo.eval_module(module, [])
    return np.array(bits, dtype=np.uint16).reshape(kind.shape)
