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

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxeff.core import STATE_TAG, check_function, check_params, make_jaxpr, validate
from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import Graph, Layer, Program, Role, Value, flatten
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading._compiler_faults import warn_of_faults
from jaxeff.program.reading._dead_code import without_dead_code
from jaxeff.program.reading._grouping import group
from jaxeff.program.reading._naming import name_layers

# Collections a path may start with; they say what a leaf is for, not which module it belongs to.
_COLLECTIONS = {"params": Role.PARAM, "batch_stats": Role.STATE}
_MOMENTS = ("mean", "var")


@validate()
def trace(f: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> Program:
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
    return _read(f, (params, *args), kwargs)


def trace_live(f: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> Program:
    """Reads what `f`'s results depend on, as `trace` reads all of it.

    A loop may carry what nothing reads; what it computes then needs no rule.
    """
    return _read(f, (params, *args), kwargs, live=True)


def _read(
    f: Callable[..., Any], everything: tuple[Any, ...], kwargs: dict[str, Any], live: bool = False
) -> Program:
    check_function("f", f)
    for position, argument in enumerate(everything):
        check_params(f"argument {position}", argument)
    arrays = _array_arguments(kwargs)
    static = {k: v for k, v in kwargs.items() if k not in arrays}

    def call(positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return f(*positional, **named, **static)

    # One trace gives both the jaxpr and the result's structure: tracing is most of the
    # cost.
    closed, shape = make_jaxpr(call)(everything, arrays)
    if live:
        closed = without_dead_code(closed)
    warn_of_faults(closed)
    in_tree = jax.tree.structure((everything, arrays))
    out_tree = jax.tree.structure(shape)
    inputs = _input_values(everything, arrays, closed.jaxpr.invars)
    graph = flatten(closed, inputs)
    program = group(graph)
    # After grouping, so that an input's layer doesn't take part in any region.
    program = _with_input_sites(program, graph)
    program.in_tree, program.out_tree = in_tree, out_tree
    name_layers(program)
    return program


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
) -> list[Value]:
    position = next((i for i, a in enumerate(everything) if not _compat.is_key(a)), None)
    if position is None:
        raise TypeError("No argument holds parameters: every argument is a PRNG key.")
    values: list[Value] = []
    # The order of leaves is that of `jax.tree`: the same as of the jaxpr's inputs.
    leaves, _ = jax.tree.flatten_with_path((tuple(everything), arrays))
    for (keypath, leaf), var in zip(leaves, invars, strict=True):
        in_params = keypath[0].idx == 0 and keypath[1].idx == position
        if in_params:
            role, path = _leaf(keypath[2:])
            values.append(Value(var.aval, role, path, _is_variance(keypath)))
        elif _compat.is_key(leaf):
            values.append(Value(var.aval, Role.KEY))
        else:
            values.append(Value(var.aval, Role.DATA, spread=_is_variance(keypath)))
    return values


def _leaf(keypath: Sequence[Any]) -> tuple[Role, str]:
    """Returns a leaf's role and name; the two halves of a Gaussian share a name."""
    parts = [jax.tree_util.keystr((k,), simple=True) for k in keypath]
    last = keypath[-1] if keypath else None
    if isinstance(last, jax.tree_util.GetAttrKey) and last.name in _MOMENTS:
        parts = parts[:-1]
    role = Role.PARAM
    if len(parts) > 1 and parts[0] in _COLLECTIONS:
        role = _COLLECTIONS[parts[0]]
        parts = parts[1:]
    return role, "/".join(parts) or "params"


def _is_variance(keypath: Sequence[Any]) -> bool:
    last = keypath[-1] if keypath else None
    return isinstance(last, jax.tree_util.GetAttrKey) and last.name == "var"


def _with_input_sites(program: Program, graph: Graph) -> Program:
    """Puts an identity layer behind every data argument that a layer reads."""
    state = {
        v
        for n in graph.nodes
        if n.primitive is prim.NAME and n.params["name"].startswith(STATE_TAG)
        for v in n.values
    }
    layers: list[Layer] = []
    renamed: dict[Value, Value] = {}
    for value in program.inputs:
        numeric = jnp.issubdtype(value.aval.dtype, jnp.number)
        if value.is_data and numeric and value not in state:
            # The layer's result is a value of its own, so that input noise and input
            # quantization have a site while the argument itself stays as it is.
            inside = Value(value.aval, value.role, spread=value.spread)
            renamed[value] = inside
            layers.append(Layer("input", (), (value,), (inside,)))
    if not renamed:
        return program

    _rename(program, renamed)
    return Program(program.inputs, program.constants, (*layers, *program.layers), program.outputs)


def _rename(program: Program, renamed: dict[Value, Value]) -> None:
    """Replaces values everywhere in a program but among its inputs."""

    def swap(v: Any) -> Any:
        return renamed.get(v, v) if isinstance(v, Value) else v

    program.outputs = tuple(swap(v) for v in program.outputs)
    for layer in program.layers:
        layer.inputs = tuple(swap(v) for v in layer.inputs)
        for node in layer.nodes:
            node.inputs = tuple(swap(a) for a in node.inputs)
        if layer.mark:  # its inside shares its values; a loop's body has values of its own
            for inside in layer.programs:
                inside.inputs = tuple(swap(v) for v in inside.inputs)
                _rename(inside, renamed)
