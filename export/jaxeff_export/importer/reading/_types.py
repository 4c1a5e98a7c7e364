"""StableHLO tensor types as shapes and TVM dtypes, and constant attributes as numpy arrays."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir

from jaxeff_export.importer.reading._errors import Unsupported

FOUR_BITS = {"i4": "int8", "ui4": "uint8"}
"""Numbers of four bits are held in bytes of the same value."""
_DTYPES = {
    "i1": "bool",
    **FOUR_BITS,
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "f16": "float16",
    "bf16": "bfloat16",
    "f8E3M4": "float8_e3m4",
    "f8E4M3": "float8_e4m3",
    "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2": "float8_e5m2",
    "f8E5M2FNUZ": "float8_e5m2fnuz",
    "f32": "float32",
    "f64": "float64",
}
_PARTS = {"complex<f32>": "float32", "complex<f64>": "float64"}
_ELEMENT = re.compile(r"0x[0-9A-Fa-f]+|[-+\d.][-+\d.eE]*")
_NUMPY = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in _DTYPES.values()
    if name == "bfloat16" or name.startswith("float8")
}


@dataclasses.dataclass(frozen=True)
class TensorType:
    """A static tensor type: its shape and TVM's name of its dtype."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, ty: Any) -> TensorType:
        """Reads the type of a TVM buffer or Relax tensor."""
        return cls(tuple(int(n) for n in ty.shape), str(ty.dtype))

    @property
    def size(self) -> int:
        """Counts the elements."""
        return math.prod(self.shape)

    @property
    def numpy_dtype(self) -> np.dtype:
        """Returns the numpy dtype (from ml_dtypes where numpy has none)."""
        return numpy_dtype(self.dtype)


def numpy_dtype(dtype: str) -> np.dtype:
    """Returns the numpy dtype of a TVM dtype name."""
    return _NUMPY.get(dtype) or np.dtype(dtype)


def tensor_type(mlir_type: Any) -> TensorType:
    """Reads a ranked, static tensor type.

    Raises:
        Unsupported: TVM has no such element type, or the shape is dynamic.
    """
    if not isinstance(mlir_type, ir.RankedTensorType):
        raise Unsupported(f"the type {mlir_type} is not a tensor")
    return _static(mlir_type, _DTYPES, "element type")


def is_complex(mlir_type: ir.Type) -> bool:
    """Tells whether a type is a tensor of complex numbers."""
    return isinstance(mlir_type, ir.RankedTensorType) and isinstance(
        mlir_type.element_type, ir.ComplexType
    )


def is_four_bits(mlir_type: ir.Type) -> bool:
    """Tells whether a type is a tensor of numbers of four bits."""
    return isinstance(mlir_type, ir.RankedTensorType) and str(mlir_type.element_type) in FOUR_BITS


def part_type(mlir_type: Any) -> TensorType:
    """Returns the type of either part of a complex tensor, and of a real one that of itself."""
    if not is_complex(mlir_type):
        return tensor_type(mlir_type)
    return _static(mlir_type, _PARTS, "type for the parts of")


def _static(mlir_type: Any, dtypes: dict[str, str], what: str) -> TensorType:
    element = str(mlir_type.element_type)
    if element not in dtypes:
        raise Unsupported(f"TVM has no {what} {element}")
    if not mlir_type.has_static_shape:
        raise Unsupported(f"the shape of {mlir_type} is dynamic")
    return TensorType(tuple(mlir_type.shape), dtypes[element])


def constant_parts(op: ir.Operation) -> list[np.ndarray]:
    """Reads a complex constant, which the bindings cannot, from how MLIR prints it."""
    kind = part_type(op.results[0].type)
    flat = printed_elements(str(op), kind.numpy_dtype).reshape(-1, 2)
    if len(flat) == 1:
        return [np.asarray(flat[0, k]) for k in range(2)]
    return [flat[:, k].reshape(kind.shape) for k in range(2)]


def is_dynamic(mlir_type: Any) -> bool:
    """Tells whether a type is a ranked tensor with dynamic dimensions."""
    return isinstance(mlir_type, ir.RankedTensorType) and not mlir_type.has_static_shape


def dense_array(attribute: Any) -> np.ndarray:
    """Reads a dense elements attribute into an array of its exact shape and dtype.

    Raises:
        Unsupported: the element type or the storage is not one this importer reads.
    """
    kind = tensor_type(attribute.type)
    if not isinstance(attribute, ir.DenseElementsAttr):
        raise Unsupported(f"constants stored as {type(attribute).__name__} are not read")
    if is_four_bits(attribute.type):
        found = _printed(attribute, kind)
        # Of many elements MLIR prints the lower halves of bytes, without their signs.
        return (found << 4) >> 4 if kind.dtype == "int8" else found
    if kind.dtype in _NUMPY:
        return _printed(attribute, kind)
    return np.array(attribute, dtype=kind.numpy_dtype).reshape(kind.shape)


def _printed(attribute: Any, kind: TensorType) -> np.ndarray:
    """Reads elements that the bindings cannot from how MLIR prints them."""
    elements = printed_elements(str(attribute), kind.numpy_dtype)
    if elements.size == 1:
        return np.full(kind.shape, elements[0], kind.numpy_dtype)
    return elements.reshape(kind.shape)


def printed_elements(text: str, dtype: np.dtype) -> np.ndarray:
    """Returns the numbers of a dense elements attribute that MLIR has printed, in order.

    Many elements are one hexadecimal string of their bytes. Few are decimal numbers that determine
    the element, or, where there is no such number, the element's bits in hexadecimal.
    """
    body = text[text.index("dense<") + len("dense<") : text.rindex("> : ")]
    if body.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(body[3:-1]), dtype)
    bits = np.dtype(f"u{dtype.itemsize}")
    return np.array(
        [
            np.array(int(item, 16), bits).view(dtype)
            if item.startswith("0x")
            else np.array(float(item), dtype)
            for item in _ELEMENT.findall(body)
        ],
        dtype,
    )
