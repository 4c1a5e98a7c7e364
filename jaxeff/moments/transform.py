"""`moments(f)`: the mean and variance of a function's results, in one pass.

```python
import jax

import jaxeff
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
logits = jaxeff.moments(f)(posterior, x)            # a Gaussian: logits.mean, logits.var
```

Any leaf of the arguments may be a `Gaussian`: parameters, inputs, both, some of them. Layers whose
inputs are all deterministic run as they are; the others follow the rules of this package, layer by
layer, and every result is taken as Gaussian with independent entries again (moment matching).

Sharp edges
- Diagonal covariance is the approximation. With random weights, fresh in every layer, it is good:
  variances within a few per cent of Monte Carlo at a width of 64 or more. With noise at the input
  and fixed weights it can be off by several times, because hidden units then share their noise.
- Parameters that are used twice are taken as independent at each use.
- Discrete results (an argmax, a comparison) are those of the means; computing on with one is an
  error, and so is any primitive without a rule that meets a random value.
- Quantization that `jaxeff.quantized` put there acts on the mean and keeps the variance.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxeff.moments.errors import AtMean, MomentsError, at_mean, no_rule
from jaxeff.moments.gaussian import Gaussian, check_gaussian, is_gaussian
from jaxeff.moments.joint import joint, with_bias_vectors
from jaxeff.moments.primitives import Rule
from jaxeff.moments.propagation import Environment, propagate
from jaxeff.moments.raw import RawMoments, is_random, to_raw, to_variance
from jaxeff.moments.regions import region
from jaxeff.program import Layer, evaluate, plain, trace

_REGIONS = {"elementwise", "normalization", "reduction"}
_DISCRETE = "computes with a discrete function of a random value"
_FORMS = ("variance", "raw")


def moments(
    f: Callable[..., Any],
    *,
    rules: Mapping[Any, Rule] | None = None,
    form: str = "variance",
) -> Callable[..., Any]:
    """Turns a function of arrays into one of random arrays.

    Args:
        f: A pure function `f(params, *args)`.
        rules: Rules for primitives that have none, or in place of the built-in ones: from the
            primitive to `rule(node, *values)`, which gets arrays and `Gaussian`s and returns a
            list with one of either per result. `node.params` holds the primitive's parameters.
        form: What layers hand to each other: "variance" (the default, safe in float32) or "raw",
            E[x^2] between an activation and the next linear layer, as the source's operators do.

    Returns:
        A function of the same arguments, any leaf of which may be a `Gaussian`. It returns what
        `f` returns with a `Gaussian` for each floating-point leaf (variance zero where no random
        value reached it, and then the mean is `f`'s result bit for bit) and arrays for the
        others.

    Raises:
        ValueError: `form` is unknown; when called: a `Gaussian` leaf holds NaN, a negative
            variance, or a variance that doesn't fit its mean.
        MomentsError: When called: a random value meets a computation without a rule.
    """
    if form not in _FORMS:
        raise ValueError(f"moments: form {form!r} is unknown; choose one of {_FORMS}.")
    own_rules = dict(rules or {})

    @functools.wraps(f)
    def propagated(*args: Any, **kwargs: Any) -> Any:
        _check((args, kwargs))
        means, named = jax.tree.map(
            lambda v: v.mean if is_gaussian(v) else v, (args, kwargs), is_leaf=is_gaussian
        )
        if not any(is_gaussian(v) for v in jax.tree.leaves((args, kwargs), is_leaf=is_gaussian)):
            return jax.tree.map(_result, f(*means, **named))
        program = trace(f, *means, **named)
        with_bias_vectors(program)
        positions = range(program.in_tree.num_leaves)
        arrays = jax.tree.unflatten(program.in_tree, positions)[1]
        values = jax.tree.leaves((args, {k: kwargs[k] for k in arrays}), is_leaf=is_gaussian)
        rule = functools.partial(_layer, own_rules, form)
        outputs = evaluate(program, rule, None, values, _promote)
        return jax.tree.unflatten(program.out_tree, [_result(v) for v in outputs])

    return propagated


def _check(tree: Any) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_gaussian)
    for path, leaf in leaves:
        if is_gaussian(leaf):
            name = jax.tree_util.keystr(path[2:], simple=True, separator="/")
            check_gaussian(leaf, f"moments: argument {_position(path)}{name and ' '}{name}")


def _position(path: Any) -> str:
    return jax.tree_util.keystr(path[1:2], simple=True)


def _result(value: Any) -> Any:
    """What leaves the function: a Gaussian for floating-point values, else an array."""
    if is_random(value):
        return to_variance(value)
    value = at_mean(value)
    if jnp.issubdtype(jnp.result_type(value), jnp.floating):
        value = jnp.asarray(value)
        return Gaussian(value, jnp.zeros_like(value))
    return value


def _promote(value: Any, like: Any) -> Any:
    """Brings a value to the structure of another, so that loops and branches keep one type."""
    if isinstance(like, RawMoments):
        return to_raw(_random(value))
    if isinstance(like, Gaussian):
        return to_variance(_random(value))
    if isinstance(like, AtMean) and not isinstance(value, AtMean):
        return AtMean(value)
    return value


def _random(value: Any) -> Any:
    return value if is_random(value) else Gaussian(value, jnp.zeros_like(value))


def _layer(
    rules: Mapping[Any, Rule], form: str, layer: Layer, key: Any, *values: Any
) -> Sequence[Any]:
    """The moments of one layer: the rule `evaluate` calls."""
    random = any(is_random(v) for v in values)
    if not layer.nodes or not (random or any(isinstance(v, AtMean) for v in values)):
        return plain(layer, key, *values)
    if not random:
        return _discrete(layer, values)
    if any(isinstance(v, AtMean) for v in values):
        raise no_rule(layer.nodes[-1], layer.site, _DISCRETE)
    if layer.kind == "quantize":
        return _quantize(layer, values)
    if layer.mark and layer.programs:
        rule = functools.partial(_layer, rules, form)
        return evaluate(layer.programs[0], rule, key, values, _promote)
    if layer.kind in _REGIONS:
        outputs = region(layer, values, rules)
    else:
        if form == "raw" and layer.kind in {"linear", "contraction"}:
            values = tuple(
                to_raw(v) if is_random(v) and i in layer.data else v for i, v in enumerate(values)
            )
        whole = joint(layer, values, rules)
        if whole is not None:
            return whole
        env = Environment.of(layer, values, rules)
        propagate(layer.nodes, env)
        outputs = [env.read(v) for v in layer.outputs]
    return outputs


def _discrete(layer: Layer, values: Sequence[Any]) -> list[Any]:
    """A layer of values that are discrete functions of random ones, which stay so."""
    outputs = layer.fn(*(at_mean(v) for v in values))
    for output in outputs:
        if jnp.issubdtype(jnp.result_type(output), jnp.inexact):
            raise no_rule(layer.nodes[-1], layer.site, _DISCRETE)
    return [AtMean(v) for v in outputs]


def _quantize(layer: Layer, values: Sequence[Any]) -> list[Any]:
    """Rounds the mean and keeps the variance."""
    random = [v for v in values if is_random(v)]
    outputs = layer.fn(*(v.mean if is_random(v) else v for v in values))
    if len(random) != 1 or len(outputs) != 1 or outputs[0].shape != random[0].shape:
        raise no_rule(layer.nodes[-1], layer.site, "quantizes several random values at once")
    return [Gaussian(outputs[0], random[0].var)]


__all__ = ["MomentsError", "moments"]
