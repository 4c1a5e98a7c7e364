"""Lowers the composites of an integer network to kernels for a target.

Weights and numbers per feature are packed with the bundle, in the order a kernel reads them. Values
are written as codes before the first product.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tvm import relax, te, tirx, topi
from tvm.target.codegen import llvm_cpu_has_features

from jaxeff_export.compiler.passes import PACKS
from jaxeff_export.operators import _statements as statements
from jaxeff_export.operators.integer import _convolutions as convolutions
from jaxeff_export.operators.integer import _dual as dual
from jaxeff_export.operators.integer import _planes
from jaxeff_export.operators.integer._contraction import (
    KernelPlan,
    Sharing,
    contraction,
    vectors_of,
    words_of,
)
from jaxeff_export.operators.integer._dots import Dot, dot_of, of_few
from jaxeff_export.operators.integer._layers import Geometry, epilogue_of, tile_of
from jaxeff_export.operators.integer._packed import PACKED, STEPS_SHARED, packed_products, shape_of
from jaxeff_export.operators.integer._sparse import SPARSE, sparse_products
from jaxeff_export.targets import tvm_target


def packed_weights(
    bb: relax.BlockBuilder, w: relax.Expr, geometry: Geometry, dot: Dot, together: int
) -> relax.Expr:
    """Packs weights (K, N) or HWIO in the order in which a kernel's tiles read them.

    A tile computes `together` vectors of features at once. Its weights are one piece of memory:
    step after step of its sums, and in each the vectors beside each other, of lanes and products.
    Kernels of few rows are bound by reading them, and one stream is read faster than several.

    The last tile of a group has the vectors that are left.
    """
    taps, words = [count for count, _ in geometry.taps], words_of(geometry, dot)
    vectors, steps = vectors_of(geometry, dot), math.prod(taps) * words
    inner = (2, dot.lanes, dot.group // 2) if dot.halves else (dot.lanes, dot.group)

    def pack(w: te.Tensor) -> te.Tensor:
        def element(group: Any, at: Any, *lanes: Any) -> tirx.Expr:
            if dot.halves:
                half, lane, one = lanes
                product = half * (dot.group // 2) + one
            else:
                lane, product = lanes
            vector, step = _placed(at, vectors, steps, together)
            word, tap = tirx.indexmod(step, words), tirx.indexdiv(step, words)
            place: list[Any] = []
            for count in reversed(taps):
                place.insert(0, tirx.indexmod(tap, count))
                tap = tirx.indexdiv(tap, count)
            feature = vector * dot.lanes + lane
            along = word * dot.group + product
            # Zeros beyond a stretch cancel what kernels read there of the input.
            inside = tirx.all(feature < geometry.per_group, along < geometry.stretch)
            column = group * geometry.per_group + feature
            weight = w(*_source(w, place, along), column)
            zero = tirx.const(0, dot.weight)
            return tirx.if_then_else(inside, tirx.Cast(dot.weight, weight), zero)

        shape = (geometry.groups, vectors * steps, *inner)
        return te.compute(shape, element, name="packed")

    return bb.emit_te(pack, w, primfunc_name_hint="q_pack", primfunc_attrs={PACKS: True})


def _placed(at: Any, vectors: int, steps: int, together: int) -> tuple[Any, Any]:
    """Returns the vector and the step whose weights lie at a place among those of a group."""
    full, left = divmod(vectors, together)
    tile, within = tirx.indexdiv(at, together * steps), tirx.indexmod(at, together * steps)
    # What is left at the end is a narrower tile.
    wide = tirx.if_then_else(tile < full, together, max(1, left))
    vector = tile * together + tirx.indexmod(within, wide)
    return vector, tirx.indexdiv(within, wide)


def packed_planes(
    bb: relax.BlockBuilder, w: relax.Expr, geometry: Geometry, lanes: int, bits: int
) -> relax.Expr:
    """Packs weights as groups, vectors of features, bit planes, taps, words and outputs."""
    vectors = -(-geometry.per_group // lanes)
    taps = [count for count, _ in geometry.taps]
    planes = _planes.weight_planes(bits)
    shape = (
        geometry.groups,
        vectors,
        len(planes),
        *taps,
        -(-geometry.stretch // _planes.WORD),
        lanes,
    )

    def pack(w: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Expr) -> tirx.Expr:
            group, vector, plane, *tap, word, lane = at
            feature = vector * lanes + lane
            column = group * geometry.per_group + feature
            total: Any = tirx.const(0, "int32")
            for bit in range(_planes.WORD):
                along = word * _planes.WORD + bit
                inside = tirx.all(feature < geometry.per_group, along < geometry.stretch)
                code = tirx.Cast("int32", w(*_source(w, tap, along), column))
                shift = tirx.Cast("int32", plane) + planes[0][0]
                one = tirx.shift_right(code, shift) & tirx.const(1, "int32")
                one = tirx.shift_left(one, tirx.const(bit, "int32"))
                total = total | tirx.if_then_else(inside, one, tirx.const(0, "int32"))
            return total

        return te.compute(shape, element, name="packed")

    attributes = {PACKS: True}
    return bb.emit_te(pack, w, primfunc_name_hint="q_planes", primfunc_attrs=attributes)


def packed_bias(
    bb: relax.BlockBuilder,
    bias: relax.Expr,
    w: relax.Expr,
    geometry: Geometry,
    dot: Dot,
    finer: int = 0,
) -> relax.Expr:
    """Packs biases in whole vectors, corrected for moved codes of the input.

    Products count 2^finer of their units.
    """
    if not dot.offset:
        return packed_vector(bb, bias, geometry, dot.lanes)

    def moved(bias: te.Tensor, w: te.Tensor) -> te.Tensor:
        axes = [te.reduce_axis((0, n), name=f"k{i}") for i, n in enumerate(w.shape[:-1])]
        sums = te.compute(
            bias.shape, lambda n: te.sum(tirx.Cast("int32", w(*axes, n)), axis=axes), name="sums"
        )
        # sum x w = sum (x - offset) w + offset * sum w, in the units of the bias.
        return te.compute(
            bias.shape, lambda n: bias(n) + (dot.offset << finer) * sums(n), name="moved"
        )

    attributes = {PACKS: True}
    bias_of_sums = bb.emit_te(
        moved, bias, w, primfunc_name_hint="q_bias", primfunc_attrs=attributes
    )
    return packed_vector(bb, bias_of_sums, geometry, dot.lanes)


def packed_vector(
    bb: relax.BlockBuilder, vector: relax.Expr, geometry: Geometry, lanes: int
) -> relax.Expr:
    """Packs a number per feature in whole vectors."""
    vectors = -(-geometry.per_group // lanes)
    if vectors * lanes == geometry.per_group:
        return vector

    def pad(v: te.Tensor) -> te.Tensor:
        def element(group: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            number = v(group * geometry.per_group + at)
            return tirx.if_then_else(at < geometry.per_group, number, tirx.const(0, v.dtype))

        return te.compute((geometry.groups, vectors * lanes), element, name="padded")

    return bb.emit_te(pad, vector, primfunc_name_hint="q_pad", primfunc_attrs={PACKS: True})


def _source(w: te.Tensor, tap: Sequence[Any], along: tirx.Expr) -> list[tirx.Expr]:
    """Indexes a product's weight, but for its feature."""
    if len(w.shape) == 2:
        return [along]
    if len(tap) == 2:
        return [*tap, along]
    depth = int(w.shape[2])
    return [tap[0], tirx.indexdiv(along, depth), tirx.indexmod(along, depth)]


_UNROLLED = 4
_SHARED = 4_000
"""Vectors that are worth waking threads for."""


class CodeGrid(NamedTuple):
    """The attributes of the composite that writes codes.

    Attributes:
        per_step: one over the step.
        zero: code of zero.
        lower: the smallest code.
        upper: the largest one.
    """

    per_step: float
    zero: int
    lower: int
    upper: int


def write_codes(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    grid: CodeGrid,
    lanes: int,
    cores: int = 1,
    any_batch: bool = False,
) -> relax.Expr:
    """Writes float32 values as codes: a product, rounded once and clamped; NaN as the smallest.

    Cores share large inputs. With `any_batch` the kernel takes any number of examples, the first
    axis of `x`, and runs on one core.
    """
    shape = tuple(int(n) for n in x.ty.shape)
    several = any_batch and len(shape) > 0
    batch: Any = tirx.Var("batch", "int64") if several else 1
    taken = (batch, *shape[1:]) if several else shape
    source, target = (
        statements.declare(taken, "float32", "x"),
        statements.declare(taken, "uint8", "y"),
    )
    # An operand, for TVM takes a kernel of one array and one result for a reshape.
    unit = statements.declare((1,), "float32", "per_step")
    code, size = statements.StatementBuilder(), math.prod(shape[1:] if several else shape)
    factor = code.vector(statements.load(unit, 0), 1, "float32", "factor")

    def write(at: Any, lanes: int) -> None:
        steps = tirx.nearbyint(
            statements.load(source, at, lanes) * statements.splat(factor.get(), lanes)
        )
        # This maximum of no number and a number is the second.
        low, high = float(grid.lower - grid.zero), float(grid.upper - grid.zero)
        steps = tirx.max(steps, statements.const(low, "float32", lanes))
        steps = tirx.min(steps, statements.const(high, "float32", lanes))
        zero = statements.const(grid.zero, "int32", lanes)
        codes = statements.cast(steps, "int32", lanes) + zero
        code.store(target, at, statements.cast(codes, "uint8", lanes), lanes)

    with code.loop(batch) as n:
        first, done = n * size, 0
        # Several vectors a turn while they last, then single ones, then scalars: nothing is read or
        # written beyond the end.
        for many in (lanes * _UNROLLED, lanes):
            if turns := (size - done) // many:
                start = first + done
                shared = cores > 1 and not several and turns * many >= _SHARED * lanes
                with code.loop(turns, shared) as i:
                    for part in range(many // lanes):
                        write(start + i * many + part * lanes, lanes)
                done += turns * many
        for at in range(done, size):
            write(first + at, 1)
    kernel = statements.function([source, unit, target], code.finish(), None if several else 0)
    kind = relax.TensorType(shape, "uint8")
    operands = relax.Tuple([x, relax.const(np.full(1, grid.per_step, np.float32))])
    return bb.emit(relax.call_tir(bb.add_func(kernel, "q_codes"), operands, kind))


FEW = 8
"""Examples of a dense layer whose weights take longer to fetch than to multiply."""
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
    where = tvm_target(target)
    dot, cores = dot_of(where), int(where.attrs.get("num-cores", 1))
    planes = _planes.planes_of(where, dot)
    helium = dot.name == dual.SMLAD and llvm_cpu_has_features("mve", where)
    if by_planes and planes is None:
        raise _no_planes(where)

    def lowered(read: Any, name: str) -> Callable[..., Any]:
        def lower(bb: relax.BlockBuilder, *tensors: relax.Expr, **attributes: Any) -> relax.Expr:
            bits = attributes["weight_bits"], attributes["activation_bits"]
            geometry, shape = read(tensors, attributes, False)
            apart, _ = read(tensors, attributes, True)
            counted = bool(by_planes)
            if by_planes is None and planes is not None and not geometry.is_depthwise:
                counted = _planes.are_faster(planes, bits, dot, geometry, apart)
            geometry = apart if counted else geometry
            how = How(dot, of_few(where, dot), cores, planes if counted else None, any_batch)
            form = None
            if not any_batch and not all(_is_constant(bb, tensor) for tensor in tensors):
                form = dual.form_of(name, geometry, dot, tensors, attributes, helium)
            if form is not None:
                operands = dual.dual_operands(bb, form, geometry, tensors)
                kernel = dual.dual_kernel(form, operands, attributes, shape)
                call = f"{name}_c_{form.kind}"
                return _call_kernel(bb, kernel, call, operands, attributes, shape)
            if attributes.get("total"):
                each = {key: value for key, value in attributes.items() if key != "total"}
                y = _emit(bb, geometry, how, tensors, each, geometry.shape, name)
                return bb.emit_te(_totals, y)
            return _emit(bb, geometry, how, tensors, attributes, shape, name)

        return lower

    def codes(bb: relax.BlockBuilder, x: relax.Expr, **attributes: Any) -> relax.Expr:
        if dot.name == dual.SMLAD and not any_batch and not _is_constant(bb, x):
            return _codes_by_c(bb, x, **attributes)
        return write_codes(bb, x, CodeGrid(**attributes), dot.lanes, cores, any_batch)

    return {
        CODES: codes,
        DENSE: lowered(_dense, "q_dense"),
        CONV2D: lowered(_conv2d, "q_conv2d"),
        PACKED: packed_products(where, cores, any_batch),
        SPARSE: sparse_products(where, cores, any_batch),
    }


class IntegerKernelError(ValueError):
    """Raised for kernels that a target has no instructions for."""


def _no_planes(where: Any) -> IntegerKernelError:
    return IntegerKernelError(
        f"{where.attrs.get('mcpu', 'the target')} has no instruction that counts the bits of a "
        "vector (AVX-512 VPOPCNTDQ, NEON), so there are no kernels by bit planes for it."
    )


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
    planes: _planes.Planes | None = None
    any_batch: bool = False

    def sharing(self, bits: tuple[int, int]) -> Sharing:
        """Shares the work of a layer with weights and activations of such widths."""
        if self.planes is None:
            return Sharing(self.cores, STEPS_SHARED * self.dot.lanes * self.dot.group)
        return Sharing(
            self.cores, STEPS_SHARED * self.planes.lanes * _planes.WORD // math.prod(bits)
        )


def _dense(tensors: Any, attributes: Any, counted: bool) -> tuple[Geometry, tuple[int, ...]]:
    del attributes, counted
    (rows, depth), columns = shape_of(tensors[0]), shape_of(tensors[1])[1]
    return Geometry.dense(rows, depth, columns), (rows, columns)


def _conv2d(tensors: Any, attributes: Any, counted: bool) -> tuple[Geometry, tuple[int, ...]]:
    x, w = shape_of(tensors[0]), shape_of(tensors[1])
    geometry = Geometry.conv2d(x, w, attributes, apart=counted)
    batch, *_, features = geometry.shape
    return geometry, (batch, features) if attributes.get("total") else geometry.shape


def _codes_by_c(
    bb: relax.BlockBuilder, x: relax.Expr, *, per_step: float, **ends: int
) -> relax.Expr:
    """Emits the call that writes float32 values as codes, where C functions are brought along."""
    kernel = dual.dual_codes(shape_of(x), **ends)
    unit = relax.const(np.full(1, per_step, np.float32))
    kind = relax.TensorType(shape_of(x), "uint8")
    return bb.emit(relax.call_tir(bb.add_func(kernel, "q_codes"), relax.Tuple([x, unit]), kind))


def _is_constant(bb: relax.BlockBuilder, x: relax.Expr) -> bool:
    """Tells whether an array depends on constants alone, such as a loop's state before it."""
    # Such kernels are run here, once, when a module is compiled: they can't call C of a library.
    if isinstance(x, relax.Var):
        binding = bb.lookup_binding(x)
        return binding is not None and _is_constant(bb, binding)
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
    builder = "dots"
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
        kernel_of, builder = functools.partial(_planes.PlanesKernel, planes, bits), "planes"
        tile = tile_of(geometry, dot.lanes, planes.registers, cost_of=_planes.step_of(planes))
        tile = dataclasses.replace(tile, chains=1)
    elif geometry.is_depthwise:
        dot = convolutions.depthwise_dot(dot)
        kernel_of, builder = convolutions.DepthwiseKernel, "depthwise"
        tile = convolutions.depthwise_tile(geometry, dot)
        weights = convolutions.depthwise_weights(bb, w, geometry, dot, tile)
    else:
        if geometry.is_dense and not how.any_batch and geometry.columns * geometry.batch <= FEW:
            dot = how.few
        # With few features most lanes would be empty, so lanes become pixels.
        if convolutions.suits(geometry, dot):
            kernel_of, builder = convolutions.PixelsKernel, "pixels"
        tile = tile_of(geometry, dot.lanes, dot.registers - 2)
        weights = packed_weights(bb, w, geometry, dot, tile.vectors)
    # Depthwise channels are lanes of shared vectors, so what belongs to features has no groups.
    flat = dataclasses.replace(geometry, groups=1) if builder == "depthwise" else geometry
    finer = attributes.get("finer", 0)
    operands = [x, weights, packed_bias(bb, bias, w, flat, dot, finer)]
    for tensor in rest:
        is_vector = len(shape_of(tensor)) == 1
        operands.append(packed_vector(bb, tensor, flat, dot.lanes) if is_vector else tensor)
    data = [x, *(tensor for tensor in rest if len(shape_of(tensor)) > 1)]

    def taken(operand: relax.Expr) -> tuple[Any, ...]:
        full = shape_of(operand)
        return (batch, *full[1:]) if how.any_batch and operand in data else full

    sizes = [(taken(o), str(o.ty.dtype)) for o in operands]
    result = (batch, *shape[1:]) if how.any_batch else shape
    plan = KernelPlan(geometry, dot, tile, kernel_of)
    kernel = contraction(plan, attributes, epilogue_of, sizes, result, sharing)
    return _call_kernel(bb, kernel, f"{name}_{builder}", operands, attributes, shape)


def _call_kernel(
    bb: relax.BlockBuilder,
    kernel: tirx.PrimFunc,
    name: str,
    operands: Sequence[relax.Expr],
    attributes: Mapping[str, Any],
    shape: tuple[int, ...],
) -> relax.Expr:
    """Emits the call of a layer's kernel."""
    kind = relax.TensorType(shape, dual.result_dtype(attributes))
    return bb.emit(relax.call_tir(bb.add_func(kernel, name), relax.Tuple(operands), kind))
