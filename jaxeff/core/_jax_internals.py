"""The one file that knows JAX internals; everything else reads jaxprs through it.

JAX's interpreter-facing API moves with its minor versions. `jax.extend.core` and
`jax.extend.core.primitives` are public and used where they suffice; the private modules below are
needed to keep source locations and name scopes when an equation is bound again, to read a name
scope, for six primitives that the public list lacks, and for a call that is lowered one way for
export and another way otherwise. What has moved is told by what JAX has, never by its version,
since patch releases move things too. A JAX upgrade is an edit of this file and of the pin in
pyproject.toml.

Sharp edge: `multiple_results` primitives bind to a list, all others to a bare value; `bind` below
always returns a list.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import api_util, config, core, source_info_util
from jax._src import linear_util as lu
from jax._src.core import Atom, eval_jaxpr, jaxpr_as_fun, pvary_p, set_current_trace, trace_ctx
from jax._src.export.shape_poly import is_symbolic_dim
from jax._src.interpreters import mlir
from jax._src.interpreters.ad import Zero
from jax._src.interpreters.partial_eval import (
    DynamicJaxprTrace,
    dce_jaxpr,
    dce_rules,
    trace_to_jaxpr_dynamic,
)
from jax._src.lax import lax
from jax._src.lax.lax import composite_p, split_p, stack_p, tile_p
from jax._src.pjit import reshard_p
from jax._src.random.threefry2x32 import _threefry2x32_lowering as _threefry
from jax._src.util import weakref_lru_cache
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var
from jax.extend.core import primitives as primitives
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

__all__ = [
    "COMPOSITE",
    "COMPOSITE_ATTRIBUTES",
    "Atom",
    "ClosedJaxpr",
    "Derivative",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "Var",
    "as_closed",
    "at_size",
    "bind",
    "call_name",
    "composite_p",
    "counter_words",
    "dce_jaxpr",
    "derivatives",
    "equations",
    "eval_jaxpr",
    "export_composite",
    "export_composite_p",
    "is_key",
    "is_transposed",
    "jaxpr_as_fun",
    "nested_equations",
    "newer_primitives",
    "numbers_by_place",
    "primitives",
    "primitives_in",
    "pvary_p",
    "register_dce_rule",
    "reshard_p",
    "restated",
    "scan_counts",
    "scopes",
    "source_line",
    "split_p",
    "stack_p",
    "sub_jaxprs",
    "tile_p",
]


_LOGS = hasattr(jax.custom_vjp, "defvjp_with_logs")
"""Whether a backward pass returns logs beside its cotangents."""
_COMPOSITE_BODY = (
    "call_jaxpr" if "call_jaxpr" in inspect.signature(composite_p.impl).parameters else "jaxpr"
)
"""What a composite calls the jaxpr that it stands for."""


def newer_primitives() -> dict[str, Primitive]:
    """Returns the primitives that some supported versions of JAX lack or rarely use, by name."""
    names = ("log2_p", "one_minus_square_p", "polynomial_p", "unstack_p")
    return {name: getattr(lax, name) for name in names if hasattr(lax, name)}


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Reads how many constants and how many carries a scan has, which come first in this order."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()
    return len(constants), len(carry)


def register_dce_rule(
    primitive: Primitive, rule: Callable[[list[bool], JaxprEqn], tuple[list[bool], JaxprEqn | None]]
) -> None:
    """Tells JAX how to drop what no result needs from equations of a primitive of ours.

    `rule` gets which results are read and the equation; it returns which operands are read and what
    is left of the equation.
    """
    # JAX may say in between which references are read afterwards; a primitive of ours has none.
    dce_rules[primitive] = lambda used, *rest: rule(used, rest[-1])


def bind(eqn: JaxprEqn, *values: Any, **changed: Any) -> list[Any]:
    """Evaluates one equation on `values`, keeping its source location, name scope and context.

    Args:
        eqn: The equation.
        *values: The operands.
        **changed: Parameters that replace its own.
    """
    params = eqn.primitive.get_bind_params(eqn.params | changed)
    # `bind` alone takes the location of this line; marks and error messages need the user's.
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with (
        source_info_util.user_context(eqn.source_info.traceback, name_stack=stack),
        eqn.ctx.manager,
    ):
        out = eqn.primitive.bind(*values, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


def at_size(value: Any, size: int) -> Any:
    """Sets every size that may vary to one, in a shape or an equation's parameter."""

    def known(part: Any) -> Any:
        if not is_symbolic_dim(part):
            return part
        sizes: Any = dict.fromkeys(part._get_vars(), size)
        return int(part._evaluate(sizes))

    # Parameters are named tuples too: of axes, and of the functions behind a random key.
    return jax.tree.map(known, value)


class Derivative(NamedTuple):
    """A jaxpr that belongs to a custom derivative.

    Attributes:
        closed: The jaxpr.
        inputs: What each of its inputs has the axes of: the call's `("operand", i)`,
            `("result", i)` or a `("residual", i)`, which the forward pass makes.
        outputs: The same of its outputs.
    """

    closed: ClosedJaxpr
    inputs: list[tuple[str, int]]
    outputs: list[tuple[str, int]]


def derivatives(eqn: JaxprEqn) -> list[Derivative]:
    """Reads the jaxprs of a custom derivative, with all operands differentiated.

    Returns the rule of a `custom_jvp`; the forward and the backward pass of a `custom_vjp`.
    """
    q, results = eqn.params, [("result", i) for i in range(len(eqn.outvars))]
    # Constants come before the differentiable operands; rules don't take them.
    operands = [("operand", i) for i in range(len(eqn.invars))][q["num_consts"] :]
    if "jvp_jaxpr_fun" in q:
        # `False` per operand: no tangent is a symbolic zero, so the rule is the complete one.
        jaxpr, consts, zeros = q["jvp_jaxpr_fun"].call_wrapped(*(False for _ in operands))
        moving = [result for result, zero in zip(results, zeros, strict=True) if not zero]
        rule = ClosedJaxpr(jaxpr, consts)
        return [Derivative(rule, [*operands, *operands], [*results, *moving])]
    jaxpr, consts = q["fwd_jaxpr_thunk"].call_wrapped(*(True for _ in operands))
    forward = ClosedJaxpr(jaxpr, consts)
    _, _, inputs = q["out_trees"]()
    forward_avals = iter(forward.out_avals)
    # JAX forwards a residual that is an operand unchanged: it is not among the forward
    # pass's results.
    residuals = [("residual", i) if k is None else ("operand", k) for i, k in enumerate(inputs)]
    computed = [residual for residual in residuals if residual[0] == "residual"]
    avals = [next(forward_avals) if k is None else eqn.invars[k].aval for k in inputs]
    moving = []

    def backward(*values: Any) -> list[Any]:
        cotangents = q["bwd"].call_wrapped(*values)
        if _LOGS:
            cotangents, _ = cotangents
        pairs = list(zip(operands, cotangents, strict=True))
        moving[:] = [operand for operand, x in pairs if type(x) is not Zero]
        return [x for _, x in pairs if type(x) is not Zero]

    # Traced once to find which operands get a cotangent: symbolic zeros don't leave a jaxpr.
    cotangents = [v.aval.to_ct_aval() for v in eqn.outvars]
    closed = jax.make_jaxpr(backward)(*avals, *cotangents)
    return [
        Derivative(forward, operands, [*computed, *results]),
        Derivative(closed, [*residuals, *results], moving),
    ]


def restated(eqn: JaxprEqn, restate: Callable[[Derivative], ClosedJaxpr]) -> dict[str, Any]:
    """Rewrites the parameters of a custom derivative for operands of other shapes.

    `restate` gives a jaxpr of the old shapes for the new ones. Returns parameters for `bind`.
    """
    q, count = eqn.params, len(eqn.invars)
    numbered = [("operand", i) for i in range(count)]
    operands = numbered[q["num_consts"] :]
    call = Derivative(q["call_jaxpr"], numbered, [("result", i) for i in range(len(eqn.outvars))])
    changed: dict[str, Any] = {"call_jaxpr": restate(call)}
    if "jvp_jaxpr_fun" in q:
        # JAX asks for a rule per pattern of zero tangents, which is known only when it
        # differentiates: the jaxpr is restated then.
        def derivative(*zeros: bool) -> Any:
            jaxpr, consts, out_zeros = q["jvp_jaxpr_fun"].call_wrapped(*zeros)
            moving = [operand for operand, zero in zip(operands, zeros, strict=True) if not zero]
            results = [
                *call.outputs,
                *(m for m, z in zip(call.outputs, out_zeros, strict=True) if not z),
            ]
            new = restate(Derivative(ClosedJaxpr(jaxpr, consts), [*operands, *moving], results))
            return new.jaxpr, new.consts, out_zeros

        info = q["jvp_jaxpr_fun"].debug_info
        changed["jvp_jaxpr_fun"] = lu.wrap_init(derivative, debug_info=info)
        return changed

    # Cached: JAX asks for the forward and the backward pass separately, and each needs both.
    passes = functools.cache(lambda: [(d, restate(d)) for d in derivatives(eqn)])

    def forward(*nonzeros: bool) -> Any:
        del nonzeros  # which only symbolic zeros are told
        (_, new), _ = passes()
        return new.jaxpr, new.consts

    def backward(*values: Any) -> Any:
        _, (last, new) = passes()
        cotangent_of = dict(zip(last.outputs, jaxpr_as_fun(new)(*values), strict=True))
        # JAX expects a cotangent per operand: symbolic zeros where the rule makes none.
        shapes = dict(zip(call.inputs, changed["call_jaxpr"].in_avals, strict=True))
        cotangents = [cotangent_of.get(at, Zero(shapes[at].to_ct_aval())) for at in operands]
        return (cotangents, None) if _LOGS else cotangents

    changed["fwd_jaxpr_thunk"] = lu.wrap_init(forward, debug_info=q["fwd_jaxpr_thunk"].debug_info)
    changed["bwd"] = lu.wrap_init(backward, debug_info=q["bwd"].debug_info)
    return changed


def as_closed(jaxpr: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
    """Closes a jaxpr: remat and shard_map carry open ones."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def sub_jaxprs(eqn: JaxprEqn) -> list[ClosedJaxpr]:
    """Lists every jaxpr an equation carries in its parameters, in parameter order."""
    jaxprs: list[ClosedJaxpr] = []
    # The branches of `cond` are a tuple.
    for value in eqn.params.values():
        candidates = value if isinstance(value, tuple | list) else (value,)
        jaxprs.extend(as_closed(c) for c in candidates if isinstance(c, Jaxpr | ClosedJaxpr))
    return jaxprs


def equations(jaxpr: Jaxpr | ClosedJaxpr) -> Sequence[JaxprEqn]:
    """Lists the equations of a jaxpr, each after those whose results it reads.

    A call, a loop or a branch is one equation; `sub_jaxprs` has the jaxprs in it.
    """
    return jaxpr.eqns


def nested_equations(jaxpr: Jaxpr | ClosedJaxpr) -> Iterator[JaxprEqn]:
    """Yields the equations of a jaxpr at any depth, one that holds others before them."""
    for eqn in equations(jaxpr):
        yield eqn
        for sub in sub_jaxprs(eqn):
            yield from nested_equations(sub)


def primitives_in(jaxpr: Jaxpr | ClosedJaxpr) -> Iterator[Any]:
    """Yields the primitives of a jaxpr at any depth."""
    return (eqn.primitive for eqn in nested_equations(jaxpr))


def call_name(eqn: JaxprEqn) -> str:
    """Reads the name of the function a call equation came from, or the empty string."""
    name = eqn.params.get("name", "")
    if not isinstance(name, str):
        return ""
    # jit and remat carry the function's name; custom derivatives leave it empty.
    if name or eqn.primitive not in {primitives.custom_jvp_call_p, primitives.custom_vjp_call_p}:
        return name
    # Of a function with derivatives of its own only the traced body knows it.
    name = sub_jaxprs(eqn)[0].jaxpr.debug_info.func_name or ""
    return name if name.isidentifier() else ""


def scopes(eqn: JaxprEqn) -> tuple[str, ...]:
    """Lists the name scopes around an equation, outermost first, without `jvp` and `vmap`.

    Scopes inside a transposition are left out too: they name what the backward pass was derived
    from, not what it is; so are names of operations of another library (``aten::relu``), which
    aren't those of layers.
    """
    names: list[str] = []
    for element in eqn.source_info.name_stack.stack:
        # Elements are scopes or transforms; the classes are private, so they go by name.
        if type(element).__name__ == "Scope":
            if "::" not in element.name:
                names.append(element.name)
        elif element.name == "transpose":
            break
    return tuple(names)


def is_transposed(eqn: JaxprEqn) -> bool:
    """Tells whether an equation is part of a backward pass, by its own name scope.

    The equations inside a transposed call (jit, scan, remat) don't say so themselves.
    """
    return any(element.name == "transpose" for element in eqn.source_info.name_stack.stack)


def source_line(eqn: JaxprEqn) -> str:
    """Finds where in the user's code an equation was written, as `file:line (function)`."""
    return source_info_util.summarize(eqn.source_info)


def counter_words(first: Any, second: Any, numbers: Any) -> tuple[Any, Any]:
    """Computes what Threefry makes of numbers, with a key for each.

    The two words are the key that `jax.random.fold_in` makes of key and number; their exclusive or
    is the random bits that `jax.random` has at that place of an array.

    Keys are words `uint32[...]` each; so are the two results.
    """
    # Unrolled it is one pass over memory; as the primitive's loop on processors it is twenty.
    zero = jax.numpy.zeros_like(numbers)
    high, low = _threefry(first, second, zero, numbers, use_rolled_loops=False)
    return high, low


def numbers_by_place() -> bool:
    """Tells whether `jax.random` makes each number of a key and its place alone."""
    return bool(config.threefry_partitionable.value)


def trace_settings() -> Any:
    """Returns JAX's settings that a trace depends on, as its own caches do."""
    return config.trace_context()


def is_staged() -> bool:
    """Tells whether what is computed now becomes equations of a program, and nothing else."""
    return isinstance(trace_ctx.trace, DynamicJaxprTrace)


def is_key(value: Any) -> bool:
    """Tells whether a value is a PRNG key: a typed key, or a legacy `uint32[2]` array."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return False
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return True
    return dtype == "uint32" and tuple(value.shape) == (2,)


COMPOSITE, COMPOSITE_ATTRIBUTES = "jaxeff.composite", "jaxeff.attributes"
"""Attributes of a function that stands for a composite in a module of symbolic sizes."""


class _ExportComposite(Primitive):
    """A call of a jaxpr that is a `stablehlo.composite` where it is lowered for export.

    In a module of symbolic sizes it is a call of a function with the attributes `COMPOSITE` and
    `COMPOSITE_ATTRIBUTES`.

    Only a function that is being staged out holds it; every interpreter (evaluation, derivatives,
    vmap) gets the equations of the jaxpr instead, so it needs no rules of its own.
    """

    multiple_results = True

    def bind_with_trace(self, trace: Any, args: Any, avals: Any, params: Any, /) -> Any:
        # Staged out: keep the call as an equation. Any other interpreter gets the body's equations.
        if isinstance(trace, DynamicJaxprTrace):
            return super().bind_with_trace(trace, args, avals, params)
        with set_current_trace(trace):
            return jaxpr_as_fun(params["jaxpr"])(*args)


export_composite_p = _ExportComposite("export_composite")
export_composite_p.def_abstract_eval(lambda *args, jaxpr, **params: jaxpr.out_avals)


def export_composite(
    fn: Callable[..., Any], operands: Sequence[Any], operator: str, attributes: Mapping[str, Any]
) -> Sequence[Any]:
    """Calls `fn(*operands)`, as a `stablehlo.composite` where that is lowered for export.

    `fn` returns a tree of arrays, closes over no traced value, and is traced once for operands of
    the same types for as long as it lives. Attributes are strings, integers, floats and tuples of
    them.
    """
    if not is_staged():
        return jax.tree.leaves(fn(*operands))
    jaxpr = _composite_body(fn, tuple(map(jax.typeof, operands)))
    return export_composite_p.bind(
        *operands, jaxpr=jaxpr, operator=operator, attributes=tuple(attributes.items())
    )


# Equal layers have one body: kept by JAX's settings too, as what `jax.jit` traces is.
@weakref_lru_cache
def _composite_body(fn: Callable[..., Any], avals: tuple[Any, ...]) -> ClosedJaxpr:
    def flat(*operands: Any) -> list[Any]:
        return jax.tree.leaves(fn(*operands))

    # `jax.make_jaxpr` is a jit of its own: it would slow the tracing of moments by a third.
    debug_info = api_util.debug_info("export_composite", fn, avals, {})
    jaxpr, _, consts = trace_to_jaxpr_dynamic(lu.wrap_init(flat, debug_info=debug_info), avals)
    return ClosedJaxpr(jaxpr, consts)


def _lower_export_composite(
    ctx: Any, *args: Any, jaxpr: Any, operator: str, attributes: Any
) -> Sequence[Any]:
    if ctx.module_context.lowering_parameters.for_export:
        if ctx.module_context.shape_poly_state.dim_vars:
            return _called(ctx, args, jaxpr, operator, attributes)
        return mlir.lower_fun(_composite(jaxpr, operator, attributes))(ctx, *args)
    on_cpu = tuple(ctx.module_context.platforms) == ("cpu",)
    if on_cpu and (codes := _windows_of_codes(jaxpr)):
        return mlir.lower_fun(functools.partial(_by_floats, jaxpr, codes))(ctx, *args)
    # Compiled here, the body is inlined: XLA fuses across the call.
    results, tokens = mlir.jaxpr_subcomp(
        ctx.module_context,
        jaxpr.jaxpr,
        ctx.name_stack,
        ctx.tokens_in,
        mlir.ir_consts(jaxpr.consts, [v.aval for v in jaxpr.jaxpr.constvars]),
        *args,
        dim_var_values=ctx.dim_var_values,
        const_lowering=ctx.const_lowering,
        outer_traceback=ctx.traceback,
    )
    ctx.set_tokens_out(tokens)
    return results


_EXACT = 1 << 24
"""Whole numbers up to here are float32's, and so are their sums, in any order."""


def _windows_of_codes(jaxpr: Any) -> dict[Var, tuple[Var, Var]]:
    """Finds convolutions of codes of eight bits that are widened to int32.

    XLA has no kernel of them on a CPU: its loops take a hundred times as long as a product of
    floats.

    Args:
        jaxpr: The body of a composite.

    Returns:
        By the result the codes, which are whole numbers of at most eight bits.
    """
    narrow: dict[Any, Var] = {}
    convolutions = {}
    equation: Any
    for equation in equations(jaxpr):
        (result, *_) = equation.outvars
        if equation.primitive is primitives.convert_element_type_p:
            (operand,) = equation.invars
            if operand.aval.dtype in (np.int8, np.uint8) and result.aval.dtype == np.int32:
                narrow[result] = operand
        elif equation.primitive is primitives.conv_general_dilated_p:
            x, w = equation.invars
            if x in narrow and w in narrow and equation.params["batch_group_count"] == 1:
                convolutions[result] = narrow[x], narrow[w]
    return convolutions


def _by_floats(jaxpr: Any, codes: Mapping[Var, tuple[Var, Var]], *operands: Any) -> list[Any]:
    """Computes a body whose convolutions of codes are ones of floats, bit for bit the same."""
    values = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
    values |= zip(jaxpr.jaxpr.invars, operands, strict=True)

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in equations(jaxpr):
        if equation.outvars[0] in codes:
            x, w = map(read, codes[equation.outvars[0]])
            results = [_exact_windows(x, w, equation.params)]
        else:
            results = bind(equation, *map(read, equation.invars))
        values |= zip(equation.outvars, results, strict=True)
    return list(map(read, jaxpr.jaxpr.outvars))


def _exact_windows(x: Any, w: Any, params: Mapping[str, Any]) -> Any:
    """Convolves codes in float32, in as many parts of their channels as keep sums exact."""
    _, channels, *_ = params["dimension_numbers"].lhs_spec
    _, depth, *space = params["dimension_numbers"].rhs_spec
    windows = math.prod(w.shape[axis] for axis in space)
    largest = math.prod(
        max(-int(jnp.iinfo(v.dtype).min), int(jnp.iinfo(v.dtype).max)) for v in (x, w)
    )
    part, count = _EXACT // (largest * windows), w.shape[depth]
    as_float = {**params, "preferred_element_type": jnp.dtype("float32")}
    # Channels of groups lie in each other's way: they aren't parted.
    if part < count and (params["feature_group_count"] > 1 or not part):
        integers = (v.astype("int32") for v in (x, w))
        return primitives.conv_general_dilated_p.bind(*integers, **params)
    total: Any = 0
    for start in range(0, count, part):
        pieces = (
            jax.lax.slice_in_dim(v, start, min(start + part, count), axis=axis)
            if part < count
            else v
            for v, axis in ((x, channels), (w, depth))
        )
        floats = (v.astype("float32") for v in pieces)
        total += primitives.conv_general_dilated_p.bind(*floats, **as_float).astype("int32")
    return total


def _called(ctx: Any, args: Any, jaxpr: Any, operator: str, attributes: Any) -> Sequence[Any]:
    """Lowers a composite as the call of a function that names it.

    StableHLO finds the sizes of a module of symbolic ones call by call, but not through composites.
    """
    constants = [
        # MLIR functions close over nothing: the body's constants become operands.
        (mlir.ir_constants(c, const_lowering=ctx.const_lowering, aval=aval), aval)
        for c, aval in core.jaxpr_const_args(jaxpr.jaxpr)
    ]
    avals = (*(aval for _, aval in constants), *ctx.avals_in)
    function, results, _ = mlir.lower_called_computation(
        operator, jaxpr, ctx.module_context, len(constants), avals, ctx.avals_out, ctx.tokens_in
    )
    said = {name: mlir.ir_attribute(value) for name, value in attributes}
    function.attributes[COMPOSITE] = ir.StringAttr.get(operator)
    function.attributes[COMPOSITE_ATTRIBUTES] = ir.DictAttr.get(said)
    # The order of a lowered function's arguments: sizes, constants, operands.
    inputs = (*ctx.dim_var_values, *(c for c, _ in constants), *args)
    operands, _ = mlir.ir_tree_registry.flatten(inputs)
    callee = ir.FlatSymbolRefAttr.get(function.name.value)
    return list(func.CallOp(results, callee, operands).results)


def _composite(jaxpr: Any, operator: str, attributes: Any) -> Callable[..., Sequence[Any]]:
    # Not through `lax.composite`, which makes operands of the jaxpr's constants.
    flat = [(name, jax.tree.flatten(value)) for name, value in attributes]
    return functools.partial(
        composite_p.bind,
        name=operator,
        attributes=tuple((name, tuple(leaves), tree) for name, (leaves, tree) in flat),
        version=1,
        **{_COMPOSITE_BODY: jaxpr},
    )


mlir.register_lowering(export_composite_p, _lower_export_composite, cacheable=False)
