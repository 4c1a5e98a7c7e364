"""The pass of `moments` over a program: which rule each layer takes, and what it returns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxeff.moment_propagation._reading import check_certain, read
from jaxeff.moment_propagation.attention import (
    AttentionLayer,
    attention_in_stream,
    attention_moments,
    fuse_attention,
    pooled_attention,
    warn_of_pooled,
    warn_of_stream,
)
from jaxeff.moment_propagation.calibration import (
    factor_of,
    is_scaled,
    of_shared_pass,
    result_name,
    with_regressions,
    with_result_factors,
)
from jaxeff.moment_propagation.dependence import (
    Assumption,
    FusedLayer,
    Note,
    divided_by_own_sums,
    fuse_dependent,
    mixed_stream,
    reused,
    warn_of_mixed,
    warn_of_own_sums,
    warn_of_reuse,
)
from jaxeff.moment_propagation.regions import Environment, linear_patterns, propagate, region
from jaxeff.moment_propagation.rules import Rule
from jaxeff.moment_propagation.shared_kernels import steps_apart, with_shared_noise
from jaxeff.moment_propagation.values import (
    AtMean,
    Gaussian,
    MomentsError,
    RawMoments,
    at_mean,
    check_real,
    is_gaussian,
    is_random,
    no_rule,
    to_raw,
    to_variance,
)
from jaxeff.program import Layer, Program, evaluate, plain_rule, read_out_by

_REGIONS = {"elementwise", "normalization", "reduction"}


_LOST: Sequence[tuple[Callable[..., Any], Callable[..., None]]] = (
    (attention_in_stream, warn_of_stream),
    (pooled_attention, warn_of_pooled),
    (reused, warn_of_reuse),
    (mixed_stream, warn_of_mixed),
    (divided_by_own_sums, warn_of_own_sums),
)
"""Searches for shared noise that the pass doesn't follow, and their warnings: one is given."""

_DISCRETE = "computes with a discrete function of a random value"


@dataclass(frozen=True)
class Propagation:
    """One pass of moments over a program.

    Attributes:
        rules: The user's rules by primitive.
        form: Moments that layers pass to each other, "variance" or "raw".
        note: Called for each place where independence is assumed.
        differentiable: Whether derivatives pass through variances; not those by expected slopes.
        shared: Whether noise of a kernel that positions share is followed to their mean.
        lost: Gets what each search of `_LOST` finds first, by its place there.
        expected_slopes: Whether derivatives of its results are expected slopes.
    """

    rules: Mapping[Any, Rule]
    form: str
    note: Note
    differentiable: bool = True
    shared: bool = False
    lost: dict[int, Any] = field(default_factory=dict)
    expected_slopes: ClassVar[bool] = True

    def run(self, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Evaluates `moments(f)` at arguments."""
        if not any(is_gaussian(v) for v in jax.tree.leaves((args, kwargs), is_leaf=is_gaussian)):
            # Nothing is random: the function itself, so that results are equal bit for bit.
            result = f(*args, **kwargs)
            check_certain(result)
            return jax.tree.map(_result, result)
        program, values, factors = read(f, args, kwargs, steps_apart if self.shared else None)
        found: list[Assumption] = []
        prepared = replace(self, note=found.append).prepare(program, values)
        rule: Callable[..., Sequence[Any]] = functools.partial(self.layer, factors)
        known: Collection[Layer] = ()
        of_results = of_shared_pass(factors)
        if of_results and not self.shared:
            raise ValueError(
                "moments: these factors were measured for moments(f) with what positions share, "
                "and shared=False leaves that out; leave out one of the two."
            )
        # Factors of sites were measured beside the diagonal pass, and hold what it forgets.
        if self.shared and (of_results or not factors):
            prepared, rule, known = with_shared_noise(rule, program, prepared, values, self.rules)
        answered = {(layer.site, layer.kind) for layer in known}
        for one in found:
            if (one.site, one.kind) not in answered:
                self.note(one)
        result = self.evaluated(prepared, rule, values)
        if self.lost and not factors:  # bodies of loops are prepared while they are evaluated
            first = min(self.lost)
            _LOST[first][1](self.lost[first])
        result = with_result_factors(result, of_results, result_name(expected_slopes=True))
        return with_regressions(result, of_results or factors)

    def evaluated(self, program: Program, rule: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Evaluates a prepared program under a rule."""

        def prepare(part: Program, given: Sequence[Any]) -> Program:
            return part if part is program else self.prepare(part, given)

        outputs = evaluate(program, rule, None, values, promote, prepare)
        return gaussian_results(program, outputs)

    def prepare(self, program: Program, values: Sequence[Any]) -> Program:
        """Fuses the layers that have to be integrated as a whole."""
        random = [v for v, x in zip(program.inputs, values, strict=True) if is_random(x)]
        if not random:
            return program
        program = fuse_attention(program, random, self.rules)
        for place, (search, _) in enumerate(_LOST if self.shared else ()):
            if place not in self.lost and (found := search(program, random)):
                self.lost[place] = found
        # Slopes are taken through means, which products with dependent operands hardly change.
        return fuse_dependent(program, random, self.note, products=self.differentiable)

    def layer(
        self, factors: Mapping[str, Any], layer: Layer, key: Any, *values: Any
    ) -> Sequence[Any]:
        """Computes the moments of one layer: the rule that `evaluate` calls."""
        outputs = self._moments(layer, key, values)
        if not self.differentiable:
            outputs = [_held(value) for value in outputs]
        # Factors come after the rule and before the next layer, as they were measured.
        if layer.site in factors and is_scaled(layer, outputs[0]):
            factor = factor_of(factors, layer.site, outputs[0])
            first = Gaussian(outputs[0].mean, outputs[0].var * factor)
            return [first, *outputs[1:]]
        return outputs

    def own_variance(self, layer: Layer, *values: Any) -> Array:
        """Computes the variance of a linear layer's one result."""
        # No slope is taken through it, so it may have derivatives by the kernel's variances.
        (out,) = replace(self, differentiable=True).layer({}, layer, None, *values)
        return to_variance(out).var

    def _moments(self, layer: Layer, key: Any, values: Sequence[Any]) -> Sequence[Any]:
        random = any(is_random(v) for v in values)
        if not layer.nodes or not (random or any(isinstance(v, AtMean) for v in values)):
            return plain_rule(layer, key, *values)
        for node in layer.nodes:
            check_real(node, layer.site)
        if not random:
            return _discrete(layer, values)
        if any(isinstance(v, AtMean) for v in values):
            raise no_rule(layer.nodes[-1], layer.site, _DISCRETE)
        if transform := read_out_by(layer.nodes):
            raise MomentsError(
                f"moments: a random value reaches {layer.site!r}, which {transform} reads out; "
                f"take {transform}(moments(f), spec), which reads out the means, or what read-outs "
                "add as noise: moments(f, noise=read_out(f, params, x, spec))."
            )
        if layer.kind == "quantize":
            return _quantize(layer, values, self.differentiable)
        # A layer that another transform has acted on holds a program of its own. Factors belong to
        # sites outside of it, so it is evaluated without any.
        if layer.mark and layer.programs:
            rule = functools.partial(self.layer, {})
            return evaluate(layer.programs[0], rule, key, values, promote, self.prepare)
        if isinstance(layer, AttentionLayer):
            return attention_moments(layer, values)
        # Dependent entries may meet in these kinds: they are integrated as one function.
        if layer.kind in _REGIONS or isinstance(layer, FusedLayer):
            return region(layer, values, self.rules, self.note)
        # Klein's thesis, eq. (8.9): dense layers take E[x^2] and give variances (section 8.4).
        if self.form == "raw" and layer.kind in {"linear", "matmul"}:
            values = tuple(
                to_raw(v) if is_random(v) and i in layer.data else v for i, v in enumerate(values)
            )
        operator = linear_patterns(layer, values, self.rules)
        if operator is not None:
            return operator
        env = Environment.of(layer, values, self.rules, self.note)
        propagate(layer.nodes, env)
        return [env.read(v) for v in layer.outputs]


def gaussian_results(program: Program, outputs: Sequence[Any]) -> Any:
    """Returns a program's results with a Gaussian for each floating-point one."""
    return jax.tree.unflatten(program.out_tree, [_result(v) for v in outputs])


def _result(value: Any) -> Any:
    """Converts a value to a result: a Gaussian for floating-point values, else an array."""
    if is_random(value):
        return to_variance(value)
    value = at_mean(value)
    if jnp.issubdtype(jnp.result_type(value), jnp.floating):
        value = jnp.asarray(value)
        return Gaussian(value, jnp.zeros_like(value))
    return value


def promote(value: Any, like: Any) -> Any:
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


def _discrete(layer: Layer, values: Sequence[Any]) -> list[Any]:
    """Evaluates a layer of discrete functions of random values, which stay discrete."""
    outputs = layer.fn(*(at_mean(v) for v in values))
    for output in outputs:
        if jnp.issubdtype(jnp.result_type(output), jnp.inexact):
            raise no_rule(layer.nodes[-1], layer.site, _DISCRETE)
    return [AtMean(v) for v in outputs]


def _held(value: Any) -> Any:
    """Stops derivatives through the variance of a random value."""
    if not is_random(value):
        return value
    if isinstance(value, Gaussian):
        return replace(value, var=lax.stop_gradient(value.var))
    # E[x^2] must still follow the mean: only the variance in it is held.
    return RawMoments(value.mean, value.mean**2 + lax.stop_gradient(value.var))


def _quantize(layer: Layer, values: Sequence[Any], differentiable: bool) -> list[Any]:
    """Rounds the mean and keeps the variance; for expected slopes, rounding has slope one."""
    random = [v for v in values if is_random(v)]
    outputs = layer.fn(*(v.mean if is_random(v) else v for v in values))
    if len(random) != 1 or len(outputs) != 1 or outputs[0].shape != random[0].shape:
        raise no_rule(layer.nodes[-1], layer.site, "quantizes several random values at once")
    if differentiable:
        return [Gaussian(outputs[0], random[0].var)]
    # Straight through: the value is rounded, the slope is one.
    mean = random[0].mean
    return [Gaussian(mean + lax.stop_gradient(outputs[0] - mean), random[0].var)]
