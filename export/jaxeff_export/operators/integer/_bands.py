"""Shortcuts that are computed where they are added: a few pixels at a time, never as an array.

A projected shortcut is a product of its own, and its results are floats: four bytes each, the
largest arrays of a residual network. Where one convolution alone reads them, both become one
kernel, which computes the shortcut of a band of pixels and then adds it: the same functions, the
same order in every pixel, so the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from jaxeff_export.operators.integer._dual import (
    DualForm,
    dual_form,
    emit_call,
    strip_words,
)
from jaxeff_export.operators.statements import StatementBuilder, declare, function

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
        if form is None or form.shortcut != "float":
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
    value = binding.value
    if not isinstance(value, tvm.ir.Call) or value.op != tvm.ir.Op.get("relax.call_tir"):
        return None
    form = dual_form(mod[value.args[0]])
    return form if form is not None and form.kind == "convolution" else None


def _pays(one: DualForm, other: DualForm) -> bool:
    """Tells whether what the shortcut reads, which is needed longer, is smaller than itself."""
    same = one.sizes[:3] == other.sizes[:3] and one.images == other.images
    plain = one.shortcut == "none" and one.result == "float"
    rows, columns, features, *image = one.sizes[:6]
    read, written = image[0] * image[1] * image[2], 4 * rows * columns * features
    return same and plain and one.images * read + _BAND < one.images * written


def _joined(
    bb: relax.BlockBuilder, bindings: Sequence[relax.Binding], forms: Sequence[DualForm]
) -> relax.Expr:
    """Emits the call of a kernel that computes a band of the shortcut, then of the result."""
    (maker, reader), (one, other) = bindings, forms
    given = [b.value.args[1].fields for b in (maker, reader)]
    operands = [*given[0], *given[1][:-2], given[1][-1]]
    x, *own = _declared(given[0], "a")
    into, *rest = _declared(given[1], "b")
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
    totals = other.result == "totals"
    if totals:  # which the second function adds to, band by band
        with code.loop(one.images * features) as at:
            code.store(y, at, tirx.const(0, "int32"))
    with code.loop(one.images) as n, code.loop(-(-pixels // many)) as i:
        begin = i * many
        span = tuple(tirx.Cast("int32", v) for v in (begin, tirx.min(begin + many, pixels + i * 0)))
        image = [(x, n * one.given), *((b, n * 0) for b in own)]
        emit_call(code, one, [*image, (own[1], n * 0), (own[1], n * 0), (band, n * 0)], strip, span)
        image = [(into, n * other.given), *((b, n * 0) for b in rest[:3])]
        written = n * features if totals else n * each + begin * features
        places = [*image, (band, n * 0), (rest[-1], n * 0), (y, written)]
        emit_call(code, other, places, strip, span)
    kernel = function([x, *own, into, *rest[:-2], rest[-1], y], code.finish())
    name = bb.add_func(kernel, "q_conv2d_with_shortcut")
    return bb.normalize(relax.call_tir(name, relax.Tuple(operands), reader.var.ty))


def _declared(operands: Sequence[relax.Expr], prefix: str) -> list[Any]:
    return [
        declare([int(n) for n in o.ty.shape], str(o.ty.dtype), f"{prefix}{i}")
        for i, o in enumerate(operands)
    ]
