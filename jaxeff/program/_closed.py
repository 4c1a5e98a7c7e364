"""Functions whose layers no other transform can act on, and layers that are read out physically.

Some transforms compute more than the layers of their function. `integer` passes codes from layer to
layer; first-order variances are derived in reverse. Another transform would change such a program
without an error and return wrong numbers. So these transforms *close* their results with a tag, and
a transform that reads a program refuses closed ones that it can't act on, by name. A physical
read-out is only marked, for it misleads moments alone.

```python
import jax.numpy as jnp

from jaxeff.nn import small_classifier
from jaxeff.program import CORRELATIONS, INTEGER, check_open, closed, read_out, read_out_by, trace

f, params, (x, _) = small_classifier(4)


def coded(params, x):                                   # as if its layers passed codes
    return closed(f(params, x), INTEGER)


check_open(trace(f, params, x), "noisy")
check_open(trace(coded, params, x), "cost", allowed=(INTEGER,))      # reads codes, too
try:
    check_open(trace(coded, params, x), "noisy")
except ValueError as error:
    assert str(error).startswith("noisy can't act on integer(f, spec)")


def lit(params, x):                                     # a layer read by a detector
    return read_out(x @ params, "photonic")


(layer,) = (layer for layer in trace(lit, jnp.ones((3, 2)), jnp.ones((1, 3))).layers
            if layer.kind == "linear")
assert read_out_by(layer.nodes) == "photonic"
```

Sharp edge: a closed result that isn't used (only the means of first-order moments are) closes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxeff.program.ir import Node, Program
from jaxeff.program.ir import primitives as prim

CLOSED_TAG = "jaxeff.closed:"
READ_OUT_TAG = "jaxeff.read_out:"

INTEGER = "integer"
CORRELATIONS = "correlations"

# What a program is, why nothing acts on it, and what to do instead.
_REASONS = {
    INTEGER: (
        "integer(f, spec)",
        "whose layers hand integer codes to each other",
        "Take {transform} of f itself, or of quantized(f, spec), which computes the same in "
        "floating point",
    ),
    CORRELATIONS: (
        "moments(f, correlations=True)",
        "whose variances are products of slopes that it would change one by one",
        "Take moments of the {transform} function, with correlations=True (noise: "
        "moments(f, noise=spec, correlations=True)), or leave correlations out",
    ),
}


class ClosedError(ValueError):
    """A transform was put around a function whose layers it can't act on."""


def closed(values: Any, kind: str) -> Any:
    """Tags results as those of a closed function; integers and booleans stay as they are."""
    return jax.tree.map(lambda x: _tagged(x, CLOSED_TAG + kind), values)


def read_out(value: Any, transform: str) -> Any:
    """Tags a layer's result as read out of codes or light by a transform."""
    return _tagged(value, READ_OUT_TAG + transform)


def check_open(program: Program, transform: str, allowed: Iterable[str] = ()) -> None:
    """Checks that a transform can act on the layers of a program.

    Args:
        program: The program.
        transform: Name of the transform.
        allowed: Kinds of closed functions that it acts on rightly.

    Raises:
        ClosedError: It can't, for the function was made by one that closes it.
    """
    for layer in program.walk():
        kind = _tag_of(layer.nodes, CLOSED_TAG)
        if kind and kind not in allowed:
            what, why, instead = _REASONS[kind]
            raise ClosedError(
                f"{transform} can't act on {what}, {why}. {instead.format(transform=transform)}."
            )


def read_out_by(nodes: Iterable[Node]) -> str:
    """Returns the transform that reads a layer out physically, or an empty string."""
    return _tag_of(nodes, READ_OUT_TAG)


def _tagged(x: Any, tag: str) -> Any:
    floating = jnp.issubdtype(jnp.result_type(x), jnp.floating)
    return checkpoint_name(x, tag) if floating else x


def _tag_of(nodes: Iterable[Node], prefix: str) -> str:
    for node in nodes:
        if node.primitive is prim.NAME and node.params["name"].startswith(prefix):
            found: str = node.params["name"].removeprefix(prefix)
            return found
    return ""
