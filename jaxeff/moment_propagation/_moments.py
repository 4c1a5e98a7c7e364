"""`moments(f)`: mean and variance of a function's results in one pass; `sampled(f)`: draws of them.

```python
import jax

import jaxeff
from jaxeff.moment_propagation import sampled
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
logits = jaxeff.moments(f)(posterior, x)            # a Gaussian: logits.mean, logits.var
logits = sampled(f)(jax.random.key(0), posterior, x)
```
"""

import functools
import itertools
import warnings
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxeff import core
from jaxeff.moment_propagation import _moment_pass as moment_pass
from jaxeff.moment_propagation import _values
from jaxeff.moment_propagation._calibrated import are_of_sites, uncalibrated, with_factors
from jaxeff.moment_propagation._choice import DRAWS, METHODS, MethodChoice, choose, misleads
from jaxeff.moment_propagation._moment_pass import Propagation, RandomProgram
from jaxeff.moment_propagation.dependence import Assumption, Assumptions, Ratio
from jaxeff.moment_propagation.linear import linear_moments
from jaxeff.moment_propagation.rules import Rule
from jaxeff.noise import MomentNoise, Noise, perturbed_inputs, perturbs_layer
from jaxeff.noise.models import check_noise, place
from jaxeff.program import (
    Layer,
    Program,
    chosen,
    evaluate,
    interpret_sites,
    plain_rule,
    resolve,
    trace,
)
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

    Moments of a noisy network are those of a function with noise as a random argument: a model
    whose draws have known means and variances is a value and independent random arrays.

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


class MomentFunction(Protocol):
    """A function of random arrays, as `moments` makes it.

    Attributes:
        explain: Says at the arguments of a call which method it takes, and why.
        deployed: The function that `deploy` compiles in its place: "auto" is the diagonal pass.
    """

    explain: Callable[..., MethodChoice]
    deployed: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the function returns, with Gaussians for floating-point leaves."""
        ...


@core.validate(
    rules=core.instance_of(Mapping), noise=core.string_mapping, covariance=core.boolean, f=None
)
def moments(
    f: Callable[..., Any],
    *,
    method: str = "auto",
    rules: Mapping[Any, Rule] | None = None,
    form: str = "variance",
    covariance: bool = False,
    strict: bool = False,
    noise: Mapping[str, Any] | None = None,
) -> MomentFunction:
    """Turns a function of arrays into one of random arrays.

    Any leaf of the arguments may be a `Gaussian`: parameters, inputs, both, some of them.
    `experiments.beyond.moment_variances` holds the methods against Monte Carlo.

    Sharp edges
    - Diagonal covariance is an approximation: what entries share (a kernel's noise at all
      positions, a residual stream, parameters that are used twice) is forgotten. `assumptions`
      lists where; `moments_check` says whether it matters.
    - Discrete results (an argmax, a comparison) are those of the means; computing on with one is an
      error, and so is any primitive without a rule that meets a random value.
    - Weights that `jaxeff.quantized` rounds to evenly spaced values have the moments of rounded
      draws, with the step of the means; activations are rounded in the mean and keep their
      variance.

    Args:
        f: A pure function `f(params, *args)`.
        method: "diagonal" propagates moments from layer to layer, by rules, and takes entries as
            independent (moment matching; Klein's thesis, chapter 8). "linear" is the delta method:
            the mean is `f`'s result at the means, and the variance the sum over random entries of
            their variance times the squared derivative of the result. It takes any differentiable
            function, needs no rules, is exact to first order with everything that results share,
            and costs a pass backward per result of an example; it is for noise up to some 10 % of a
            weight array's spread. "calibrated" is the diagonal pass with the factors of
            `calibrate_moments`. "auto" takes the diagonal pass where no dependent entries are
            combined, which is then right; else the linear method where an example has few results;
            else the diagonal pass, with a warning. For arguments with factors it is the method that
            they were measured for.
        rules: Rules for primitives that have none, or in place of the built-in ones: from the
            primitive to `rule(node, *values)`, which gets arrays and `Gaussian`s and returns a
            list with one of either per result. `node.params` holds the primitive's parameters.
        form: Moments that layers pass on: "variance" (the default, safe in float32) or "raw",
            E[x^2] between an activation and the next linear layer, as the thesis' operators do.
        covariance: Return what the entries of an example share as well, by the linear method: a
            `JointGaussian` for each floating-point leaf, which is a vector per example.
        strict: Refuse to assume independence: a diagonal pass with a place that `assumptions`
            would list is an error.
        noise: A spec of noise models, as `jaxeff.noisy` takes it, whose means and variances are
            propagated too: `Dropout`, `Additive`, `Multiplicative`, `Mixed`, or any model that is
            a `jaxeff.noise.MomentNoise`. Every draw is a random value of its own, so what shares
            one (`per="channel"`) is dependent.

    Returns:
        A function of the same arguments, any leaf of which may be a `Gaussian`. It returns what
        `f` returns with a `Gaussian` for each floating-point leaf (variance zero where no random
        value reached it, and then the mean is `f`'s result bit for bit) and arrays for the
        others. Its `explain`, of the same arguments, says which method it takes there, and why.

    Raises:
        ValueError: `method` or `form` is unknown, or the linear method is given rules or a form;
            when called: a `Gaussian` leaf holds NaN, a negative variance, or a variance that
            doesn't fit its mean; noise has no moments, or acts inside a loop; nothing is calibrated
            for method="calibrated".
        TypeError: `f` is a Flax model; when called: an argument is a sampler's or guide's
            posterior, a result, a model, or holds what is no array.
        MomentsError: When called: a random value meets a computation without a rule, or, if
            `strict`, dependent values meet where independence would be assumed.

    Warns:
        MomentsWarning: When called: method="auto" takes something as independent that makes
            variances far too large or too small; the message says where and what to do. Outside
            of `jit` results are compared with 100 draws first, once for each posterior, and nothing
            is said if they agree. Under `jit`, and with `noise`, it is of the program alone.
    """
    core.check_function("moments: f", f)
    if noise is not None:
        check_noise(noise)
    if form not in _FORMS:
        raise ValueError(f"moments: form {form!r} is unknown; choose one of {_FORMS}.")
    if method not in METHODS:
        raise ValueError(f"moments: method {method!r} is unknown; choose one of {METHODS}.")
    of_layers = bool(rules) or form != "variance"
    if (method == "linear" or covariance) and of_layers:
        raise ValueError("moments: method='linear' takes no rules and no form; leave them out.")
    if covariance and method not in ("auto", "linear"):
        raise ValueError("moments: covariance=True is the linear method's; take method='linear'.")
    if covariance:
        method = "linear"

    f = core.read_once(f)
    # Noise of models is another function in every call, and would be compiled in each.
    measures = noise is None
    settings = _Settings(method, rules or {}, form, covariance, strict, measures)

    def call(settings: _Settings, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Call:
        # A sampler's result or a model in the place of parameters is named before anything is
        # traced.
        for position, argument in enumerate(args):
            core.check_params(f"moments: argument {position}", argument)
        noisy = (f, args) if noise is None else with_noise(f, noise, args, kwargs)
        return _Call(settings, *noisy, kwargs)

    def function(settings: _Settings) -> Any:
        @functools.wraps(f)
        def propagated(*args: Any, **kwargs: Any) -> Any:
            return call(settings, args, kwargs).result()

        return propagated

    def explain(*args: Any, **kwargs: Any) -> MethodChoice:
        return call(settings, args, kwargs).choice()

    of_bundle = replace(settings, deployed=True, measures=False)
    propagated, deployed = function(settings), function(of_bundle)
    propagated.explain, propagated.deployed = explain, deployed
    # Attributes go over to what wraps the function, which isn't meant.
    deployed.in_place_of = propagated
    of_random: MomentFunction = propagated
    return of_random


@dataclass(frozen=True)
class _Settings:
    """What `moments` was asked for, as its arguments.

    `measures`: results may be compared with draws before a warning. `deployed`: a bundle is made.
    """

    method: str
    rules: Mapping[Any, Rule]
    form: str
    covariance: bool
    strict: bool
    measures: bool
    deployed: bool = False


@dataclass
class _Measured:
    """How far variances were off for some random arrays, as long as these live."""

    random: Sequence[weakref.ref[Any]] = ()
    ratio: Ratio | None = None

    def is_of(self, random: Sequence[Any]) -> bool:
        """Returns whether it was measured for these very arrays."""
        pairs = itertools.zip_longest((one() for one in self.random), random)
        return bool(random) and all(a is b for a, b in pairs)


@dataclass(frozen=True)
class _Call:
    """One call of `moments(f)`: the settings, the function with its noise, the arguments."""

    settings: _Settings
    f: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def is_random(self) -> bool:
        """Whether anything is."""
        leaves = jax.tree.leaves((self.args, self.kwargs), is_leaf=_values.is_gaussian)
        return any(map(_values.is_gaussian, leaves))

    def result(self) -> Any:
        """Evaluates the moments."""
        places: list[Assumption] = []
        propagation = self._propagation(places)
        if not self.is_random:
            return propagation.run(self.f, self.args, self.kwargs)
        settled = self._settled()
        read = moment_pass.read(self.f, self.args, self.kwargs)
        if settled is not None and settled.method == "linear":
            return linear_moments(read, self.settings.covariance)
        prepared = propagation.prepared(read)
        choice = settled or self._chosen(prepared, places)
        if choice.method == "linear":
            # For `deploy`, which sees no choice inside of another function.
            return chosen(linear_moments(read), choice.method)
        result = propagation.finished(prepared)
        if self.settings.strict and places:
            raise _values.MomentsError(
                "moments: strict=True, and independence would be assumed:\n"
                f"{Assumptions.merged(places)}\nLeave `strict` out to accept that."
            )
        if settled is None and (told := replace(choice, places=Assumptions.merged(places))).adds_up:
            measured = self._measured(read, result)
            if measured is None or misleads(measured):
                words = told.warning(self.settings.deployed, measured)
                warnings.warn(words, _values.MomentsWarning, stacklevel=3)
        return result

    def _measured(self, read: RandomProgram, result: Any) -> Ratio | None:
        """Divides variances of results by drawn ones; None under `jit`, where there are no values.

        It is kept as long as the random arrays are the same ones.
        """
        arguments = jax.tree.leaves((self.args, self.kwargs), is_leaf=_values.is_gaussian)
        arrays = jax.tree.leaves((arguments, result))
        if not self.settings.measures or not all(map(_is_at_hand, arrays)):
            return None
        where = self.f, (self.args, self.kwargs)
        how = self.settings.form, tuple(self.settings.rules.items())
        kept = core.kept_reading(*where, {"measured": how}, lambda: (_Measured(), ()))
        random = jax.tree.leaves([v for v in arguments if _values.is_gaussian(v)])
        if not kept.is_of(random):
            program = read.program
            ends = {v for v in program.outputs if isinstance(v, Value)}
            key = jax.random.key(0)
            drawn = sampled_moments(key, *where, read, DRAWS, 1, ends)
            ours = jax.tree.leaves(result, is_leaf=_values.is_gaussian)
            pairs = [
                (y, drawn[v]) for v, y in zip(program.outputs, ours, strict=True) if v in drawn
            ]
            kept.random = [weakref.ref(a) for a in random]
            kept.ratio = _ratio_to_draws(pairs)
        return kept.ratio

    def choice(self) -> MethodChoice:
        """Chooses the method, of shapes alone."""
        places: list[Assumption] = []
        settled = self._settled()
        if settled is not None or not self.is_random:
            return settled or MethodChoice("diagonal", "nothing is random")
        choices: list[MethodChoice] = []

        def run(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            read = moment_pass.read(self.f, args, kwargs)
            choices.append(self._chosen(self._propagation(places).prepared(read), places))

        jax.eval_shape(run, tuple(self.args), dict(self.kwargs))
        return choices[0]

    def _settled(self) -> MethodChoice | None:
        """Returns the method where arguments and settings say it; None where the program does."""
        method, (_, factors) = self.settings.method, uncalibrated(self.args)
        if factors and method in ("auto", "calibrated"):
            of_sites = are_of_sites(factors)
            reason = "the posterior has factors that were measured for it"
            return MethodChoice("calibrated" if of_sites else "linear", reason)
        if method == "calibrated":
            raise ValueError(
                "moments: method='calibrated' takes factors, and no argument has any; measure them "
                "once: posterior = calibrate_moments(key, f, posterior, x)."
            )
        return None if method == "auto" else MethodChoice(method, f"method={method!r} asks for it")

    def _chosen(self, read: Any, places: Sequence[Assumption]) -> MethodChoice:
        merged = Assumptions.merged(places)
        if self.settings.deployed:
            return MethodChoice("diagonal", "it is deployed", merged)
        of_layers = bool(self.settings.rules) or self.settings.form != "variance"
        return choose(read, merged, layers_only=of_layers)

    def _propagation(self, places: list[Assumption]) -> Propagation:
        settings = self.settings
        return Propagation(settings.rules, settings.form, places.append, once=not settings.strict)


def _is_at_hand(x: Any) -> bool:
    """Returns whether a value is known here, and on one device, as what draws are compiled for."""
    if isinstance(x, jax.core.Tracer):
        return False
    return not isinstance(x, jax.Array) or len(x.sharding.device_set) == 1


def _ratio_to_draws(pairs: Sequence[tuple[_values.Gaussian, _values.Gaussian]]) -> Ratio | None:
    """Divides variances by those of draws; None where one is undefined, or nothing varies."""
    if not pairs or not all(np.isfinite(ours.var).all() for ours, _ in pairs):
        return None
    quotients = np.concatenate([np.ravel(ratios(ours, drawn)) for ours, drawn in pairs])
    return Ratio.of(quotients, float(np.sqrt(2 / DRAWS)))


@core.validate()
def sampled(f: Callable[..., Any]) -> Callable[..., Any]:
    """Draws the results of layers whose parameters are random.

    Where a layer reads random parameters, the mean and variance of its result are those of moment
    propagation, exact for a dot product or convolution, and the result is drawn from them (Kingma
    et al., section 2.3): m + sqrt(v) times noise of its own for every entry and every example. So
    the gradients of a batch's loss have a smaller variance than with one draw of the weights for
    all of it, and weights need no density: a Gaussian stands for whatever has that mean and
    variance, such as discrete weights (Shayer et al., section 3), by the central limit theorem.

    Sharp edges:
        Results that share a weight are drawn independently: the entries of a convolution's result,
        the uses of a layer that is used twice, the steps of a loop.
        Results of few products aren't normal; draw weights instead (`Gaussian.sample`) where that
        matters.

    Args:
        f: A pure function `f(params, *args)`.

    Returns:
        A function `g(key, params, *args)`, any leaf of whose arguments may be a `Gaussian`. It
        returns what `f` returns, drawn; it is differentiable with respect to means and variances.

    Raises:
        TypeError: `f` is a Flax model; when called: the key is none, or an argument holds what is
            no array.
        MomentsError: When called: a random parameter meets a computation without a rule.

    References:
        Kingma et al., "Variational Dropout and the Local Reparameterization Trick",
        arXiv:1506.02557.
        Shayer et al., "Learning Discrete Weights Using the Local Reparameterization Trick",
        arXiv:1710.07739.
    """
    f = core.read_once(f)

    @functools.wraps(f)
    def g(key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Any:
        core.check_key("sampled: key", key)
        for position, argument in enumerate(args):
            core.check_params(f"sampled: argument {position}", argument)
        program, values, factors = moment_pass.read(f, args, kwargs)
        propagation = Propagation({}, "variance", lambda _: None)
        moments_of = with_factors(propagation.layer, factors, propagation.is_sum)

        def rule(layer: Layer, at: Any, *inputs: Any) -> Sequence[Any]:
            outputs = moments_of(layer, None, *inputs)
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
    """Sums over draws, one array per sampled value: of offsets from `centre`, and of their squares.

    `centre` holds the values at the means of all arguments.
    """

    centre: list[Array]
    first: list[Array]
    second: list[Array]


@dataclass(frozen=True)
class Sampling:
    """Sums over draws of a program's random values, which further calls add draws to.

    The function is run on samples of its random arguments; loops are run as they are, and what is
    inside isn't looked at. The moments of every value show where a rule's variance is off, and by
    how much (`assumptions`), and by which factor to correct it (`calibrate_moments`).

    Attributes:
        program: A program.
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
    read: moment_pass.RandomProgram,
    samples: int,
    chunk: int,
    wanted: Collection[Value],
) -> Sampled:
    """Samples the moments of random floating-point values of a program.

    A `Gaussian` is sampled at least `samples` times, rounded up to a multiple of `chunk`, which are
    run at once: memory is this many times that of the function. Of `wanted`, what isn't random or
    no floats is left out. What is compiled is kept with the function that was read at these
    arguments. Returns the mean and the unbiased variance by value, arrays of the value's shape.
    """
    program, values, _ = read
    random = [v for v in random_values(program, values) if v in wanted]
    sampling = Sampling(program, random, chunk)
    keys = jax.random.split(key, (-(-samples // chunk), chunk))
    places = tuple(i for i, v in enumerate(floats(program)) if v in random)
    add = core.kept_reading(
        f, args, {"draws": (keys.shape, places)}, lambda: (sampling.compiled(values, keys), ())
    )
    sums = sampling.start(add, values, keys)
    sums = add(sums, values, keys, np.int32(0), np.int32(len(keys)))
    return sampling.moments(sums, keys.size)


def _everything(program: Program, values: Sequence[Any]) -> dict[Value, Any]:
    """Evaluates a program as it is and returns every value."""
    env: dict[Any, Any] = dict(program.constants)
    env.update(zip(program.inputs, values, strict=True))
    for layer in program.layers:
        outputs = plain_rule(layer, None, *(env[v] for v in layer.inputs))
        env.update(zip(layer.outputs, outputs, strict=True))
    return env


def random_values(program: Program, values: Sequence[Any]) -> list[Value]:
    """Returns the floating-point values that depend on random inputs."""
    reached = moment_pass.reached(program, values)
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
