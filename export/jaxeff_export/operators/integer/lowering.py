"""From the composites of an integer network to kernels for a target."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax
from tvm.target import Target

from .contraction import contraction
from .dots import Dot, dot_of
from .epilogue import epilogue_of
from .geometry import Geometry
from .packing import packed_bias, packed_vector, packed_weights

_DTYPES = {"codes": "uint8", "float": "float32", "sums": "int32"}


def integer_operators(target: Mapping[str, Any]) -> Mapping[str, Callable[..., Any]]:
    """The composites of integer layers, lowered for a target."""
    where = Target(dict(target))
    dot, cores = dot_of(where), int(where.attrs.get("num-cores", 1))
    return {
        "jaxeff.q_dense": functools.partial(_dense, dot, cores),
        "jaxeff.q_conv2d": functools.partial(_conv2d, dot, cores),
    }


def _dense(
    dot: Dot, cores: int, bb: relax.BlockBuilder, *tensors: relax.Expr, **attributes: Any
) -> relax.Expr:
    (rows, depth), columns = _shape(tensors[0]), _shape(tensors[1])[1]
    geometry = Geometry.dense(rows, depth, columns)
    return _emit(bb, geometry, dot, cores, tensors, attributes, (rows, columns), "q_dense")


def _conv2d(
    dot: Dot, cores: int, bb: relax.BlockBuilder, *tensors: relax.Expr, **attributes: Any
) -> relax.Expr:
    geometry = Geometry.conv2d(_shape(tensors[0]), _shape(tensors[1]), attributes)
    shape = (geometry.batch, geometry.rows, geometry.columns, geometry.features)
    return _emit(bb, geometry, dot, cores, tensors, attributes, shape, "q_conv2d")


def _emit(
    bb: relax.BlockBuilder,
    geometry: Geometry,
    dot: Dot,
    cores: int,
    tensors: tuple[relax.Expr, ...],
    attributes: Mapping[str, Any],
    shape: tuple[int, ...],
    name: str,
) -> relax.Expr:
    x, w, bias, *rest = tensors
    operands = [x, packed_weights(bb, w, geometry, dot)]
    operands.append(packed_bias(bb, bias, w, geometry, dot))
    for tensor in rest:
        whole = len(_shape(tensor)) == 1
        operands.append(packed_vector(bb, tensor, geometry, dot.lanes) if whole else tensor)
    sizes = [(_shape(o), str(o.ty.dtype)) for o in operands]
    kernel = contraction(geometry, dot, attributes, epilogue_of, sizes, shape, cores)
    kind = relax.TensorType(shape, _DTYPES[attributes["result"]])
    return bb.emit(relax.call_tir(bb.add_func(kernel, name), relax.Tuple(operands), kind))


def _shape(tensor: relax.Expr) -> tuple[int, ...]:
    return tuple(int(n) for n in tensor.ty.shape)
