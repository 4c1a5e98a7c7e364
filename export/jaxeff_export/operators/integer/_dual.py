"""Layers of Cortex-M4 and later: calls of C functions, by `smlad` or Helium's vectors.

Registers are few there, so the loops are written by hand, in C and assembler that a C library
brings (`clib/codegen/templates/dual.c.in`): one function for all layers of a form, with its sizes
as arguments. Two features share a word of weights, 256 times the second plus the first, so that a
load serves four products. Weights of up to four bits lie in half the bytes, of two bits in a
quarter and of one bit (-1 and 1) in an eighth, as numbers from zero up: what that adds to sums is
taken off where they begin. Vectors are of 16 products of one feature. What these functions don't
take stays a kernel of its own (`_contraction.py`): windows of maxima, groups, dilation, shortcuts
with fixed-point factors.

A projected shortcut is a product of its own, and its results are floats: four bytes each, the
largest arrays of a residual network. Where one convolution alone reads them, `shortcuts_in_bands`
makes one kernel of both, which computes the shortcut of a band of pixels and then adds it: the same
functions, the same order in every pixel, so the same bits.
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from jaxeff.compression.integers import ProductSpec
from jaxeff_export.compiler.passes import IN_PLACE, OUTSIDE, PACKS
from jaxeff_export.compiler.tir import called_kernel
from jaxeff_export.operators._statements import StatementBuilder, declare, function, load
from jaxeff_export.operators.integer._dots import Dot
from jaxeff_export.operators.integer._layers import Geometry

PREFIX = "jaxeff_dual_"
"""Of the functions' names, until a library gives them its own."""
SMLAD = "smlad"
"""Name of the instruction that the functions are written for."""
_FORM = "jaxeff.dual"  # attribute of a kernel: the layer's form, as JSON
_QUANTIZED = "quantized"
_IN_LINES = ("windowed", "striding")
"""Kinds that copy lines of four channels before they write a row."""
_IN_PAIRS = ("sliding", "skipping")
"""The same in words of two columns, for results in bytes."""
DOWN = "sliding_down"
"""`sliding` along the image's columns, which are longer than its rows."""
_VECTORS = "vectors"
_TILES = {
    **{"convolution": (1, 3, 2), _VECTORS: (1, 3, 2), "dense": (1, 1, 4), "depthwise": (1, 1, 4)},
    **dict.fromkeys(_IN_LINES, (1, 2, 4)),
    **dict.fromkeys((*_IN_PAIRS, DOWN), (1, 2, 1)),
}
"""Rows, columns and features whose sums are in registers at once, by kind."""
FIXED = "fixed"
"""Result of codes whose scales are multipliers of whole numbers and shifts."""
_BYTES = 16  # of a vector
_GROUP = 8  # products of a feature in a turn
_QUARTER = 4
_MOST = 2**23
"""Sums of a word's second feature are below it, since they lie in the upper 24 bits."""
_WHOLE = 8
_PACKED = {1: 1, 2: 2, 3: 4, 4: 4}
"""Bits that weights of few bits take, by theirs."""
_FEW = 2
"""Examples of a dense layer up to which its weights are read for one at a time."""


@dataclasses.dataclass(frozen=True)
class DualFunction:
    """What a C function is compiled for; `clib.codegen` writes it.

    Attributes:
        kind: `convolution`, `dense`, `depthwise`, or that of 3 by 3, `windowed` at a step of one
            and `striding` at one of two, and `sliding`, `sliding_down` and `skipping` where they
            end in bytes; `vectors` for a convolution or a dense layer by Helium's; `quantized` for
            values as codes, of which the clamp alone matters.
        clamp: how results are clamped: `none`, `byte`, `shifted`, `rectified` or `clamped`.
        finer: bits by which sums are in finer units, beside those that weights are `raised` by.
        result: what it writes, such as `codes`.
        shortcut: what it adds: `none`, `codes` or `float`.
        part: turns that sums have room for; 0 if that is all of them.
        bits: bits that a weight takes.
    """

    kind: str
    clamp: str
    finer: int = 0
    result: str = "codes"
    shortcut: str = "none"
    part: int = 0
    bits: int = _WHOLE

    @property
    def name(self) -> str:
        """Name of the function; nobody reads it but linkers."""
        if self.kind == _QUANTIZED:
            return f"{PREFIX}{self.kind}_{self.clamp}"
        fields = self.kind, self.finer, self.result, self.shortcut, self.clamp, self.part, self.bits
        return PREFIX + "_".join(map(str, fields))

    @property
    def ends_in_bytes(self) -> bool:
        """Whether results are codes by scales alone, as most layers' are: in the assembler."""
        ends = self.result, self.shortcut, self.clamp, self.part
        return ends == ("codes", "none", "byte", 0)


@dataclasses.dataclass(frozen=True)
class DualForm:
    """A layer: the function that computes it, and the sizes it is called with.

    Attributes:
        function: the function.
        images: how many are computed one after the other.
        sizes: fields of the C's `struct image`, in its order; of `sliding_down` as if rows were
            columns.
        raised: bits by which weights of `sliding` and `skipping` are larger than they are.
    """

    function: DualFunction
    images: int
    sizes: tuple[int, ...]
    raised: int = 0

    @property
    def kind(self) -> str:
        """The kind of its function."""
        return self.function.kind

    @property
    def input_codes(self) -> int:
        """Codes of an image that it reads."""
        return math.prod(self.sizes[3:6])


def form_of(
    name: str,
    geometry: Geometry,
    dot: Dot,
    tensors: Sequence[relax.Expr],
    attributes: Mapping[str, Any],
    helium: bool = False,
) -> DualForm | None:
    """Describes a layer as the C functions compute it; None if they don't.

    `dot` is the target's products of bytes; with `helium` it has vectors of 16 bytes.
    """
    fixed = attributes.get("scales") == "fixed"
    # A shortcut's factor in fixed point is in two parts, which the functions don't read.
    if dot.name != SMLAD or geometry.pool != (1, 1) or (fixed and attributes["shortcut"] != "none"):
        return None
    x, w = ([int(n) for n in tensor.ty.shape] for tensor in tensors[:2])
    images, window, padding, strides = 1, (1, 1), (0, 0), (1, 1)
    kind = "convolution"
    if name == "q_dense":
        rows, columns, image = 1, x[0], (1, x[0], x[1])
        kind = "dense" if x[0] <= _FEW else kind
    else:
        if tuple(attributes["dilation"]) != (1, 1):
            return None
        if geometry.is_depthwise:
            kind = "depthwise"
        if geometry.groups > 1 and (kind == "convolution" or x[3] % _QUARTER):
            return None
        images, image, window = x[0], (x[1], x[2], x[3]), (w[0], w[1])
        rows, columns = geometry.rows, geometry.columns
        padding = (attributes["padding"][0], attributes["padding"][2])
        strides = tuple(attributes["strides"])
        if kind == "depthwise" and window == (3, 3) and strides in ((1, 1), (2, 2)):
            kind = "windowed" if strides == (1, 1) else "striding"
    if helium and kind in ("convolution", "dense"):
        kind = _VECTORS
    ends = attributes["zero"], attributes["lower"], attributes["upper"]
    sizes: tuple[int, ...] = (rows, columns, w[-1], *image, *padding, *strides, *window)
    sizes += (attributes.get("input_zero", 0), *ends, attributes["shortcut_zero"])
    result = "totals" if attributes.get("total") else attributes["result"]
    result = FIXED if fixed and result == "codes" else result
    # Sums of vectors are of one feature each.
    part = 0 if kind == _VECTORS else _part(geometry.depth, attributes)
    # Sums in parts have no beginning that all weights' offset could be taken off at.
    packed = kind in ("convolution", "dense", _VECTORS) and not part
    function = DualFunction(
        kind=kind,
        clamp=_clamp(result, *ends),
        finer=int(attributes.get("finer", 0)),
        result=result,
        shortcut=attributes["shortcut"],
        part=part,
        bits=_PACKED.get(attributes["weight_bits"], _WHOLE) if packed else _WHOLE,
    )
    form = DualForm(function, images, tuple(int(n) for n in sizes))
    by_lines = kind in _IN_LINES and function.ends_in_bytes and not helium
    return _in_pairs(form, attributes["weight_bits"]) if by_lines else form


def _in_pairs(form: DualForm, weight_bits: int) -> DualForm:
    """Describes a layer of 3 by 3 as the functions compute it that take two columns at once."""
    function, sizes = form.function, form.sizes
    rows, columns, features, height, width, channels, top, left, down, right, *more = sizes
    kind = _IN_PAIRS[_IN_LINES.index(form.kind)]
    # A result lies over its own input either way, so that it takes no memory of its own.
    if right == 1 and rows > columns == width:
        kind = DOWN
        rows, columns, height, width, top, left = columns, rows, width, height, left, top
    # Counted: what begins and ends a row takes more than short ones save.
    if columns <= 2 or (right == 2 and columns == 4):
        return form
    # Weights lie in words of 16 bits.
    raised = min(function.finer, 16 - max(2, weight_bits))
    function = dataclasses.replace(function, kind=kind, finer=function.finer - raised)
    turned = rows, columns, features, height, width, channels, top, left, down, right, *more
    return DualForm(function, form.images, turned, raised)


def _clamp(result: str, zero: int, lower: int, upper: int) -> str:
    """Names the shortest way to clamp results."""
    if result in ("float", "sums"):
        return "none"
    if result in ("codes", FIXED) and upper == 2**8 - 1:
        if lower == 0:
            return "byte" if zero == 0 else "shifted"
        if lower == zero:
            return "rectified"
    return "clamped"


def _part(depth: int, attributes: Mapping[str, Any]) -> int:
    """Computes how many turns a word's sums have room for; 0 if that is all of them."""
    most = (2 ** attributes["activation_bits"] - 1) * max(1, 2 ** (attributes["weight_bits"] - 1))
    part = (_MOST - 1) // most // _GROUP
    return part if -(-depth // _GROUP) > part else 0


def dual_operands(
    bb: relax.BlockBuilder, form: DualForm, geometry: Geometry, tensors: Sequence[relax.Expr]
) -> list[relax.Expr]:
    """Lays a layer's operands as the function reads them: weights packed, scales in parts."""
    x, w, bias, *scales = tensors
    # In fixed point a scale is a multiplier and shifts, which the functions read as one array.
    if form.function.result == FIXED:
        scales = [fixed_scales(bb, scales)]
    return [x, dual_weights(bb, w, form, geometry), bias, *scales]


def dual_weights(
    bb: relax.BlockBuilder, w: relax.Expr, form: DualForm, geometry: Geometry
) -> relax.Expr:
    """Packs weights (K, N) or HWIO as the function reads them."""
    shape = [int(n) for n in w.ty.shape]
    if form.kind in ("depthwise", *_IN_LINES):
        high, wide, _, channels = shape

        def four(w: te.Tensor) -> te.Tensor:
            def element(v: Any, i: Any, j: Any, word: Any, half: Any) -> Any:
                return tirx.Cast("int16", w(i, j, 0, v * _QUARTER + word + 2 * half))

            size = (channels // _QUARTER, high, wide, 2, 2)
            return te.compute(size, element, name="packed")

        return bb.emit_te(four, w, primfunc_name_hint="q_pack", primfunc_attrs={PACKS: True})
    if form.kind in (*_IN_PAIRS, DOWN):
        return _in_taps(bb, w, form)
    depth, features = geometry.depth, shape[-1]
    if form.kind == _VECTORS:
        return _in_vectors(bb, w, depth, form.function.bits)
    words = 2 if form.kind == "dense" else 1  # of a step
    blocks, turns = -(-features // (2 * words)), _turns(form.kind, depth, form.function.bits)

    def one(w: te.Tensor, turn: Any, pair: Any, half: Any, feature: Any) -> Any:
        # Codes 0 and 2 of four are a pair, then 1 and 3, as `uxtb16` finds them.
        along = turn * _GROUP + tirx.indexdiv(pair, 2) * 4 + tirx.indexmod(pair, 2) + 2 * half
        inside = tirx.all(feature < features, along < depth)
        weight = tirx.Cast("int32", w(*_place(shape, along), feature))
        return tirx.if_then_else(inside, weight, tirx.const(0, "int32"))

    def pack(w: te.Tensor) -> te.Tensor:
        def element(block: Any, turn: Any, pair: Any, word: Any, half: Any) -> Any:
            feature = (block * words + word) * 2
            high, low = (one(w, turn, pair, half, feature + n) for n in (1, 0))
            return tirx.Cast("int16", high * tirx.const(256, "int32") + low)

        return te.compute((blocks, turns, _QUARTER, words, 2), element, name="packed")

    def squeeze(w: te.Tensor) -> te.Tensor:
        """Lays the bytes of so many words that follow each other into those of one."""
        several = _WHOLE // form.function.bits

        def element(block: Any, held: Any, byte: Any) -> Any:
            total: Any = tirx.const(0, "int32")
            for n in range(several):
                place = held * several + n  # of the word in its block
                turn, inside = (f(place, _QUARTER * words) for f in (tirx.indexdiv, tirx.indexmod))
                pair, word = tirx.indexdiv(inside, words), tirx.indexmod(inside, words)
                feature = (block * words + word) * 2 + tirx.indexmod(byte, 2)
                code = one(w, turn, pair, tirx.indexdiv(byte, 2), feature)
                total = total + _raised(code, form.function.bits, n)
            return tirx.Cast("uint8", total)

        size = (blocks, turns * _QUARTER * words // several, 4)
        return te.compute(size, element, name="squeezed")

    if form.function.bits < _WHOLE:
        pack = squeeze
    return bb.emit_te(pack, w, primfunc_name_hint="q_pack", primfunc_attrs={PACKS: True})


def _in_taps(bb: relax.BlockBuilder, w: relax.Expr, form: DualForm) -> relax.Expr:
    """Packs windows of 3 by 3: two taps of each line, the third ones of two, and the last one."""

    def element(w: te.Tensor, channel: Any, word: Any, half: Any) -> Any:
        # After three words of two taps come one of the first lines' third, and one of the last's.
        later = word >= 3
        line = tirx.if_then_else(later, tirx.min((word - 3) * 2 + half, 2), word)
        tap = tirx.if_then_else(later, 2, half)
        window = (tap, line) if form.kind == DOWN else (line, tap)
        weight = tirx.Cast("int32", w(*window, 0, channel))
        return tirx.Cast("int16", weight * tirx.const(2**form.raised, "int32"))

    def pack(w: te.Tensor) -> te.Tensor:
        size = (int(w.shape[-1]), 5, 2)
        return te.compute(size, lambda *at: element(w, *at), name="packed")

    return bb.emit_te(pack, w, primfunc_name_hint="q_pack", primfunc_attrs={PACKS: True})


def _turns(kind: str, depth: int, bits: int) -> int:
    """Counts turns of products: a convolution's word of one bit has those of two."""
    turns = -(-depth // _GROUP)
    return turns + turns % 2 if kind == "convolution" and bits == 1 else turns


def _raised(code: Any, bits: int, place: int) -> Any:
    """Writes a weight from zero up, so that no sign reaches into the next one's bits of a byte."""
    raised = code + tirx.const(2 ** (bits - 1), "int32")
    # -1 and 1 are 0 and 2, of which the upper bit tells.
    raised = raised >> tirx.const(1, "int32") if bits == 1 else raised
    return raised * tirx.const(2 ** (bits * place), "int32")


def _place(shape: Sequence[int], along: Any) -> list[Any]:
    """Indexes what lies so far along the depth of a kernel's shape."""
    if len(shape) == 2:
        return [along]
    line = shape[1] * shape[2]
    rest = tirx.indexmod(along, line)
    return [
        tirx.indexdiv(along, line),
        tirx.indexdiv(rest, shape[2]),
        tirx.indexmod(rest, shape[2]),
    ]


def fixed_scales(bb: relax.BlockBuilder, parts: Sequence[relax.Expr]) -> relax.Expr:
    """Lays multipliers, shifts before and shifts after one after the other, as functions read."""

    def laid(*parts: te.Tensor) -> te.Tensor:
        features = parts[0].shape[0]

        def element(at: Any) -> Any:
            first, second, third = (part(tirx.indexmod(at, features)) for part in parts)
            later = tirx.if_then_else(at < 2 * features, second, third)
            return tirx.if_then_else(at < features, first, later)

        return te.compute((len(parts) * features,), element, name="laid")

    return bb.emit_te(laid, *parts, primfunc_name_hint="q_scales", primfunc_attrs={PACKS: True})


def _in_vectors(bb: relax.BlockBuilder, w: relax.Expr, depth: int, bits: int) -> relax.Expr:
    """Packs weights from zero up: bytes of two features in turn, or features that share bytes."""
    shape = [int(n) for n in w.ty.shape]
    features = shape[-1]
    several = _WHOLE // bits  # weights in a byte
    apart = 2 if bits == _WHOLE else 1

    def pack(w: te.Tensor) -> te.Tensor:
        def one(along: Any, feature: Any, n: int) -> Any:
            inside = tirx.all(feature < features, along < depth)
            weight = tirx.Cast("int32", w(*_place(shape, along), feature))
            # Products of bytes are of two with a sign or of two without, as the data's are.
            return tirx.if_then_else(inside, _raised(weight, bits, n), tirx.const(0, "int32"))

        def element(block: Any, turn: Any, place: Any, byte: Any) -> Any:
            along, first = turn * _BYTES + byte, (block * apart + place) * several
            total: Any = tirx.const(0, "int32")
            for n in range(several):
                total = total + one(along, first + n, n)
            return tirx.Cast("uint8", total)

        size = (-(-features // (apart * several)), -(-depth // _BYTES), apart, _BYTES)
        return te.compute(size, element, name="packed")

    return bb.emit_te(pack, w, primfunc_name_hint="q_pack", primfunc_attrs={PACKS: True})


def dual_kernel(
    form: DualForm,
    operands: Sequence[relax.Expr],
    attributes: Mapping[str, Any],
    shape: Sequence[int],
) -> tirx.PrimFunc:
    """Writes a kernel that calls the function, image by image.

    `operands` are x, the packed weights, bias and what follows.
    """
    buffers = [
        declare([int(n) for n in o.ty.shape], str(o.ty.dtype), f"x{i}")
        for i, o in enumerate(operands)
    ]
    x, w, bias, *rest = buffers
    dtype = result_dtype(attributes)
    y = declare(shape, dtype, "y")
    # Where there is none, any other stands: the function doesn't look at it.
    scale = rest.pop(0) if attributes["result"] != "sums" else bias
    added, factor = rest or (bias, bias)
    code = StatementBuilder()
    words = strip_words(form)
    strip = code.local(words, "int32", "strip")
    # TVM allocates no more of an array than it sees in use.
    code.store(strip, words - 1, tirx.const(0, "int32"))
    each = math.prod(int(n) for n in shape[1:]) if form.kind != "dense" else 0
    outputs = math.prod(form.sizes[:3])
    if attributes.get("total"):  # which the function adds to
        with code.loop(form.images * each) as at:
            code.store(y, at, tirx.const(0, "int32"))
    with code.loop(form.images) as n:
        shortcut = n * outputs if rest else n * 0
        places = [
            (x, n * form.input_codes),
            (w, 0),
            (bias, 0),
            (scale, 0),
            (added, shortcut),
            (factor, 0),
        ]
        places.append((y, n * each))
        emit_call(code, form, places, strip, (0, math.prod(form.sizes[:2])))
    kernel = function([*buffers, y], code.finish(), tile=_TILES[form.kind])
    kernel = kernel.with_attr(_FORM, json.dumps(dataclasses.asdict(form)))
    kernel = _calling(kernel, form.function)
    width = np.dtype(dtype).itemsize
    if attributes.get("total"):  # begins with zeros, before anything is read
        return kernel
    over = [0] if _goes_over_input(form, width) else []
    if rest and width == np.dtype(str(added.dtype)).itemsize:
        # A shortcut is read where it is added, right before the result is written there.
        over.append(len(operands) - 2)
    return kernel.with_attr(IN_PLACE, over) if over else kernel


def emit_call(
    code: StatementBuilder,
    form: DualForm,
    places: Sequence[tuple[tirx.Buffer, Any]],
    strip: tirx.Buffer,
    span: tuple[Any, Any],
) -> None:
    """Writes the call of a layer's function.

    `places` are arrays and where to begin in each: x, weights, bias, scale, shortcut, its factor,
    y. `strip` has the words that the function needs, as many as `strip_words` says; `span` is the
    pixels that a convolution computes, from the first to beyond the last.
    """
    pointers = [tirx.address_of(load(buffer, at)) for buffer, at in (*places, (strip, 0))]
    sizes = [tirx.const(n, "int32") if isinstance(n, int) else n for n in (*form.sizes, *span)]
    code.write(tirx.Evaluate(tirx.call_extern("int32", form.function.name, *pointers, *sizes)))


def dual_form(kernel: tirx.PrimFunc) -> DualForm | None:
    """Reads the form of the layer that a kernel computes; None if it is no such kernel."""
    written = (kernel.attrs or {}).get(_FORM)
    if written is None:
        return None
    fields = json.loads(str(written))
    function, sizes = DualFunction(**fields["function"]), tuple(fields["sizes"])
    return DualForm(function, fields["images"], sizes, fields["raised"])


def _calling(kernel: tirx.PrimFunc, *functions: DualFunction) -> tirx.PrimFunc:
    """Notes the functions that a kernel calls, which are written when a library is."""
    fields = [dataclasses.asdict(function) for function in functions]
    return kernel.with_attr(OUTSIDE, json.dumps(fields))


def dual_functions(mod: tvm.IRModule) -> dict[str, DualFunction]:
    """Lists the C functions that the kernels of a module call, by their names."""
    kernels = (f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc))
    written = [str((kernel.attrs or {}).get(OUTSIDE, "[]")) for kernel in kernels]
    functions = [DualFunction(**fields) for text in written for fields in json.loads(text)]
    return {function.name: function for function in functions}


def dual_codes(shape: Sequence[int], zero: int, lower: int, upper: int) -> tirx.PrimFunc:
    """Writes a kernel that calls the function for values as codes, from (x, 1 / step) to y."""
    x, unit = declare(shape, "float32", "x"), declare((1,), "float32", "per_step")
    y, code = declare(shape, "uint8", "y"), StatementBuilder()
    quantized = DualFunction(_QUANTIZED, _clamp("codes", zero, lower, upper))
    pointers = [tirx.address_of(load(buffer, 0)) for buffer in (x, unit, y)]
    sizes = [tirx.const(n, "int32") for n in (math.prod(shape), zero, lower, upper)]
    code.write(tirx.Evaluate(tirx.call_extern("int32", quantized.name, *pointers, *sizes)))
    # A value is read before its code is written, which is no farther on.
    kernel = _calling(function([x, unit, y], code.finish()), quantized)
    return kernel.with_attr(IN_PLACE, [0])


def result_dtype(attributes: Mapping[str, Any]) -> str:
    """Names the dtype of a layer's results: totals over pixels are int32."""
    return "int32" if attributes.get("total") else ProductSpec.DTYPES[attributes["result"]]


def _goes_over_input(form: DualForm, width: int) -> bool:
    """Tells whether no result lies on codes that are read later, if both begin at one place."""
    rows, columns, features, height, across, channels, *more = form.sizes
    padding, strides, window = more[:2], more[2:4], more[4:6]
    if form.kind == "dense":
        return features * width <= channels
    if form.kind == DOWN:
        # As below, of columns.
        return rows == height and columns <= across and padding[0] <= 2
    if form.kind in (*_IN_LINES, *_IN_PAIRS):
        # Lines are copied before a row is written: all up to the last of its windows.
        return width == 1 and columns <= across and rows <= height and padding[0] <= 2
    # The codes of pixels are copied before these are written.
    alone = form.kind in ("convolution", _VECTORS) and (*window, *strides, *padding) == (
        1,
        1,
        1,
        1,
        0,
        0,
    )
    return alone and features * width <= channels


def strip_words(form: DualForm) -> int:
    """Counts the words that a function needs while it runs."""
    _, columns, _, _, _, channels, _, _, _, right, high, wide, *_ = form.sizes
    if form.kind in _IN_LINES:
        # Lines of four channels, for the windows of two pixels more than there may be.
        return 8 * ((columns + 1) * right + 2)
    if form.kind in (*_IN_PAIRS, DOWN):
        # Weights of four channels; their words of two columns of three lines.
        return 40 + 12 * (columns + 1 if right == 2 else (columns + 1) // 2 + 1)
    if form.kind == _VECTORS:
        return 3 * -(-high * wide * channels // _BYTES) * _BYTES // _QUARTER  # three pixels' bytes
    turns = _turns(form.kind, high * wide * channels, form.function.bits)
    if form.kind == "depthwise":
        return high * wide + channels // _QUARTER
    if form.kind == "dense":
        return 6 * turns
    # Beside the words of three pixels the bytes of one, where they don't lie in fours.
    return 12 * turns + (2 * turns + 2 if channels % _QUARTER else 0)


_BAND = 2048
"""Bytes of a band: longer ones save no instructions worth their memory."""
_TOGETHER = 3
"""Pixels that a convolution computes together; bands of fewer would leave some of them empty."""


def shortcuts_in_bands(mod: tvm.IRModule) -> tvm.IRModule:
    """Joins convolutions with those that add their results, where that takes less memory."""
    main = mod["main"]
    bindings = [b for block in main.body.blocks for b in block.bindings]
    readers = Counter(v for b in bindings for v in relax.analysis.free_vars(b.value))
    readers.update(relax.analysis.free_vars(main.body.body))
    forms = {b.var: form for b in bindings if (form := _form(mod, b)) is not None}
    makers = {b.var: b for b in bindings if b.var in forms}
    bb = relax.BlockBuilder(mod)
    joined: dict[relax.Var, relax.Expr] = {}
    gone = set()
    for binding in bindings:
        form = forms.get(binding.var)
        if form is None or form.function.shortcut != "float":
            continue
        # The last operands are the shortcut and its factors.
        maker = makers.get(binding.value.args[1].fields[-2])
        if maker is None or readers[maker.var] > 1:
            continue
        if _pays(forms[maker.var], form):
            joined[binding.var] = _joined(bb, (maker, binding), (forms[maker.var], form))
            gone.add(maker.var)
    if not joined:
        return mod
    result = bb.get()
    blocks = [_replaced(block, joined, gone) for block in main.body.blocks]
    body = relax.SeqExpr(blocks, main.body.body)
    result["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return result


def _replaced(
    block: relax.BindingBlock, joined: Mapping[relax.Var, relax.Expr], gone: set[relax.Var]
) -> relax.BindingBlock:
    kept = [
        relax.VarBinding(b.var, joined[b.var]) if b.var in joined else b
        for b in block.bindings
        if b.var not in gone
    ]
    return type(block)(kept)


def _form(mod: tvm.IRModule, binding: relax.Binding) -> DualForm | None:
    """Returns the form of the layer that a binding computes; None if it isn't a convolution's."""
    kernel = called_kernel(binding.value)
    form = None if kernel is None else dual_form(mod[kernel])
    return form if form is not None and form.kind == "convolution" else None


def _pays(one: DualForm, other: DualForm) -> bool:
    """Tells whether what the shortcut reads, which is needed longer, is smaller than itself."""
    same = one.sizes[:3] == other.sizes[:3] and one.images == other.images
    plain = (one.function.shortcut, one.function.result) == ("none", "float")
    rows, columns, features, *image = one.sizes[:6]
    read, written = image[0] * image[1] * image[2], 4 * rows * columns * features
    return same and plain and one.images * read + _BAND < one.images * written


def _joined(
    bb: relax.BlockBuilder, bindings: Sequence[relax.Binding], forms: Sequence[DualForm]
) -> relax.Expr:
    """Emits the call of a kernel that computes a band of the shortcut, then of the result."""
    (maker, reader), (one, other) = bindings, forms
    fields = [b.value.args[1].fields for b in (maker, reader)]
    operands = [*fields[0], *fields[1][:-2], fields[1][-1]]
    x, *maker_operands = _declared(fields[0], "a")
    into, *rest = _declared(fields[1], "b")
    y = declare([int(n) for n in reader.var.ty.shape], str(reader.var.ty.dtype), "y")
    rows, columns, features = one.sizes[:3]
    each, pixels = rows * columns * features, rows * columns
    many = max(1, _BAND // (4 * features * _TOGETHER)) * _TOGETHER
    code = StatementBuilder()
    # One strip after the other: what the first function left in it is of no use to the second.
    words = max(strip_words(one), strip_words(other))
    strip, band = (
        code.local(words, "int32", "strip"),
        code.local(many * features, "float32", "band"),
    )
    # TVM allocates no more of an array than it sees in use.
    code.store(strip, words - 1, tirx.const(0, "int32"))
    code.store(band, many * features - 1, tirx.const(0.0, "float32"))
    totals = other.function.result == "totals"
    if totals:  # which the second function adds to, band by band
        with code.loop(one.images * features) as at:
            code.store(y, at, tirx.const(0, "int32"))
    with code.loop(one.images) as n, code.loop(-(-pixels // many)) as i:
        begin = i * many
        span = tuple(tirx.Cast("int32", v) for v in (begin, tirx.min(begin + many, pixels + i * 0)))
        image = [(x, n * one.input_codes), *((b, n * 0) for b in maker_operands)]
        emit_call(
            code,
            one,
            [*image, (maker_operands[1], n * 0), (maker_operands[1], n * 0), (band, n * 0)],
            strip,
            span,
        )
        image = [(into, n * other.input_codes), *((b, n * 0) for b in rest[:3])]
        written = n * features if totals else n * each + begin * features
        places = [*image, (band, n * 0), (rest[-1], n * 0), (y, written)]
        emit_call(code, other, places, strip, span)
    buffers = [x, *maker_operands, into, *rest[:-2], rest[-1], y]
    kernel = function(buffers, code.finish(), tile=_TILES[other.kind])
    kernel = _calling(kernel, one.function, other.function)
    name = bb.add_func(kernel, "q_conv2d_with_shortcut")
    return bb.normalize(relax.call_tir(name, relax.Tuple(operands), reader.var.ty))


def _declared(operands: Sequence[relax.Expr], prefix: str) -> list[Any]:
    return [
        declare([int(n) for n in o.ty.shape], str(o.ty.dtype), f"{prefix}{i}")
        for i, o in enumerate(operands)
    ]
