"""A program as one flat dataflow graph, which the emitter reads.

Loops and costly branches are nodes that hold graphs of their own; everything else is flat. Types
are shapes and TVM dtypes; constants and attributes are read as NumPy arrays and Python values;
what cannot be taken is an error that names the operation and where it came from.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

_MAX_LOCATIONS = 1000  # parts of one location that are looked at; damaged ones can be endless


class StableHLOParseError(ValueError):
    """The source is not a StableHLO module that can be imported.

    Raised for text that does not parse, for truncated or damaged artifacts, for artifacts of an
    unknown version, and for modules without a public function. The message holds the position
    where the parser gave up, when it says one.
    """


@dataclasses.dataclass(frozen=True)
class UnsupportedOp:
    """One operation without a lowering.

    Attributes:
        name: the operation's full name, as in ``stablehlo.fft``.
        signature: the operand and result types as StableHLO writes them.
        location: the JAX source position (``file:line:column (name)``) or ``unknown location``.
        reason: why it could not be taken.
    """

    name: str
    signature: str
    location: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.signature} at {self.location}: {self.reason}"


class UnsupportedOpError(NotImplementedError):
    """Operations of a module that the importer cannot take, all of them together.

    Attributes:
        ops: one :class:`UnsupportedOp` per distinct operation, types and location.
    """

    def __init__(self, ops: Sequence[UnsupportedOp]):
        # Inlined functions repeat their operations; each place is named once.
        self.ops = tuple(dict.fromkeys(ops))
        noun = "operation" if len(self.ops) == 1 else "operations"
        lines = "\n".join(f"  - {op}" for op in self.ops)
        super().__init__(
            f"{len(self.ops)} StableHLO {noun} of this module cannot be imported; "
            f"rewrite these in the JAX source or register a composite for them:\n{lines}"
        )


class Unsupported(Exception):
    """Raised by a rule that cannot take this instance of its operation; says why."""


def source_location(op: ir.Operation) -> str:
    """Formats where in the JAX source ``op`` came from, as ``file:line:column (name)``."""
    return position_of(op.location)


def position_of(location: ir.Location) -> str:
    """Formats a location as ``file:line:column (name)``, as far as it is known.

    The file is the innermost of a call stack, the name the outermost. A position in the module's
    own text, which has no file, is ``line 1, column 2``.
    """
    name = ""
    pending = [location]
    for _ in range(_MAX_LOCATIONS):
        if not pending:
            break
        part = pending.pop()
        if isinstance(part, ir.NameLoc):
            name = name or _name(part)
            pending.append(part.child_loc)
        elif isinstance(part, ir.CallSiteLoc):
            # The callee is popped first: the innermost frame names the line to change.
            pending += [part.caller, part.callee]
        elif isinstance(part, ir.FusedLoc):
            pending += reversed(part.locations)
        elif isinstance(part, ir.FileLineColLoc):
            if part.filename == "-":
                where = f"line {part.start_line}, column {part.start_col}"
            else:
                where = f"{part.filename}:{part.start_line}:{part.start_col}"
            return f"{where} ({name})" if name else where
    return name or "unknown location"


def _name(location: ir.NameLoc) -> str:
    try:
        return location.name_str
    except RuntimeError:  # how the bindings say that a string is not UTF-8
        return "a name that is not UTF-8"


def describe(op: ir.Operation, reason: str) -> UnsupportedOp:
    """Describes why ``op`` is unsupported."""
    operands = ", ".join(str(operand.type) for operand in op.operands)
    results = ", ".join(str(result.type) for result in op.results)
    return UnsupportedOp(op.name, f"({operands}) -> ({results})", source_location(op), reason)


def failure(op: ir.Operation, error: Exception) -> UnsupportedOpError:
    """Describes an unforeseen failure to lower ``op``."""
    # TVM's messages end in the fault; a stack comes before it.
    reason = " ".join(f"{type(error).__name__}: {error}".split())[-300:]
    return UnsupportedOpError([describe(op, f"its lowering failed ({reason})")])


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
    """Reads a ranked, static tensor type."""
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
    """Reads a dense elements attribute into an array of its exact shape and dtype."""
    kind = tensor_type(attribute.type)
    if not isinstance(attribute, ir.DenseElementsAttr):
        raise Unsupported(f"constants stored as {type(attribute).__name__} are not read")
    if is_four_bits(attribute.type):
        array = _printed(attribute, kind)
        # Of many elements MLIR prints the lower halves of bytes, without their signs.
        return (array << 4) >> 4 if kind.dtype == "int8" else array
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


_BROADCAST = "stablehlo.broadcast_in_dim"


@dataclasses.dataclass(eq=False, slots=True)
class HloValue:
    """One tensor of the graph: result ``index`` of ``node``, or an argument (node is None)."""

    type: TensorType
    node: HloNode | None = None
    index: int = 0
    constant: np.ndarray | None = None  # set for constants; 0-d stands for a splat
    users: list[HloNode] = dataclasses.field(default_factory=list)
    is_output: bool = False


@dataclasses.dataclass(eq=False, slots=True)
class HloNode:
    """One operation: its name, operands and results; ``op`` holds the attributes and regions."""

    name: str
    op: ir.Operation
    operands: tuple[HloValue, ...]
    results: tuple[HloValue, ...] = ()
    bodies: tuple[
        HloGraph, ...
    ] = ()  # of a loop or branch; its last operands are what these capture

    @property
    def result(self) -> HloValue:
        """Returns the only result."""
        (value,) = self.results
        return value


@dataclasses.dataclass(eq=False, slots=True)
class HloGraph:
    """A program: its arguments, its nodes in topological order, its outputs."""

    arguments: tuple[HloValue, ...]
    nodes: list[HloNode]
    outputs: tuple[HloValue, ...]

    def captured(self) -> list[HloValue]:
        """Lists the values from outside that the nodes and outputs use.

        Constants are left out, and broadcasts stand for their source: both are read in place. Some
        products read the operand of a transpose directly, so it is included as well.
        """
        inside = set(self.nodes)
        reads: dict[HloValue, None] = {}
        for value in [*(o for node in self.nodes for o in node.operands), *self.outputs]:
            while value.node and value.node not in inside and value.node.name == _BROADCAST:
                value = value.node.operands[0]
            if value.constant is None and value.node not in inside:
                reads[value] = None
                if value.node and value.node.name == "stablehlo.transpose":
                    reads.update(dict.fromkeys(value.node.operands))
        return [value for value in reads if value not in self.arguments]


@dataclasses.dataclass(eq=False, slots=True)
class Complex(HloValue):
    """The two parts of a complex tensor, each of which has its ``type``."""

    parts: tuple[HloValue, ...] = ()

    @classmethod
    def of(cls, real: HloValue, imaginary: HloValue) -> Complex:
        """Pairs two parts."""
        return cls(real.type, parts=(real, imaginary))

    @property
    def real(self) -> HloValue:
        """Returns the real part."""
        return self.parts[0]

    @property
    def imaginary(self) -> HloValue:
        """Returns the imaginary part."""
        return self.parts[1]


def flattened(values: Iterable[HloValue]) -> list[HloValue]:
    """Returns values with pairs taken apart."""
    flat: list[HloValue] = []
    for value in values:
        flat += value.parts if isinstance(value, Complex) else [value]
    return flat


def paired(flat: Iterable[HloValue], like: Iterable[HloValue]) -> list[HloValue]:
    """Puts values together again: the inverse of :func:`flattened`."""
    rest = iter(flat)
    return [
        Complex.of(next(rest), next(rest)) if isinstance(v, Complex) else next(rest) for v in like
    ]


def splat(item: object, kind: TensorType) -> HloValue:
    """Returns a constant whose elements are all ``item``."""
    return HloValue(kind, constant=np.asarray(item, dtype=kind.numpy_dtype))


def attribute(op: ir.Operation, name: str) -> Any:
    """Returns the value of an integer, boolean, string or symbol attribute."""
    item: Any = op.attributes[name]
    try:
        return item.value
    except RuntimeError as error:  # how the bindings say that a string is not UTF-8
        raise StableHLOParseError(
            f"{source_location(op)}: the attribute {name} of {op.name} is damaged: {error}; make "
            "the module again"
        ) from error


def integers(op: ir.Operation, name: str, default: list[int] | None = None) -> list[int]:
    """Returns a list of integers; ``default`` where the attribute is absent."""
    if default is not None and name not in op.attributes:
        return default
    items: Any = op.attributes[name]
    return [int(item) for item in items]


def padding(op: ir.Operation, rank: int) -> list[tuple[int, int]]:
    """Returns the padding below and above each of ``rank`` dimensions, none where absent."""
    if "padding" not in op.attributes:
        return [(0, 0)] * rank
    pairs = np.array(op.attributes["padding"]).reshape(rank, 2)
    return [(int(low), int(high)) for low, high in pairs]


def direction(op: ir.Operation) -> str:
    """Returns a comparison's direction: EQ, NE, LT, LE, GT or GE."""
    enumerated: Any = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"])
    return enumerated.value


def compares_total_order(op: ir.Operation) -> bool:
    """Tells whether a comparison orders floats totally (NaN and signed zeros included)."""
    if "compare_type" not in op.attributes:
        return False
    enumerated: Any = stablehlo.ComparisonTypeAttr(op.attributes["compare_type"])
    return enumerated.value == "TOTALORDER"


def backend_integer(op: ir.Operation, name: str) -> int:
    """Returns an integer (or the code of a letter) of a custom call's backend configuration."""
    config: Any = op.attributes["mhlo.backend_config"]
    return int(config[name].value)


def enumerator(op: ir.Operation, name: str) -> str:
    """Returns the name that an attribute of an enumeration holds, such as TRANSPOSE."""
    return str(op.attributes[name]).rpartition(" ")[2].rstrip(">")
