"""Makes noise a random argument, so that moments of a noisy network are those of a function.

A noise model whose draws have known means and variances (`jaxeff.noise.MomentNoise`) is a value and
independent random arrays. Made arguments of the function, they are random values like any others:
their product with a layer's result is exact, and what entries share of a draw is followed as
everything that entries share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxeff.moment_propagation.values import Gaussian, is_gaussian
from jaxeff.noise import MomentNoise, Noise, perturbed_inputs, perturbs_layer
from jaxeff.noise.models import place
from jaxeff.program import Layer, interpret_sites, plain_rule, resolve, trace


def with_noise(
    f: Callable[..., Any],
    spec: Mapping[str, Noise | None],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Gives a function its noise as a last argument; returns it with arguments, noise included.

    Raises:
        ValueError: A model has no moments, or acts inside a loop or branch.
        SpecError: A pattern of the spec matches or decides no site, or two are equally specific.
    """
    means, named = jax.tree.map(
        lambda v: v.mean if is_gaussian(v) else v, (tuple(args), dict(kwargs)), is_leaf=is_gaussian
    )
    # Sites and shapes are all that is needed: a model's terms don't depend on the values it
    # perturbs.
    program = trace(f, *means, **named)
    models = resolve(spec, program, perturbs_layer, "noise to perturb")
    draws: dict[str, list[Gaussian]] = {}
    for layer in program.sites:
        if layer.site not in models:
            continue
        model = models[layer.site]
        if not isinstance(model, MomentNoise):
            raise ValueError(
                f"moments: {type(model).__name__} at {layer.site} has no moments (no methods parts "
                "and combine); draw samples of jaxeff.noisy(f, spec) instead"
            )
        if layer not in program.layers:
            raise ValueError(
                f"moments: {layer.site} lies inside a loop or branch, where noise is drawn anew "
                "in every step; draw samples of jaxeff.noisy(f, spec) instead"
            )
        for name, value in _perturbed(layer, model):
            like = jnp.zeros(value.aval.shape, value.aval.dtype)
            draws[name] = [Gaussian(mean, var) for mean, var in model.terms(like)]

    def g(*given: Any, **keywords: Any) -> Any:
        *rest, drawn = given

        def rule(model: Any, layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
            def noisy(name: str, x: Any) -> Any:
                return model.combine(x, *drawn[name]) if name in drawn else x

            inputs = [noisy(f"{layer.site}<{i}", x) for i, x in enumerate(values)]
            outputs = plain_rule(layer, key, *inputs)
            return [noisy(f"{layer.site}>{i}", y) for i, y in enumerate(outputs)]

        # Noise becomes sums and products with arguments, which moments have rules for like any
        # others.
        return interpret_sites(
            f, lambda _: models, rule, None, rest, keywords, "moments(noise=...)"
        )

    return g, (*args, draws)


def _perturbed(layer: Layer, model: Noise) -> list[tuple[str, Any]]:
    """Returns the values of a layer that a model perturbs, each under a name of its own."""
    if place(model) == "output":
        found = [(f"{layer.site}>{i}", v) for i, v in enumerate(layer.outputs) if not v.spread]
    else:
        found = [(f"{layer.site}<{i}", layer.inputs[i]) for i in perturbed_inputs(layer, model)]
    return [(name, v) for name, v in found if jnp.issubdtype(v.aval.dtype, jnp.floating)]
