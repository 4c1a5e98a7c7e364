"""Reads a pure function `f(params, *args)` into a `Program`.

Sharp edges:
    The first positional argument that is not a PRNG key holds the parameters; what follows is data.
    Keyword arguments that are arrays count as data; other keyword arguments are static.
    Reading is tracing: it costs a few milliseconds, so put transformed functions under `jax.jit`.

```python
from jaxeff import trace
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier(10)
program = trace(f, params, x)
assert [layer.site for layer in program.layers if layer.kind == "linear"] == ["conv1", "fc1", "fc2"]
```
"""

import math
import operator
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff import core
from jaxeff.core import jax_internals as _compat
from jaxeff.core import primitives as p
from jaxeff.program import ir
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading._grouping import group, name_layers

_while_p = _compat.Primitive("while_with_dead_carries")
_while_p.multiple_results = True


def without_dead_code(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Leaves out the equations and loop carries that no result depends on.

    Inputs stay, used or not; so do equations with effects.

    What no result depends on, such as loop carries that are never read, is left out. JAX does so
    for scans and branches, and keeps a `while_loop` as it is. So the while loops of a function are
    given to JAX as equations of another primitive, which has a rule here, and become while loops
    again afterwards. JAX's own primitive stays as it is for everybody else.
    """
    jaxpr = _exchanged(closed.jaxpr, p.while_p, _while_p)
    live, _ = _compat.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return closed.replace(jaxpr=_exchanged(live, _while_p, p.while_p))


def _exchanged(jaxpr: core.Jaxpr, old: Any, new: Any) -> core.Jaxpr:
    """Returns a jaxpr with one primitive in place of another, at any depth."""
    return core.rewritten(jaxpr, {old}, lambda eqn: [eqn.replace(primitive=new)])


def _without_dead_carries(
    used: Sequence[bool], eqn: core.JaxprEqn
) -> tuple[list[bool], core.JaxprEqn | None]:
    """Drops the carries of a while loop that neither results nor the other carries need.

    `used` says which results are read. Returns which operands it still reads, and what is left of
    it.
    """
    if eqn.effects:
        return [True] * len(eqn.invars), eqn
    if not any(used):
        return [False] * len(eqn.invars), None
    loop = ir.While.of(eqn, eqn.invars)
    test, body = loop.test.jaxpr, loop.body.jaxpr
    first, fixed = len(loop.test_consts), len(loop.consts)
    # The test decides how often the body runs: every result depends on what it reads.
    _, tested = _compat.dce_jaxpr(test, [True])
    live = [*map(operator.or_, used, tested[first:])]
    # A carry that a live one is computed from is live in the iteration before, hence in all.
    live, _ = ir.fixed_point(
        lambda live: (_compat.dce_jaxpr(body, live)[1][fixed:], None), live, operator.or_
    )
    # `instantiate`: both take the live carries, whether they read them or not.
    test, tested = _compat.dce_jaxpr(test, [True], [False] * first + live)
    body, read = _compat.dce_jaxpr(body, live, [False] * fixed + live)
    operands = [*tested[:first], *read[:fixed], *live]
    params = eqn.params | {
        "cond_nconsts": sum(tested[:first]),
        "cond_jaxpr": loop.test.replace(jaxpr=test),
        "body_nconsts": sum(read[:fixed]),
        "body_jaxpr": loop.body.replace(jaxpr=body),
    }
    invars, outvars = [*compress(eqn.invars, operands)], [*compress(eqn.outvars, live)]
    return operands, eqn.replace(invars=invars, outvars=outvars, params=params)


_compat.register_dce_rule(_while_p, _without_dead_carries)


FLAG = "--xla_cpu_experimental_ynn_fusion_type="
"""Turns off the fusion that is wrong."""
SMALLEST = 4096
"""Entries of the smallest result that was wrong: 64 x 64 and 512 x 8 are, 56 x 72 isn't."""


class CompilerWarning(UserWarning):
    """XLA compiles a part of the function wrongly on processors; the message has a way out."""


def warn_of_faults(closed: core.ClosedJaxpr) -> None:
    """Warns of products and convolutions that XLA would compile wrongly.

    Reading warns of products that XLA compiles wrongly on processors. Seen in every jaxlib from
    0.10.2 to 0.12.0.1, on processors: a matrix product or convolution whose *second* operand is one
    number everywhere (`jnp.zeros`, `jnp.ones`, a box filter, a scalar that is broadcast), with a
    result of at least `SMALLEST` entries that a reduction reads in the same compiled function,
    gives NaN or arbitrary numbers: `jax.jit(lambda a: jnp.sum(a @ jnp.ones((64, 64))))`. Without
    `jit`, or with `FLAG` in the environment variable `XLA_FLAGS`, it is right.

    So it is with convolutions that crop an axis at its start and pad it at its end (`padding` of
    (-2, 1), in the function itself, or in a gradient that it takes): in floats of up to 32 bits
    they read beyond the array, with and without `jit` and the flag.

    Whether the operand is one number is only known where the function makes it itself: arguments
    are left alone, and so are the compiler's rewritings, which may make such a product of another
    one.
    """
    if jax.default_backend() != "cpu":
        return
    products, cropping = _faults(closed)
    if FLAG in os.environ.get("XLA_FLAGS", ""):
        products = []
    for places, reason in ((products, _OF_ONE_NUMBER), (cropping, _OF_CROPPING)):
        if places:
            listed = ", ".join(dict.fromkeys(places))
            warnings.warn(reason.format(listed), CompilerWarning, stacklevel=2)


_OF_ONE_NUMBER = (
    "On processors XLA may compile a product with an array of one number everywhere to NaN or "
    f"arbitrary numbers; here at {{}}. Set XLA_FLAGS={FLAG} in the environment before JAX starts, "
    "or write the product as a sum times that number."
)
_OF_CROPPING = (
    "On processors XLA compiles a convolution that crops an axis at its start and pads it at its "
    "end (padding such as (-2, 1)) to arbitrary numbers, for it reads beyond the array; here at "
    "{}. Crop and pad before, by jax.lax.pad, and convolve with padding (0, 0)."
)


def _faults(closed: core.ClosedJaxpr) -> tuple[list[str], list[str]]:
    """Lists where in the user's code such products stand, and such convolutions."""
    products: list[str] = []
    cropping: list[str] = []

    def rule(eqn: core.JaxprEqn, one_number: list[bool]) -> Sequence[bool]:
        if eqn.primitive in prim.LINEAR:
            out: Any = eqn.outvars[0].aval
            floating = jnp.issubdtype(out.dtype, jnp.floating)
            if one_number[1] and floating and _entries(out) >= SMALLEST:
                products.append(_compat.source_line(eqn))
            # Doubles and integers take another way.
            pairs = eqn.params.get("padding", ()) if floating and out.dtype.itemsize <= 4 else ()
            if any(low < 0 < high for low, high in _compat.at_size(tuple(pairs), 1)):
                cropping.append(_compat.source_line(eqn))
        if eqn.primitive in prim.CONTROL:
            # Of what goes into a loop or a branch nothing is known; what is made inside is.
            for body in _compat.sub_jaxprs(eqn):
                for places, inside in zip((products, cropping), _faults(body), strict=True):
                    places.extend(inside)
        keeps = eqn.primitive in prim.ELEMENTWISE or eqn.primitive in _MOVES
        return [(keeps and all(one_number)) or _entries(v.aval) == 1 for v in eqn.outvars]

    single = [_entries(v.aval) == 1 for v in closed.jaxpr.invars]
    ir.walk(closed, single, ir.entering(rule, _is_one_number), _is_one_number)
    return products, cropping


def _entries(aval: Any) -> int:
    """Counts the entries of an array, at one where its size may vary; keys and tokens have none."""
    return math.prod(_compat.at_size(getattr(aval, "shape", (0,)), 1))


_MOVES = prim.VIEWS | {p.name_p}


def _is_one_number(atom: Any, value: Any) -> bool:
    """Tells whether a literal or a constant array has one number everywhere."""
    del atom
    if np.ndim(value) == 0:
        return True
    numeric = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.number)
    if isinstance(value, jax.core.Tracer) or not numeric or not value.size:
        return False
    flat = np.ravel(np.asarray(value))
    return bool(flat[0] == flat[-1] and (flat == flat[0]).all())


# Collections a path may start with; they say what a leaf is for, not which module it belongs to.
_COLLECTIONS = {"params": ir.Role.PARAM, "batch_stats": ir.Role.STATE}
_MOMENTS = ("mean", "var")


@core.validate()
def trace(f: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> ir.Program:
    """Reads `f` into a program at the given argument shapes; values are not used.

    Args:
        f: A pure function of a parameter pytree and further arguments.
        params: Arrays or `jax.ShapeDtypeStruct`s.
        *args: More of them; PRNG keys may stand anywhere, before `params` too.
        **kwargs: Arrays count as data, anything else is static.

    Returns:
        The program; `evaluate` runs it, `summary` prints it.

    Raises:
        TypeError: If there is no argument that could hold parameters, a Flax model stands where a
            function or its parameters belong, or a leaf is no array.
    """
    return _read_program(f, (params, *args), kwargs)


def trace_live(f: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> ir.Program:
    """Reads what `f`'s results depend on, as `trace` reads all of it.

    A loop may carry what nothing reads; what it computes then needs no rule.
    """
    return _read_program(f, (params, *args), kwargs, live=True)


def _read_program(
    f: Callable[..., Any], everything: tuple[Any, ...], kwargs: dict[str, Any], live: bool = False
) -> ir.Program:
    core.check_function("f", f)
    for position, argument in enumerate(everything):
        core.check_params(f"argument {position}", argument)
    arrays = _array_arguments(kwargs)
    static = {k: v for k, v in kwargs.items() if k not in arrays}

    def call(positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return f(*positional, **named, **static)

    def traced() -> tuple[Any, Sequence[Any]]:
        # One trace gives both the jaxpr and the result's structure: tracing is most of the cost.
        reading = core.make_jaxpr(call)(everything, arrays)
        return reading, reading[0].consts

    def grouped(closed: core.ClosedJaxpr, shape: Any) -> ir.Program:
        warn_of_faults(closed)
        in_tree = jax.tree.structure((everything, arrays))
        out_tree = jax.tree.structure(shape)
        inputs = _input_values(everything, arrays, closed.jaxpr.invars)
        graph = ir.flatten(closed, inputs)
        program = group(graph)
        # After grouping, so that an input's layer doesn't take part in any region.
        program = _with_input_sites(program, graph)
        program.in_tree, program.out_tree = in_tree, out_tree
        name_layers(program)
        return program

    def read() -> tuple[ir.Program, Sequence[Any]]:
        reading, constants = traced()
        return grouped(*reading), constants

    if not live:
        return core.kept_reading(f, (everything, arrays), static, read)
    # Moments change the program that they read: the jaxpr is what is kept for them.
    closed, shape = core.kept_reading(
        f, (everything, arrays), {**static, "jaxeff.live": True}, traced
    )
    return grouped(without_dead_code(closed), shape)


def leaf_names(params: Any) -> list[str]:
    """Returns the names of a pytree's leaves, in order, as sites are named after them.

    Paths, without the collection of a Linen model; the mean and the variance of a `Gaussian` have
    the name of the parameter.
    """
    return [_leaf(path)[1] for path, _ in jax.tree_util.tree_leaves_with_path(params)]


def argument_leaves(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Returns the leaves of a call's arguments, in the order of the program's inputs."""
    return jax.tree.leaves((tuple(args), _array_arguments(kwargs)))


def _array_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if _is_array_tree(v)}


def _is_array_tree(value: Any) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(hasattr(x, "shape") and hasattr(x, "dtype") for x in leaves)


def _input_values(
    everything: Sequence[Any], arrays: dict[str, Any], invars: Sequence[Any]
) -> list[ir.Value]:
    position = next((i for i, a in enumerate(everything) if not _compat.is_key(a)), None)
    if position is None:
        raise TypeError("No argument holds parameters: every argument is a PRNG key.")
    values: list[ir.Value] = []
    # The order of leaves is that of `jax.tree`: the same as of the jaxpr's inputs.
    leaves, _ = jax.tree.flatten_with_path((tuple(everything), arrays))
    for (keypath, leaf), var in zip(leaves, invars, strict=True):
        in_params = keypath[0].idx == 0 and keypath[1].idx == position
        if in_params:
            role, path = _leaf(keypath[2:])
            values.append(ir.Value(var.aval, role, path, _is_variance(keypath)))
        elif _compat.is_key(leaf):
            values.append(ir.Value(var.aval, ir.Role.KEY))
        else:
            values.append(ir.Value(var.aval, ir.Role.DATA, spread=_is_variance(keypath)))
    return values


def _leaf(keypath: Sequence[Any]) -> tuple[ir.Role, str]:
    """Returns a leaf's role and name; the two halves of a Gaussian share a name."""
    parts = [jax.tree_util.keystr((k,), simple=True) for k in keypath]
    last = keypath[-1] if keypath else None
    if isinstance(last, jax.tree_util.GetAttrKey) and last.name in _MOMENTS:
        parts = parts[:-1]
    role = ir.Role.PARAM
    if len(parts) > 1 and parts[0] in _COLLECTIONS:
        role = _COLLECTIONS[parts[0]]
        parts = parts[1:]
    return role, "/".join(parts) or "params"


def _is_variance(keypath: Sequence[Any]) -> bool:
    last = keypath[-1] if keypath else None
    return isinstance(last, jax.tree_util.GetAttrKey) and last.name == "var"


def _with_input_sites(program: ir.Program, graph: ir.Graph) -> ir.Program:
    """Puts an identity layer behind every data argument.

    A transform that acted on an input made it a layer with equations, which is the site then: only
    what reads the argument besides has an identity.
    """
    changed = [layer for layer in program.layers if layer.kind == "input"]
    elsewhere = {v for layer in program.layers if layer not in changed for v in layer.inputs}
    elsewhere.update(v for v in program.outputs if isinstance(v, ir.Value))
    replaced = {v for layer in changed for v in layer.inputs} - elsewhere
    state = {
        v
        for n in graph.nodes
        if n.primitive is prim.NAME and n.params["name"].startswith(core.STATE_TAG)
        for v in n.values
    }
    layers: list[ir.Layer] = []
    renamed: dict[ir.Value, ir.Value] = {}
    for value in program.inputs:
        numeric = jnp.issubdtype(value.aval.dtype, jnp.number)
        if value.is_data and numeric and value not in state | replaced:
            # The layer's result is a value of its own, so that input noise and input
            # quantization have a site while the argument itself stays as it is.
            inside = ir.Value(value.aval, value.role, spread=value.spread)
            renamed[value] = inside
            layers.append(ir.Layer("input", (), (value,), (inside,)))
    if not renamed:
        return program

    _rename(program, renamed)
    return ir.Program(
        program.inputs, program.constants, (*layers, *program.layers), program.outputs
    )


def _rename(program: ir.Program, renamed: dict[ir.Value, ir.Value]) -> None:
    """Replaces values everywhere in a program but among its inputs, and what is behind them."""

    def swap(v: Any) -> Any:
        return renamed.get(v, v) if isinstance(v, ir.Value) else v

    program.outputs = tuple(swap(v) for v in program.outputs)
    for layer in program.layers:
        if layer.kind == "input":
            continue
        layer.inputs = tuple(swap(v) for v in layer.inputs)
        for node in layer.nodes:
            node.inputs = tuple(swap(a) for a in node.inputs)
        if layer.mark:  # its inside shares its values; a loop's body has values of its own
            for inside in layer.programs:
                inside.inputs = tuple(swap(v) for v in inside.inputs)
                _rename(inside, renamed)
