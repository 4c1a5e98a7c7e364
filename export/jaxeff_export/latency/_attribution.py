"""Attributes kernels to layers: which layer of a model each kernel of its library belongs to.

A kernel belongs to the layer whose weights it reads, whatever the compiler fused into it or laid
out anew; one that reads no weights (a pooling, a conversion) to the layer before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxeff_export.bundle import Bundle, NamedTarget, lift
from jaxeff_export.compiler import compilation_target, fused_kernels
from jaxeff_export.compiler.passes import sources_of

_BETWEEN = re.compile(r"'\]\['")
_REST = re.compile(r"\['rest'\]\['(\d+)'\]$")


@dataclass(frozen=True)
class TimedCall:
    """A call of a kernel.

    Attributes:
        kernel: The name of the kernel in the library.
        layer: Number of the layer among the given ones.
    """

    kernel: str
    layer: int


def kernel_calls(
    bundle: Bundle, layers: Sequence[str], leaves: Sequence[str] = ()
) -> tuple[TimedCall, ...]:
    """Lists the kernels that a bundle calls, in order, with their layers.

    Args:
        bundle: A deployed model.
        layers: Sites, as the paths of their parameters begin.
        leaves: Paths of the model's parameters, if it was converted to codes: what stays in float
            is numbered there.
    """
    # The bundle's compilation is repeated up to its kernels: names and order are deterministic.
    example, target = bundle.example, NamedTarget.of_manifest(bundle.manifest)
    lifted = lift(example, target)
    count = len(example.bound)
    names = [_named(spec.name, leaves) for spec in example.artifact.inputs[:count]]
    owners = [_owner(name, layers) for name in names]
    # Derived arrays (packed or transposed weights) belong to the layer of their parameters.
    if lifted.derive is not None:
        derive = lifted.derive["main"]
        known = dict(zip(derive.params, owners, strict=True))
        sources = sources_of(derive, count)
        made = _values(derive)
        for field in made.fields:
            owners.append(_first(known[v] for v in sources.get(field) or ()))
    main = fused_kernels(lifted.main, compilation_target(target.settings))["main"]
    operands = len(lifted.operands)
    # Later parameters of ``main`` are data, which belong to no layer.
    known = {v: owners[i] for v, i in zip(main.params, lifted.operands, strict=False)}
    sources = sources_of(main, operands)
    found: list[TimedCall] = []
    last = 0
    for binding in main.body.blocks[0].bindings:
        value = binding.value
        called = getattr(getattr(value, "op", None), "name", "")
        if called != "relax.call_tir" or sources.get(binding.var) is not None:
            continue  # a view, or what depends on parameters alone
        read = [v for a in value.args[1].fields for v in sources.get(a) or ()]
        # A kernel that was fused of two layers' work reads weights of both; the first one owns it.
        own = _first(known[v] for v in read)
        last = last if own is None else own
        found.append(TimedCall(str(value.args[0].name_hint), last))
    return tuple(found)


def _values(function: Any) -> Any:
    """Returns the tuple that a function returns."""
    values = {b.var: b.value for b in function.body.blocks[0].bindings}
    result = function.body.body
    return values.get(result, result)


def _named(name: str, leaves: Sequence[str]) -> str:
    """Finds the path of a parameter that was left in float."""
    rest = _REST.search(name)
    return leaves[int(rest[1])] if rest and leaves else name


def _owner(name: str, layers: Sequence[str]) -> int | None:
    """Finds the layer that an array's path names; of several the longest name."""
    path = "/" + _BETWEEN.sub("/", name).replace("['", "/")
    # Whole path components: `conv1` must not claim the weights of `conv10`.
    fitting = [i for i, layer in enumerate(layers) if f"/{layer}/" in path]
    return max(fitting, key=lambda i: len(layers[i]), default=None)


def _first(found: Any) -> int | None:
    return next((each for each in found if each is not None), None)
