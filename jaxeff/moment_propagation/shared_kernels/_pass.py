"""The diagonal pass with what positions share, where a kernel's noise reaches a mean over them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence import FusedLayer, WholeLayer, with_layers
from jaxeff.moment_propagation.shared_kernels import _norms as norms
from jaxeff.moment_propagation.shared_kernels import _rules as rules
from jaxeff.moment_propagation.shared_kernels._noise import SharedNoise
from jaxeff.moment_propagation.shared_kernels._plan import (
    CHOSEN,
    CONTRACTION,
    GATHERED,
    GROUP_NORMALIZATION,
    JOIN,
    MIXING,
    NORMALIZATION,
    POINTWISE,
    POOLING,
    SharingPlan,
    plan_of,
)
from jaxeff.moment_propagation.shared_kernels.layouts import with_channels_joined
from jaxeff.moment_propagation.values import Gaussian, MomentsWarning, is_random
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Value
from jaxeff.program.ir import primitives as prim

_RULES = {
    CONTRACTION: rules.contraction,
    POINTWISE: rules.pointwise,
    POOLING: rules.pooling,
    JOIN: rules.join,
    MIXING: rules.mixing,
    NORMALIZATION: norms.normalization,
    GROUP_NORMALIZATION: norms.group_normalization,
    GATHERED: rules.gathered,
    CHOSEN: rules.chosen,
}


_ANSWERED = {CONTRACTION, POOLING, MIXING, GROUP_NORMALIZATION}


def with_shared_noise(
    moments: Callable[..., Sequence[Any]],
    program: Program,
    prepared: Program,
    values: Sequence[Any],
    own_rules: Mapping[Any, Any],
) -> tuple[Program, Callable[..., Sequence[Any]], Collection[Layer]]:
    """Makes the rule of layers that carries what positions share; the given one if none does.

    Args:
        moments: The diagonal rule, `moments(layer, key, *values)`.
        program: The program.
        prepared: The same with layers joined that the diagonal pass integrates together.
        values: Inputs of the program.
        own_rules: The user's rules by primitive.

    Returns:
        The prepared program, in which poolings that have a rule here aren't joined with what comes
        before them; a rule for one evaluation of it; and the layers that don't take what positions
        share as independent any more.
    """
    random = [v for v, x in zip(program.inputs, values, strict=True) if is_random(x)]
    together = [v for v in prepared.layers if isinstance(v, FusedLayer | WholeLayer)]
    joined = {layer.outputs[0]: layer for layer in together}
    # A statistic of positions is one function; other poolings are followed layer by layer.
    whole = plan_of(_with(program, joined.values()), random, own_rules).rules if together else {}
    kept = [v for v in together if not _pools(v) or whole.get(v) is MIXING]
    # Between two reshapes of the channels no axis is theirs: what stands there is one layer.
    of_channels = _of_channels(program, kept, random, own_rules)
    plan = plan_of(_with(program, [*kept, *of_channels]), random, own_rules)
    for one in plan.lost:
        warnings.warn(str(one), MomentsWarning, stacklevel=2)
    if not plan.rules:
        return prepared, moments, ()
    apart = {v for layer in plan.rules for v in layer.outputs}
    kept = [v for made, v in joined.items() if made not in apart or v in kept]
    # A sum of two branches still lacks what they share at a single position.
    answered = [layer for layer, kind in plan.rules.items() if kind in _ANSWERED]
    return _with(program, [*kept, *of_channels]), _rule(moments, plan), answered


def _of_channels(
    program: Program, kept: Sequence[Layer], random: Collection[Value], own_rules: Mapping[Any, Any]
) -> list[Layer]:
    """Joins layers between reshapes of channels, where that gives them a rule."""
    found = with_channels_joined(program)
    if not found:
        return []
    plan = plan_of(_with(program, [*kept, *found]), random, own_rules)
    return [v for v in found if plan.rules.get(v) in (CHOSEN, GROUP_NORMALIZATION)]


def _pools(layer: Layer) -> bool:
    """Returns whether a joined layer holds more than functions of entries."""
    if isinstance(layer, WholeLayer):
        return False
    primitives = {node.primitive for node in layer.nodes}
    return not primitives.isdisjoint(
        {*prim.REDUCTION, *prim.WINDOW, *prim.LINEAR, p.cumsum_p, p.scatter_add_p}
    )


def _with(program: Program, joined: Iterable[Layer]) -> Program:
    """Puts joined layers in the places of the last that each was joined of."""
    instead = {layer.outputs[0]: layer for layer in joined}
    layers = [instead.get(layer.outputs[0], layer) for layer in program.layers]
    return with_layers(program, layers)


def _rule(moments: Callable[..., Sequence[Any]], plan: SharingPlan) -> Callable[..., Sequence[Any]]:
    noise = SharedNoise()

    def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        if layer not in plan.rules:
            return moments(layer, key, *values)

        def diagonal(part: Layer, *given: Any) -> Sequence[Any]:
            return moments(part, key, *given)

        number = plan.numbers[layer]
        sources, shared = plan.sources[layer], plan.read_by_several
        here = rules.RuleContext(noise, diagonal, sources, plan.layouts, shared)
        outputs = _RULES[plan.rules[layer]](here, layer, values)
        done = [v for v in noise.values if plan.last_read.get(v, -1) <= number]
        noise.forget(v for v in done if v not in layer.outputs)
        return [_of_one_dtype(x) for x in outputs]

    return rule


def _of_one_dtype(x: Any) -> Any:
    """Gives a variance its mean's dtype: of bfloat16, some of what is shared is in float32."""
    return Gaussian(x.mean, x.var.astype(x.mean.dtype)) if type(x) is Gaussian else x
