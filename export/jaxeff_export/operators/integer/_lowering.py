"""Lowers the composites of an integer network to kernels for a target."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi
from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features

from jaxeff_export.operators.integer._bits import WORD
from jaxeff_export.operators.integer._contraction import Sharing, contraction
from jaxeff_export.operators.integer._depthwise import (
    DepthwiseKernel,
    depthwise_dot,
    depthwise_tile,
    depthwise_weights,
)
from jaxeff_export.operators.integer._dots import Dot, dot_of, of_few
from jaxeff_export.operators.integer._dual import (
    FIXED,
    SMLAD,
    dual_codes,
    dual_kernel,
    dual_weights,
    fixed_scales,
    form_of,
    result_dtype,
)
from jaxeff_export.operators.integer._epilogue import epilogue_of
from jaxeff_export.operators.integer._geometry import Geometry, tile_of
from jaxeff_export.operators.integer._packing import (
    packed_bias,
    packed_planes,
    packed_vector,
    packed_weights,
)
from jaxeff_export.operators.integer._pixels import PixelsKernel, suits
from jaxeff_export.operators.integer._planes import (
    Planes,
    PlanesKernel,
    are_faster,
    planes_of,
    step_of,
)
from jaxeff_export.operators.integer._quantizing import write_codes
from jaxeff_export.operators.integer.packed import (
    PACKED,
    SPARSE,
    packed_products,
    sparse_products,
)

FEW = 8
"""Examples of a dense layer whose weights take longer to fetch than to multiply."""
STEPS_SHARED = 12_000
"""Vectors of products that are worth waking threads for, which takes a microsecond or more."""
COMPOSITES = CODES, DENSE, CONV2D = "jaxeff.q_codes", "jaxeff.q_dense", "jaxeff.q_conv2d"
"""The layers of an integer network, in the order of `jaxeff.compression.integers`."""


def integer_operators(
    target: Mapping[str, Any], by_planes: bool | None = None, any_batch: bool = False
) -> Mapping[str, Callable[..., Any]]:
    """Returns the lowerings of the composites of integer layers for a target.

    Args:
        target: a TVM target dict.
        by_planes: whether bits are counted plane by plane, for measurements; None: where that is
            faster by the number of its instructions.
        any_batch: whether kernels take any number of examples, whatever the module's is.

    Raises:
        IntegerKernelError: `by_planes` is asked of a target without an instruction for it.
    """
    where = Target(dict(target))
    dot, cores = dot_of(where), int(where.attrs.get("num-cores", 1))
    planes = planes_of(where, dot)
    helium = dot.name == SMLAD and llvm_cpu_has_features("mve", where)
    if by_planes and planes is None:
        raise IntegerKernelError(
            f"{where.attrs.get('mcpu', 'the target')} has no instruction that counts the bits of "
            "a vector (AVX-512 VPOPCNTDQ, NEON), so there are no kernels by bit planes for it."
        )

    def lowered(read: Any, name: str) -> Callable[..., Any]:
        def lower(bb: relax.BlockBuilder, *tensors: relax.Expr, **attributes: Any) -> relax.Expr:
            bits = attributes["weight_bits"], attributes["activation_bits"]
            geometry, shape = read(tensors, attributes, False)
            apart, _ = read(tensors, attributes, True)
            counted = bool(by_planes)
            if by_planes is None and planes is not None and not geometry.is_depthwise:
                counted = are_faster(planes, bits, dot, geometry, apart)
            geometry = apart if counted else geometry
            how = How(dot, of_few(where, dot), cores, planes if counted else None, any_batch)
            form = None
            if not any_batch and not all(_is_constant(bb, tensor) for tensor in tensors):
                form = form_of(name, geometry, dot, tensors, attributes, helium)
            if form is not None:
                x, w, bias, *rest = tensors
                if form.result == FIXED:
                    rest = [fixed_scales(bb, rest)]
                operands = [x, dual_weights(bb, w, form, geometry), bias, *rest]
                kernel = dual_kernel(form, operands, attributes, shape)
                return _called(bb, kernel, name, operands, attributes, shape)
            if attributes.get("total"):
                each = {key: value for key, value in attributes.items() if key != "total"}
                y = _emit(bb, geometry, how, tensors, each, geometry.shape, name)
                return bb.emit_te(_totals, y)
            return _emit(bb, geometry, how, tensors, attributes, shape, name)

        return lower

    def codes(bb: relax.BlockBuilder, x: relax.Expr, **attributes: Any) -> relax.Expr:
        if dot.name == SMLAD and not any_batch and not _is_constant(bb, x):
            return _codes_by_c(bb, x, **attributes)
        return write_codes(bb, x, dot.lanes, cores, any_batch=any_batch, **attributes)

    return {
        CODES: codes,
        DENSE: lowered(_dense, "q_dense"),
        CONV2D: lowered(_conv2d, "q_conv2d"),
        PACKED: packed_products(where, cores, any_batch),
        SPARSE: sparse_products(where, cores, any_batch),
    }


class IntegerKernelError(ValueError):
    """Raised for kernels that a target has no instructions for."""


@dataclasses.dataclass(frozen=True)
class How:
    """The target and the form that a kernel is written for.

    Attributes:
        dot: products of bytes.
        few: products of bytes for few examples.
        cores: number of cores of the target.
        planes: counts of bits, where these are taken instead.
        any_batch: whether a kernel takes any number of examples.
    """

    dot: Dot
    few: Dot
    cores: int
    planes: Planes | None = None
    any_batch: bool = False

    def sharing(self, bits: tuple[int, int]) -> Sharing:
        """Shares the work of a layer with weights and activations of such widths."""
        if self.planes is None:
            return Sharing(self.cores, STEPS_SHARED * self.dot.lanes * self.dot.group)
        return Sharing(self.cores, STEPS_SHARED * self.planes.lanes * WORD // math.prod(bits))


def _dense(tensors: Any, attributes: Any, counted: bool) -> tuple[Geometry, tuple[int, ...]]:
    del attributes, counted
    (rows, depth), columns = _shape(tensors[0]), _shape(tensors[1])[1]
    return Geometry.dense(rows, depth, columns), (rows, columns)


def _conv2d(tensors: Any, attributes: Any, counted: bool) -> tuple[Geometry, tuple[int, ...]]:
    x, w = _shape(tensors[0]), _shape(tensors[1])
    geometry = Geometry.conv2d(x, w, attributes, apart=counted)
    batch, *_, features = geometry.shape
    return geometry, (batch, features) if attributes.get("total") else geometry.shape


def _codes_by_c(
    bb: relax.BlockBuilder, x: relax.Expr, *, per_step: float, **ends: int
) -> relax.Expr:
    """Emits the call that writes float32 values as codes, where C functions are brought along."""
    kernel = dual_codes(_shape(x), **ends)
    unit = relax.const(np.full(1, per_step, np.float32))
    kind = relax.TensorType(_shape(x), "uint8")
    return bb.emit(relax.call_tir(bb.add_func(kernel, "q_codes"), relax.Tuple([x, unit]), kind))


def _is_constant(bb: relax.BlockBuilder, x: relax.Expr) -> bool:
    """Tells whether an array depends on constants alone, such as a loop's state before it."""
    # Such kernels are run here, once, when a module is compiled: they can't call C of a library.
    if isinstance(x, relax.Var):
        made = bb.lookup_binding(x)
        return made is not None and _is_constant(bb, made)
    return all(_is_constant(bb, v) for v in relax.analysis.free_vars(x))


def _totals(y: te.Tensor) -> te.Tensor:
    """Adds whole numbers over the pixels of an image."""
    return topi.sum(topi.cast(y, "int32"), axis=(1, 2))


def _emit(
    bb: relax.BlockBuilder,
    geometry: Geometry,
    how: How,
    tensors: tuple[relax.Expr, ...],
    attributes: Mapping[str, Any],
    shape: tuple[int, ...],
    name: str,
) -> relax.Expr:
    x, w, bias, *rest = tensors
    dot, planes = how.dot, how.planes
    kernel_of: Any = None
    batch = tirx.Var("batch", "int64")
    bits = attributes["weight_bits"], attributes["activation_bits"]
    sharing = how.sharing(bits)
    if how.any_batch:
        geometry = geometry.of_any(batch)
    elif geometry.batch * geometry.macs >= sharing.least:
        geometry = geometry.in_parts(sharing.cores)
    if planes is not None:
        # Planes hold the codes as they are, so no bias has to make up for moved ones.
        dot = dataclasses.replace(dot, lanes=planes.lanes, offset=0)
        weights = packed_planes(bb, w, geometry, dot.lanes, bits[0])
        kernel_of = functools.partial(PlanesKernel, planes, bits)
        tile = tile_of(geometry, dot.lanes, planes.registers, cost_of=step_of(planes))
        tile = dataclasses.replace(tile, chains=1)
    elif geometry.is_depthwise:
        dot = depthwise_dot(dot)
        kernel_of, tile = DepthwiseKernel, depthwise_tile(geometry)
        weights = depthwise_weights(bb, w, geometry, dot)
    else:
        if geometry.is_dense and not how.any_batch and geometry.columns * geometry.batch <= FEW:
            dot = how.few
        # With few features most lanes would be empty, so lanes become pixels.
        kernel_of = PixelsKernel if suits(geometry, dot) else None
        tile = tile_of(geometry, dot.lanes, dot.registers - 2)
        weights = packed_weights(bb, w, geometry, dot, tile.vectors)
    # Depthwise channels are lanes of shared vectors, so what belongs to features has no groups.
    flat = dataclasses.replace(geometry, groups=1) if kernel_of is DepthwiseKernel else geometry
    finer = attributes.get("finer", 0)
    operands = [x, weights, packed_bias(bb, bias, w, flat, dot, finer)]
    for tensor in rest:
        whole = len(_shape(tensor)) == 1
        operands.append(packed_vector(bb, tensor, flat, dot.lanes) if whole else tensor)
    data = [x, *(tensor for tensor in rest if len(_shape(tensor)) > 1)]

    def taken(operand: relax.Expr) -> tuple[Any, ...]:
        whole = _shape(operand)
        return (batch, *whole[1:]) if how.any_batch and operand in data else whole

    sizes = [(taken(o), str(o.ty.dtype)) for o in operands]
    result = (batch, *shape[1:]) if how.any_batch else shape
    kernel = contraction(
        geometry, dot, attributes, epilogue_of, sizes, result, sharing, tile, kernel_of
    )
    return _called(bb, kernel, name, operands, attributes, shape)


def _called(
    bb: relax.BlockBuilder,
    kernel: tirx.PrimFunc,
    name: str,
    operands: Sequence[relax.Expr],
    attributes: Mapping[str, Any],
    shape: tuple[int, ...],
) -> relax.Expr:
    """Emits the call of a layer's kernel."""
    kind = relax.TensorType(shape, result_dtype(attributes))
    return bb.emit(relax.call_tir(bb.add_func(kernel, name), relax.Tuple(operands), kind))


def _shape(tensor: relax.Expr) -> tuple[int, ...]:
    return tuple(int(n) for n in tensor.ty.shape)
