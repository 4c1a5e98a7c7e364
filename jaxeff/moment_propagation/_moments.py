"""`moments(f)`: mean and variance of a function's results in one pass; `sampled(f)`: draws of them.

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
- Diagonal covariance is the approximation: what entries share (noise at the input, a residual
  stream, parameters that are used twice) is forgotten. `assumptions` lists where, and by how much;
  `moments_check` says whether it matters; `calibrate_moments`, `correlations=True` and
  `method="linear"` make up for it. `experiments.beyond.moment_variances` holds them against Monte
  Carlo.
- What a kernel shares over positions is followed to their mean, at some three times the diagonal's
  price: the variances of a trained network of depthwise convolutions go from a median of .27
  of the sampled ones to .96 (.89 to 1.00). Where positions are flattened instead it isn't: LeNet-5
  has .83 (.58 to .97). `moments(f, shared=False)` is the diagonal pass.
- Attention with random weights in a residual stream has variances several times too small, and a
  warning says so: a trained vision transformer's have a median of .15 of the sampled ones.
  `moments(f, shared="attention")` follows what tokens share to a mean over them: .18 and .15 of
  the sampled variances (noise of 3 and 10 %) become .69 for one of four blocks, at 34 times the
  network's operations where the diagonal takes 8 and the linear method (1.03, .92) 22 for ten
  results.
- Discrete results (an argmax, a comparison) are those of the means; computing on with one is an
  error, and so is any primitive without a rule that meets a random value.
- Weights that `jaxeff.quantized` rounds to evenly spaced values have the moments of rounded draws,
  with the step of the means; activations are rounded in the mean and keep their variance.

Moments of a noisy network are those of a function with noise as a random argument. A noise model
whose draws have known means and variances (`jaxeff.noise.MomentNoise`) is a value and independent
random arrays. Made arguments of the function, they are random values like any others: their product
with a layer's result is exact, and what entries share of a draw is followed as everything that
entries share.

`sampled(f)` is the local reparametrization trick, draws of results in place of weights.

```python
from jaxeff.moment_propagation import sampled

posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
logits = sampled(f)(jax.random.key(0), posterior, x)
```

Where a layer reads random parameters, the mean and variance of its result are those of moment
propagation, exact for a dot product or convolution, and the result is drawn from them (Kingma et
al., section 2.3): m + sqrt(v) times noise of its own for every entry and every example. So the
gradients of a batch's loss have a smaller variance than with one draw of the weights for all of it,
and weights need no density: a Gaussian stands for whatever has that mean and variance, such as
discrete weights (Shayer et al., section 3), by the central limit theorem.

Sharp edges:
    Results that share a weight are drawn independently: the entries of a convolution's result, the
    uses of a layer that is used twice, the steps of a loop.
    Results of few products aren't normal; draw weights instead (`Gaussian.sample`) where that
    matters.

References:
    Kingma et al., "Variational Dropout and the Local Reparameterization Trick", arXiv:1506.02557.
    Shayer et al., "Learning Discrete Weights Using the Local Reparameterization Trick",
    arXiv:1710.07739.

Rules are compared with sampled moments, by Monte Carlo over the layers: the function is run on
samples of its random arguments, and the mean and variance of every value in it are accumulated.
They show where a variance is off, and by how much (`assumptions`), and by which factor to correct
it (`calibrate_moments`).
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxeff import core
from jaxeff.moment_propagation import _moment_pass as moment_pass
from jaxeff.moment_propagation import _values
from jaxeff.moment_propagation._covariance import check_method, correlated, first_order_pass
from jaxeff.moment_propagation._moment_pass import Propagation
from jaxeff.moment_propagation.dependence import Assumption, Assumptions
from jaxeff.moment_propagation.rules import Rule
from jaxeff.noise import MomentNoise, Noise, perturbed_inputs, perturbs_layer
from jaxeff.noise.models import check_noise, place
from jaxeff.program import Layer, Program, evaluate, interpret_sites, plain_rule, resolve, trace
from jaxeff.program.ir import Value

RUN_ONCE: Any = {"xla_backend_optimization_level": 0}
"""Options for a program that runs once or twice: a third less to compile, twice as long to run."""


def with_noise(
    f: Callable[..., Any],
    spec: Mapping[str, Noise | None],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Gives a function its noise as a last argument; returns it with arguments, noise included.

    Raises:
        SpecError: A pattern of the spec matches or decides no site, or two are equally specific.
    """
    means, named = jax.tree.map(
        lambda v: v.mean if _values.is_gaussian(v) else v,
        (tuple(args), dict(kwargs)),
        is_leaf=_values.is_gaussian,
    )
    # Sites and shapes are all that is needed: a model's terms don't depend on the values it
    # perturbs.
    program = trace(f, *means, **named)
    models = resolve(spec, program, perturbs_layer, "noise to perturb")
    draws: dict[str, list[_values.Gaussian]] = {}
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
            draws[name] = [_values.Gaussian(mean, var) for mean, var in model.terms(like)]

    def g(*arguments: Any, **keywords: Any) -> Any:
        *rest, drawn = arguments

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
        perturbed = [(f"{layer.site}>{i}", v) for i, v in enumerate(layer.outputs) if not v.spread]
    else:
        perturbed = [(f"{layer.site}<{i}", layer.inputs[i]) for i in perturbed_inputs(layer, model)]
    return [(name, v) for name, v in perturbed if jnp.issubdtype(v.aval.dtype, jnp.floating)]


_FORMS = ("variance", "raw")


@core.validate(rules=core.instance_of(Mapping), noise=core.string_mapping, f=None)
def moments(
    f: Callable[..., Any],
    *,
    method: str = "layers",
    rules: Mapping[Any, Rule] | None = None,
    form: str = "variance",
    correlations: bool | Literal["full"] = False,
    strict: bool = False,
    noise: Mapping[str, Any] | None = None,
    shared: bool | Literal["attention"] = True,
) -> Callable[..., Any]:
    """Turns a function of arrays into one of random arrays.

    Args:
        f: A pure function `f(params, *args)`.
        method: "layers" propagates moments from layer to layer, by rules. "linear" is the delta
            method: the mean is `f`'s result at the means, and the variance the sum over random
            entries of their variance times the squared derivative of the result. It takes any
            differentiable function, needs no rules, is exact to first order with everything that
            results share, and costs a pass backward per result of an example. It is for noise up
            to some 10 % of a weight array's spread; at more, take `correlations=True`.
        rules: Rules for primitives that have none, or in place of the built-in ones: from the
            primitive to `rule(node, *values)`, which gets arrays and `Gaussian`s and returns a
            list with one of either per result. `node.params` holds the primitive's parameters.
        form: Moments that layers pass on: "variance" (the default, safe in float32) or "raw",
            E[x^2] between an activation and the next linear layer, as the source's operators do.
        correlations: Take into account everything that results share (see `correlated`), at the
            cost of one pass backward per result of an example. "full" returns what the entries
            of an example share as well: a `JointGaussian` for each floating-point leaf. The
            linear method always takes into account what results share, and "full" returns it.
        strict: Refuse to assume independence: a function with a place that `assumptions` would
            list is an error.
        noise: A spec of noise models, as `jaxeff.noisy` takes it, whose means and variances are
            propagated too: `Dropout`, `Additive`, `Multiplicative`, `Mixed`, or any model that is
            a `jaxeff.noise.MomentNoise`. Every draw is a random value of its own, so what shares
            one (`per="channel"`) is dependent, which `correlations=True` takes into account.
        shared: Follow the noise of a convolution's kernel, which all positions share, or of a dense
            layer's, which tokens or time steps share, to a mean, sum or maximum over all of them,
            where there is one. It costs some three times the diagonal pass there, to run and to
            compile, and nothing elsewhere. "attention" follows it through attention as well, from
            a transformer's dense layers to a mean over its tokens, at some three to four times the
            diagonal pass: for many results, since up to some ten of them the linear method is
            cheaper and nearer. False is the diagonal pass. The factors of a calibrated
            posterior hold it already, unless they were measured beside this (`shared=True` there).

    Returns:
        A function of the same arguments, any leaf of which may be a `Gaussian`. It returns what
        `f` returns with a `Gaussian` for each floating-point leaf (variance zero where no random
        value reached it, and then the mean is `f`'s result bit for bit) and arrays for the
        others.

    Raises:
        ValueError: `method`, `form`, `correlations` or `shared` is unknown, or the linear method is
            given rules or a form; when called: a `Gaussian` leaf holds NaN, a
            negative variance, or a variance that doesn't fit its mean; noise has no moments, or
            acts inside a loop.
        TypeError: `f` is a Flax model; when called: an argument is a sampler's or guide's
            posterior, a result, a model, or holds what is no array.
        MomentsError: When called: a random value meets a computation without a rule, or, if
            `strict`, dependent values meet where independence would be assumed.

    Warns:
        MomentsWarning: When called: the pass takes something as independent that can make variances
            far too large or too small; the message says what and where. `moments_check` says
            whether it does.
    """
    core.check_function("moments: f", f)
    if noise is not None:
        check_noise(noise)
    if form not in _FORMS:
        raise ValueError(f"moments: form {form!r} is unknown; choose one of {_FORMS}.")
    check_method("moments", method)
    if method == "linear" and (rules is not None or form != "variance"):
        raise ValueError("moments: method='linear' takes no rules and no form; leave them out.")
    if correlations not in (False, True, "full"):
        raise ValueError(f"moments: correlations is False, True or 'full', not {correlations!r}.")
    if shared not in (False, True, "attention"):
        raise ValueError(f"moments: shared is False, True or 'attention', not {shared!r}.")

    f = core.read_once(f)

    @functools.wraps(f)
    def propagated(*args: Any, **kwargs: Any) -> Any:
        # A sampler's result or a model in the place of parameters is named before anything is
        # traced.
        for position, argument in enumerate(args):
            core.check_params(f"moments: argument {position}", argument)
        assumptions: list[Assumption] = []
        propagation = Propagation(
            rules or {}, form, assumptions.append, shared=shared, once=not strict
        )
        noisy = (f, args) if noise is None else with_noise(f, noise, args, kwargs)
        result = _propagated(propagation, method, correlations, *noisy, kwargs)
        if strict and assumptions:
            raise _values.MomentsError(
                "moments: strict=True, and independence would be assumed:\n"
                f"{Assumptions.merged(assumptions)}\nLeave `strict` out to accept that."
            )
        return result

    return propagated


def _propagated(
    propagation: Propagation,
    method: str,
    correlations: bool | Literal["full"],
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    random = any(
        _values.is_gaussian(v) for v in jax.tree.leaves((args, kwargs), is_leaf=_values.is_gaussian)
    )
    if random and (correlations or method == "linear"):
        return correlated(
            first_order_pass(propagation, method), f, args, kwargs, correlations == "full"
        )
    return propagation.run(f, args, kwargs)


@core.validate()
def sampled(f: Callable[..., Any]) -> Callable[..., Any]:
    """Draws the results of layers whose parameters are random.

    Args:
        f: A pure function `f(params, *args)`.

    Returns:
        A function `g(key, params, *args)`, any leaf of whose arguments may be a `Gaussian`. It
        returns what `f` returns, drawn; it is differentiable with respect to means and variances.

    Raises:
        TypeError: `f` is a Flax model; when called: the key is none, or an argument holds what is
            no array.
        MomentsError: When called: a random parameter meets a computation without a rule.
    """
    f = core.read_once(f)

    @functools.wraps(f)
    def g(key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Any:
        core.check_key("sampled: key", key)
        for position, argument in enumerate(args):
            core.check_params(f"sampled: argument {position}", argument)
        program, values, factors = moment_pass.read(f, args, kwargs)
        propagation = Propagation({}, "variance", lambda _: None)

        def rule(layer: Layer, at: Any, *inputs: Any) -> Sequence[Any]:
            outputs = propagation.layer(factors, layer, None, *inputs)
            if not layer.site:  # prepares a parameter, which is drawn where it is used
                return outputs
            return [_drawn(at, i, value) for i, value in enumerate(outputs)]

        # A site's draw is certain for the next layer, so no variance passes through two sites.
        outputs = evaluate(program, rule, key, values)
        # Results that no site has made (a random argument returned as it is) are drawn here.
        drawn = [_drawn(key, i, value) for i, value in enumerate(outputs)]
        return jax.tree.unflatten(program.out_tree, drawn)

    return g


def _drawn(key: Any, i: int, value: Any) -> Any:
    return (
        _values.to_variance(value).sample(jax.random.fold_in(key, i))
        if _values.is_random(value)
        else value
    )


Sampled = dict[Value, _values.Gaussian]


class DrawSums(NamedTuple):
    """Sums over draws, one array per sampled value.

    Attributes:
        centre: Values at the means of all arguments.
        first: Sums of offsets from them.
        second: Sums of the squares of those offsets.
    """

    centre: list[Array]
    first: list[Array]
    second: list[Array]


@dataclass(frozen=True)
class Sampling:
    """Sums over draws of a program's random values, which further calls add draws to.

    Attributes:
        program: A program; loops are run as they are, and what is inside isn't looked at.
        wanted: Values to sample.
        chunk: Number of draws that run side by side.
    """

    program: Program
    wanted: Sequence[Value]
    chunk: int

    def compiled(
        self, values: Sequence[Any], keys: PRNGKeyArray, posterior: Any = None
    ) -> Callable[..., DrawSums]:
        """Compiles `add`, for numbers of chunks of int32; it is the network's one program."""
        # Compiled by hand: a call with numbers of the machine's and one with those of JAX would be
        # two programs, as big as the network each.
        arguments = (self._nothing(), values, keys, np.int32(0), np.int32(1), posterior)
        compiled = jax.jit(self.add).lower(*arguments).compile()

        def add(*args: Any) -> DrawSums:
            return compiled(*args, posterior)

        return add

    def start(
        self, add: Callable[..., DrawSums], values: Sequence[Any], keys: PRNGKeyArray
    ) -> DrawSums:
        """Evaluates the program at the means, as a draw of variance zero; sums are of no draws."""
        # Sums of offsets from the values at the means: sums of squares of the values themselves
        # would cancel in float32. Zeros of NumPy: those of JAX are compiled for each shape.
        zero: Callable[..., Any] = np.zeros
        still = [
            replace(v, var=zero(v.shape, v.dtype)) if _values.is_gaussian(v) else v for v in values
        ]
        zeros = self._nothing()
        at_means = add(zeros, still, keys, np.int32(0), np.int32(1))
        # Whole chunks are summed: a chunk of equal draws is that many times one.
        centre: list[Any] = [np.asarray(x) / x.dtype.type(self.chunk) for x in at_means.first]
        return DrawSums(centre, zeros.first, zeros.second)

    def _nothing(self) -> DrawSums:
        zeros: list[Any] = [np.zeros(v.aval.shape, v.aval.dtype) for v in self.wanted]
        return DrawSums(zeros, zeros, zeros)

    def add(
        self,
        sums: DrawSums,
        values: Sequence[Any],
        keys: Any,
        start: Any,
        stop: Any,
        posterior: Any = None,
    ) -> DrawSums:
        """Adds draws to sums.

        Values are one per input of the program; a `Gaussian` is sampled. Keys are of all draws,
        `[chunks, chunk]`, of which those from `start` (which may be traced) to before `stop` are
        added. `posterior` has draws of its own in the place of the first values.
        """

        def inputs(key: PRNGKeyArray) -> list[Any]:
            sampled = _values.sample_all(key, values)
            if posterior is None:
                return sampled
            entries, at = posterior.draws(jax.random.fold_in(key, 1), 1)
            leaves = jax.tree.leaves(at(jax.tree.map(lambda a: a[0], entries)))
            # Without variance it stays at its mean, as other values do.
            drawn = [
                jnp.where(v.var > 0, d, v.mean) if _values.is_gaussian(v) else v
                for d, v in zip(leaves, values, strict=False)
            ]
            return drawn + sampled[len(drawn) :]

        def draw(key: PRNGKeyArray) -> list[Array]:
            drawn = _everything(self.program, inputs(key))
            return [drawn[v] for v in self.wanted]

        def added(total: tuple[list[Array], list[Array]], drawn: Sequence[Array]) -> Any:
            pairs = zip(drawn, sums.centre, strict=True)
            # What is minus infinity in every draw doesn't vary.
            offsets = [jnp.where(y == c, 0, y - c) for y, c in pairs]
            parts = [(o, o * o) for o in offsets]
            if self.chunk > 1:
                parts = [(o.sum(0), square.sum(0)) for o, square in parts]
            first = [t + o for t, (o, _) in zip(total[0], parts, strict=True)]
            second = [t + o for t, (_, o) in zip(total[1], parts, strict=True)]
            return first, second

        def step(i: Any, total: tuple[list[Array], list[Array]]) -> tuple[list[Array], list[Array]]:
            # A mapped convolution has a kernel per draw: it compiles and runs for three times as
            # long as one draw after the other.
            drawn = draw(keys[i, 0]) if self.chunk == 1 else jax.vmap(draw)(keys[i])
            # In a branch that is always taken, for sums would be fused with the network: what they
            # read would be computed again in each, and none would be compiled like another.
            return jax.lax.cond(start < stop, added, lambda total, _: total, total, drawn)

        # Sums of sums: bounds that are traced let calls of any length share one program.
        total = jax.lax.fori_loop(start, stop, step, (sums.first, sums.second))
        return DrawSums(sums.centre, *total)

    def moments(self, sums: DrawSums, count: int) -> Sampled:
        """Computes means and unbiased variances from the sums of `count` draws."""
        sampled: Sampled = {}
        arrays = jax.tree.map(np.asarray, sums)
        for value, centre, total, squares in zip(self.wanted, *arrays, strict=True):
            # The unbiased variance from sums of offsets, whose mean is small against their spread.
            mean = total / count
            var = np.maximum(squares - count * mean * mean, 0) / (count - 1)
            sampled[value] = _values.Gaussian(centre + mean, var)
        return sampled


def sampled_moments(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    args: Any,
    program: Program,
    values: Sequence[Any],
    samples: int,
    chunk: int,
    wanted: Collection[Value],
) -> Sampled:
    """Samples the moments of random floating-point values of a program.

    Loops are run as they are, and what is inside isn't looked at. Values are one per input; a
    `Gaussian` is sampled, at least twice, rounded up to a multiple of `chunk`, which are run at
    once: memory is this many times that of the function. Of `wanted`, what isn't random or no
    floats is left out. What is compiled is kept with the function that was read at these arguments.
    Returns the mean and the unbiased variance by value, arrays of the value's shape.
    """
    random = [v for v in random_values(program, values) if v in wanted]
    sampling = Sampling(program, random, chunk)
    keys = draw_keys(key, samples, chunk)
    places = tuple(i for i, v in enumerate(floats(program)) if v in random)
    add = core.kept_reading(
        f, args, {"draws": (keys.shape, places)}, lambda: (sampling.compiled(values, keys), ())
    )
    sums = sampling.start(add, values, keys)
    sums = add(sums, values, keys, np.int32(0), np.int32(len(keys)))
    return sampling.moments(sums, keys.size)


def draw_keys(key: PRNGKeyArray, samples: int, chunk: int) -> PRNGKeyArray:
    """Splits a key into one per draw, `[chunks, chunk]`, at least `samples` of them."""
    return jax.random.split(key, (-(-samples // chunk), chunk))


def _everything(program: Program, values: Sequence[Any]) -> dict[Value, Any]:
    """Evaluates a program as it is and returns every value."""
    env: dict[Any, Any] = dict(program.constants)
    env.update(zip(program.inputs, values, strict=True))
    for layer in program.layers:
        env.update(
            zip(
                layer.outputs, plain_rule(layer, None, *(env[v] for v in layer.inputs)), strict=True
            )
        )
    return env


def random_values(program: Program, values: Sequence[Any]) -> list[Value]:
    """Returns the floating-point values that depend on random inputs."""
    reached = {v for v, x in zip(program.inputs, values, strict=True) if _values.is_gaussian(x)}
    for layer in program.layers:
        if not reached.isdisjoint(layer.inputs):
            reached.update(layer.outputs)
    return [v for v in floats(program) if v in reached]


def floats(program: Program) -> list[Value]:
    """Lists the floating-point values of a program in their order."""
    values = [*program.inputs, *(v for layer in program.layers for v in layer.outputs)]
    return [v for v in values if jnp.issubdtype(v.aval.dtype, jnp.floating)]


def ratios(ours: _values.Gaussian, sampled: _values.Gaussian) -> Array:
    """Divides variances by sampled ones, entry by entry; NaN where nothing varied."""
    return jnp.where(
        sampled.var > 0, ours.var / jnp.where(sampled.var > 0, sampled.var, 1), jnp.nan
    )
