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
- Diagonal covariance is the approximation: what entries share (a kernel's noise over positions,
  noise at the input, a residual stream, parameters that are used twice) is forgotten. `assumptions`
  lists where, and by how much; `calibrate_moments` and `correlations=True` make up for it. Median
  error of the variances of logits, on inputs that calibration hasn't seen, in per cent; and the
  diagonal's variance over Monte Carlo's, median and 5 to 95 % (`experiments.moment_variances`):

```text
network                       diagonal / sampled    diag.  calibr.  correl.  both
MLP                           1.00 (.91 to 1.06)      2.7      3.0      7.5   2.0
MLP, noise at the input       1.06 (.60 to 1.72)       24       23      9.5   4.5
LSTM                          .97 (.90 to 1.04)       4.1      3.4      3.4   1.2
GRU                           1.01 (.95 to 1.11)      3.2      3.7      3.2   1.3
LayerNorm MLP                 1.00 (.91 to 1.08)      3.4      3.5       10   1.6
BatchNorm                     1.01 (.90 to 1.09)      3.9      3.6       12   2.1
depthwise                     .99 (.93 to 1.06)       2.5      2.4      6.0   1.3
squeeze-and-excite            1.00 (.97 to 1.03)      1.5      1.5      3.6   1.2
conv + mean                   .93 (.90 to .96)        7.1      1.5      1.2   0.9
same layer twice              .80 (.63 to 1.00)        20      6.4      5.8   1.6
repeated token + mean         .70 (.63 to .79)         30      6.6      3.6   2.4
attention                     .50 (.32 to .70)         50       17      4.4   1.5
rank-4 LoRA                   1.07 (.72 to 1.59)       18       14      4.1   1.7
LeNet-5, SVI                  .71 (.51 to .87)         29      9.0      1.8   1.4
residual                      .53 (.44 to .61)         47      3.0      4.7   2.3
residual, noise at the input  .61 (.40 to 1.32)        40      5.5       11   2.1
MobileNet-like                .47 (.42 to .53)         53      2.7      4.8   1.3
ViT                           .52 (.36 to .68)         48       16      8.1   1.7
```

- Discrete results (an argmax, a comparison) are those of the means; computing on with one is an
  error, and so is any primitive without a rule that meets a random value.
- Quantization that `jaxeff.quantized` put there acts on the mean and keeps the variance.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from jaxeff.arguments import check_function, check_params
from jaxeff.moment_propagation.assumption import Assumption, Assumptions, Note
from jaxeff.moment_propagation.calibrated import is_scaled
from jaxeff.moment_propagation.correlated import correlated
from jaxeff.moment_propagation.errors import AtMean, MomentsError, at_mean, no_rule
from jaxeff.moment_propagation.gaussian import Gaussian, is_gaussian
from jaxeff.moment_propagation.joint import joint
from jaxeff.moment_propagation.noise import with_noise
from jaxeff.moment_propagation.propagation import Environment, propagate
from jaxeff.moment_propagation.raw import RawMoments, is_random, to_raw, to_variance
from jaxeff.moment_propagation.reading import read
from jaxeff.moment_propagation.region_moments import region
from jaxeff.moment_propagation.rules import Rule
from jaxeff.moment_propagation.wholes import Whole, with_wholes
from jaxeff.noise.protocol import check_noise
from jaxeff.program import Layer, Program, evaluate, plain

_REGIONS = {"elementwise", "normalization", "reduction"}
_DISCRETE = "computes with a discrete function of a random value"
_FORMS = ("variance", "raw")


def moments(
    f: Callable[..., Any],
    *,
    rules: Mapping[Any, Rule] | None = None,
    form: str = "variance",
    correlations: bool | Literal["joint"] = False,
    strict: bool = False,
    noise: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Turns a function of arrays into one of random arrays.

    Args:
        f: A pure function `f(params, *args)`.
        rules: Rules for primitives that have none, or in place of the built-in ones: from the
            primitive to `rule(node, *values)`, which gets arrays and `Gaussian`s and returns a
            list with one of either per result. `node.params` holds the primitive's parameters.
        form: What layers hand to each other: "variance" (the default, safe in float32) or "raw",
            E[x^2] between an activation and the next linear layer, as the source's operators do.
        correlations: Take into account everything that results share (see `correlated`), at the
            cost of one pass backward per result of an example. "joint" returns what the entries
            of an example share as well: a `JointGaussian` for each floating-point leaf.
        strict: Refuse to assume independence: a function with a place that `assumptions` would
            list is an error.
        noise: A spec of noise models, as `jaxeff.noisy` takes it, whose means and variances are
            propagated too: `Dropout`, `Additive`, `Multiplicative`, `Mixed`, or any model that is
            a `jaxeff.noise.MomentNoise`. Every draw is a random value of its own, so what shares
            one (`per="channel"`) is dependent, which `correlations=True` takes into account.

    Returns:
        A function of the same arguments, any leaf of which may be a `Gaussian`. It returns what
        `f` returns with a `Gaussian` for each floating-point leaf (variance zero where no random
        value reached it, and then the mean is `f`'s result bit for bit) and arrays for the
        others.

    Raises:
        ValueError: `form` or `correlations` is unknown; when called: a `Gaussian` leaf holds NaN, a
            negative variance, or a variance that doesn't fit its mean; noise has no moments, or
            acts inside a loop.
        TypeError: `f` is a Flax model; when called: an argument is a sampler's or guide's
            posterior, a result, a model, or holds what is no array.
        MomentsError: When called: a random value meets a computation without a rule, or, if
            `strict`, dependent values meet where independence would be assumed.
    """
    check_function("moments: f", f)
    if noise is not None:
        check_noise(noise)
    if form not in _FORMS:
        raise ValueError(f"moments: form {form!r} is unknown; choose one of {_FORMS}.")
    if correlations not in (False, True, "joint"):
        raise ValueError(f"moments: correlations is False, True or 'joint', not {correlations!r}.")

    @functools.wraps(f)
    def propagated(*args: Any, **kwargs: Any) -> Any:
        for position, argument in enumerate(args):
            check_params(f"moments: argument {position}", argument)
        found: list[Assumption] = []
        propagation = Propagation(rules or {}, form, found.append, correlations)
        if noise is None:
            result = propagation.run(f, args, kwargs)
        else:
            result = propagation.run(*with_noise(f, noise, args, kwargs), kwargs)
        if strict and found:
            raise MomentsError(
                "moments: strict=True, and independence would be assumed:\n"
                f"{Assumptions.merged(found)}\nLeave `strict` out to accept that."
            )
        return result

    return propagated


@dataclass(frozen=True)
class Propagation:
    """One pass of moments over a program.

    Attributes:
        rules: The user's rules by primitive.
        form: What layers hand to each other.
        note: Called for each place where independence is assumed.
        correlations: Whether results get their variances with correlations.
        differentiable: Whether derivatives pass through variances; not those by expected slopes.
    """

    rules: Mapping[Any, Rule]
    form: str
    note: Note
    correlations: bool | Literal["joint"] = False
    differentiable: bool = True

    def run(self, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What `moments(f)` returns."""
        if not any(is_gaussian(v) for v in jax.tree.leaves((args, kwargs), is_leaf=is_gaussian)):
            return jax.tree.map(_result, f(*args, **kwargs))
        if self.correlations:
            slopes = replace(self, correlations=False, differentiable=False)
            return correlated(slopes, f, args, kwargs, self.correlations == "joint")
        program, values, factors = read(f, args, kwargs)
        program = self.prepare(program, values)
        return self.evaluated(program, functools.partial(self.layer, factors), values)

    def evaluated(self, program: Program, rule: Callable[..., Any], values: Sequence[Any]) -> Any:
        """The results of a prepared program under a rule."""

        def prepare(part: Program, given: Sequence[Any]) -> Program:
            return part if part is program else self.prepare(part, given)

        outputs = evaluate(program, rule, None, values, promote, prepare)
        return jax.tree.unflatten(program.out_tree, [_result(v) for v in outputs])

    def prepare(self, program: Program, values: Sequence[Any]) -> Program:
        """The program with what has to be integrated as a whole joined."""
        random = [v for v, x in zip(program.inputs, values, strict=True) if is_random(x)]
        if not random:
            return program
        # Slopes are taken through means, which products with dependent operands hardly change.
        return with_wholes(program, random, self.note, products=self.differentiable)

    def layer(
        self, factors: Mapping[str, Any], layer: Layer, key: Any, *values: Any
    ) -> Sequence[Any]:
        """The moments of one layer: the rule `evaluate` calls."""
        outputs = self._moments(layer, key, values)
        if not self.differentiable:
            outputs = [_held(value) for value in outputs]
        if layer.site in factors and is_scaled(layer, outputs[0]):
            first = Gaussian(outputs[0].mean, outputs[0].var * factors[layer.site])
            return [first, *outputs[1:]]
        return outputs

    def _moments(self, layer: Layer, key: Any, values: Sequence[Any]) -> Sequence[Any]:
        random = any(is_random(v) for v in values)
        if not layer.nodes or not (random or any(isinstance(v, AtMean) for v in values)):
            return plain(layer, key, *values)
        if not random:
            return _discrete(layer, values)
        if any(isinstance(v, AtMean) for v in values):
            raise no_rule(layer.nodes[-1], layer.site, _DISCRETE)
        if layer.kind == "quantize":
            return _quantize(layer, values, self.differentiable)
        if layer.mark and layer.programs:
            rule = functools.partial(self.layer, {})
            return evaluate(layer.programs[0], rule, key, values, promote, self.prepare)
        if layer.kind in _REGIONS or isinstance(layer, Whole):
            return region(layer, values, self.rules, self.note)
        if self.form == "raw" and layer.kind in {"linear", "contraction"}:
            values = tuple(
                to_raw(v) if is_random(v) and i in layer.data else v for i, v in enumerate(values)
            )
        operator = joint(layer, values, self.rules)
        if operator is not None:
            return operator
        env = Environment.of(layer, values, self.rules, self.note)
        propagate(layer.nodes, env)
        return [env.read(v) for v in layer.outputs]


def _result(value: Any) -> Any:
    """What leaves the function: a Gaussian for floating-point values, else an array."""
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
    """A layer of values that are discrete functions of random ones, which stay so."""
    outputs = layer.fn(*(at_mean(v) for v in values))
    for output in outputs:
        if jnp.issubdtype(jnp.result_type(output), jnp.inexact):
            raise no_rule(layer.nodes[-1], layer.site, _DISCRETE)
    return [AtMean(v) for v in outputs]


def _held(value: Any) -> Any:
    """A random value through whose variance no derivative passes."""
    if not is_random(value):
        return value
    if isinstance(value, Gaussian):
        return replace(value, var=lax.stop_gradient(value.var))
    return RawMoments(value.mean, value.mean**2 + lax.stop_gradient(value.var))


def _quantize(layer: Layer, values: Sequence[Any], differentiable: bool) -> list[Any]:
    """Rounds the mean and keeps the variance; for expected slopes, rounding has slope one."""
    random = [v for v in values if is_random(v)]
    outputs = layer.fn(*(v.mean if is_random(v) else v for v in values))
    if len(random) != 1 or len(outputs) != 1 or outputs[0].shape != random[0].shape:
        raise no_rule(layer.nodes[-1], layer.site, "quantizes several random values at once")
    if differentiable:
        return [Gaussian(outputs[0], random[0].var)]
    mean = random[0].mean
    return [Gaussian(mean + lax.stop_gradient(outputs[0] - mean), random[0].var)]


__all__ = ["MomentsError", "moments"]
