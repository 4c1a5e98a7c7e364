"""Whether the variances of `moments(f)` are right (`moments_check`), and where not (`assumptions`).

```python
import jax

import jaxeff
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
print(jaxeff.moments_check(jax.random.key(0), f, posterior, x[:10]))
```

`assumptions(f, params, x)` lists where moments assume independence, `measure_assumptions` with the
error that it causes.

```python
from jaxeff.moment_propagation import assumptions, measure_assumptions

posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
twice = lambda p, x: f(p, x) * f(p, x)[:, ::-1]              # both factors share a posterior
print(assumptions(twice, posterior, x[:10]))                 # the places
print(measure_assumptions(jax.random.key(0), twice, posterior, x[:10]))  # and what each costs
```
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxeff import core
from jaxeff.moment_propagation import _moment_pass as moment_pass
from jaxeff.moment_propagation._calibrated import uncalibrated
from jaxeff.moment_propagation._moment_pass import Propagation
from jaxeff.moment_propagation._moments import RUN_ONCE, moments, ratios, sampled_moments
from jaxeff.moment_propagation._values import (
    Gaussian,
    is_gaussian,
    is_random,
    sample_all,
    to_variance,
)
from jaxeff.moment_propagation.dependence import Assumption, Assumptions, Ratio
from jaxeff.moment_propagation.rules import Rule
from jaxeff.program import Layer
from jaxeff.program.ir import Value, form_of

Place = tuple[str, str]
"""Site and kind of a layer."""


@core.validate(rules=core.instance_of(Mapping), args=core.input_batch)
def assumptions(
    f: Callable[..., Any],
    *args: Any,
    rules: Mapping[Any, Rule] | None = None,
    **kwargs: Any,
) -> Assumptions:
    """Lists the places where the diagonal pass of `f` at arguments assumes independence.

    Args:
        f: A pure function `f(params, *args)`.
        *args: The arguments, any leaf of which may be a `Gaussian`.
        rules: Same as for `moments`.
        **kwargs: Further arguments.

    Returns:
        The places in order of execution; empty where the moments are exact but for the form of
        distributions. It prints as a list.

    Raises:
        MomentsError: As `moments`.
    """
    places: list[Assumption] = []
    propagation = Propagation(rules or {}, "variance", places.append)
    # The places depend on the program and on shapes alone: nothing is computed to find them.
    jax.eval_shape(functools.partial(propagation.run, f), args, kwargs)
    return Assumptions.merged(places)


@core.validate(
    samples=core.static_integer(2), rules=core.instance_of(Mapping), args=core.input_batch
)
def measure_assumptions(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    *args: Any,
    samples: int = 1000,
    chunk: int = 50,
    rules: Mapping[Any, Rule] | None = None,
    **kwargs: Any,
) -> Assumptions:
    """Lists the places of `assumptions` with how far the variance of each is off.

    The function is run on samples, and the rule of each place compared with them. It gets the
    sampled moments of its inputs, so that errors of one place don't count for the next.

    Args:
        key: Random key of the samples.
        f: A pure function `f(params, *args)`.
        *args: The arguments, any leaf of which may be a `Gaussian`.
        samples: Number of samples to estimate from: an entry's ratio has a standard error of about
            sqrt(2 / samples).
        chunk: Number of samples that run at once.
        rules: Same as for `moments`.
        **kwargs: Further arguments.

    Raises:
        ValueError: Fewer than 2 samples.
        MomentsError: As `moments`.
    """
    places = assumptions(f, *args, rules=rules, **kwargs)
    if not places:
        return places
    errors, _ = site_ratios(key, f, (args, kwargs), rules or {}, samples, chunk, places)
    return with_ratios(places, errors)


def with_ratios(places: Assumptions, errors: Mapping[Place, Ratio | None]) -> Assumptions:
    """Adds to assumptions how far the variances of their layers are off."""
    return Assumptions(replace(one, ratio=errors.get(_place(one))) for one in places)


def _place(one: Assumption | Layer) -> Place:
    return one.site, one.kind


def site_ratios(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    arguments: tuple[Sequence[Any], Mapping[str, Any]],
    rules: Mapping[Any, Rule],
    samples: int,
    chunk: int,
    places: Assumptions,
) -> tuple[dict[Place, Ratio | None], list[Gaussian | None]]:
    """Divides the variances of each place's rule, given sampled inputs, by sampled ones.

    Returns the ratios by site and kind, and the sampled moments of the function's results; None for
    results that aren't random.
    """
    propagation = Propagation(rules, "variance", lambda one: None)
    plain_args, _ = uncalibrated(arguments[0])
    plain = plain_args, arguments[1]
    wanted = {_place(one) for one in places}

    read = moment_pass.read(f, *plain)
    program, values, _ = read
    prepared = propagation.prepare(program, values)
    layers = [
        layer
        for layer in prepared.layers
        if _place(layer) in wanted and layer.kind != "control flow" and layer.nodes
    ]
    # Sums over draws of what no place reads or makes would be most of the loop's work.
    ends = {v for v in program.outputs if isinstance(v, Value)}
    ends.update(v for layer in layers for v in (*layer.inputs, layer.outputs[0]))
    sampled = sampled_moments(key, f, plain, read, samples, chunk, ends)
    known = dict(zip(program.inputs, values, strict=True))
    error = float(np.sqrt(2 / samples))
    # What is compiled is kept with the function.
    form = {"sites": (tuple(rules.items()), tuple(map(_place, layers)))}
    programs: dict[Any, Any] = core.kept_reading(f, plain, form, lambda: ({}, ()))
    ratio_at: dict[Place, Ratio | None] = {}
    for number, layer in enumerate(layers):
        result = layer.outputs[0]
        # Sampled moments of the inputs, not propagated ones: what is measured is each place's own
        # error.
        inputs = [sampled.get(v, known.get(v)) for v in layer.inputs]
        if result not in sampled or any(v is None for v in inputs):
            continue  # made from constants alone, or discrete

        def rule(true: Gaussian, *inputs: Any, layer: Layer = layer) -> Any:
            outputs = propagation.layer(layer, None, *inputs)
            return ratios(to_variance(outputs[0]), true) if is_random(outputs[0]) else None

        # Equal layers, such as those of blocks, have one program.
        same = form_of(layer) or number
        if same not in programs:
            programs[same] = jax.jit(rule, compiler_options=RUN_ONCE)
        ratio = programs[same](sampled[result], *inputs)
        if ratio is not None:
            ratio_at[_place(layer)] = Ratio.of(np.asarray(ratio), error)
    return ratio_at, [sampled.get(v) if isinstance(v, Value) else None for v in program.outputs]


# Noise, relative to the spread of its arrays, up to which the delta method is a reference, and the
# error of its variances up to there.
SMALL_NOISE = 0.1
LINEAR_ERROR = 0.06
DRAWS = 200
# Variances are called right if their median and nine in ten of them lie in these bounds.
_MEDIAN = 0.13
_LOW, _HIGH = 0.75, 1.3
# Ratios that spread by no more than this are mostly one factor, which calibration measures.
_COMMON = 2.0
# Of a normal logarithm, half of the distance between quartiles over that from 5 to 95 %.
_HALF = 0.6745 / 3.29
# Class probabilities are called right if they are off by this much, in ECE or nats.
_PROBABILITY = 0.02
_BINS = 15
# Results of one input are off together, so a tail of one in ten is seen on ten inputs, not on four.
_ENOUGH_INPUTS = 10
_SHOWN = 5


class Decisions(NamedTuple):
    """How far class probabilities are off, beside those of draws.

    Both are means of the softmax: of logits drawn from their moments, and of drawn functions.

    Attributes:
        ece: How far the probability of the most probable class is off, over bins of it: the
            expected calibration error of moments if the draws are right. What as many draws again
            leave is near `error`.
        nll: Nats that the negative log-likelihood of labels is higher, if the draws are right.
        agreement: Share of the inputs of the same most probable class.
        error: Standard error of the draws' probability of the most probable class.
    """

    ece: float
    nll: float
    agreement: float
    error: float


@core.shown_as_table
@dataclass(frozen=True)
class MomentsCheck:
    """How far the moments of a function's results are off. It prints as a table.

    The moments of the method that `moments(f)` takes are compared with a reference that knows what
    results share: the delta method where noise is small and it isn't that method itself, draws of
    the function elsewhere. The layers that lose most, on request, are found as `assumptions` finds
    them: each one's rule is given the sampled moments of its inputs.

    Sharp edges
    - The delta method's own error is that of most networks it was measured on, 6 % up to noise of
      10 %; a function with bends (a threshold, a softmax that is nearly one-hot) or a deep residual
      network whose norms were folded may have more, a ResNet-18 ten times that. Where there are
      sites to draw samples for, it must agree with these samples to be the reference; 200 of them
      tell an error of 26 % or more. Give `draws` to be sure.
    - What is compiled is kept as long as `f` lives, so that a second call is fast; as under
      `jax.jit`, what `f` reads of global names counts as it was at first.
    - What a layer loses by itself may cancel further on: the table of sites says where to look, the
      ratio of the results whether it matters.
    - Variances may be right for most inputs and far off for some: an LSTM had .89 (.75 to .96) of
      the true variance on four inputs and .83 (.25 to .97) on ten. The verdict looks at nine in ten
      of the ratios as well as at their median, and says so where too few inputs were asked for
      that.

    Attributes:
        ratio: The variances of `moments(f)` over those of the reference: median, 5 and 95 % over
            the entries of results, and the reference's own relative error in one variance. None
            if no entry varies.
        mean_error: The difference of the means, in standard deviations, that 95 % of the entries
            stay below.
        undefined: Share of the entries whose variance is NaN or infinite.
        reference: "linear" (the delta method) or "draws".
        draws: How many samples of the function the reference, or the table of sites, is made of.
        noise: Standard deviation of the random arguments over the spread of their arrays.
        linear_error: How far the median variance of the delta method is from that of draws,
            relative; None if they weren't compared.
        sites: The places where independence is assumed, the one whose variance is off most first;
            in order of execution and without ratios where these weren't asked for.
        inputs: How many inputs were asked, the first axis of `x`; None where it has several.
        decisions: How far class probabilities are off; None unless results were said to be logits.
        method: The method that was compared.
    """

    ratio: Ratio | None
    mean_error: float
    undefined: float
    reference: Literal["linear", "draws"]
    draws: int
    noise: float
    linear_error: float | None
    sites: tuple[Assumption, ...]
    inputs: int | None = None
    decisions: Decisions | None = None
    method: str = "diagonal"

    @property
    def agrees(self) -> bool:
        """Whether the variances are right, median and spread, as far as the reference can tell."""
        if self.undefined or self.ratio is None:
            return not self.undefined
        return self._median_agrees(self.ratio) and self._spread_agrees(self.ratio)

    @property
    def decides(self) -> bool | None:
        """Whether class probabilities are those of draws; None where they weren't compared."""
        of = self.decisions
        return None if of is None else max(of.ece, of.nll) <= _PROBABILITY + 2 * of.error

    @staticmethod
    def _median_agrees(ratio: Ratio) -> bool:
        return abs(ratio.median - 1) <= _MEDIAN + ratio.error

    @staticmethod
    def _spread_agrees(ratio: Ratio) -> bool:
        # Nine in ten ratios that are one scatter by this much from the reference's error alone.
        slack = 1.64 * ratio.error
        return ratio.low >= _LOW * (1 - slack) and ratio.high <= _HIGH * (1 + slack)

    @property
    def advice(self) -> str:
        """What is right or off, median and spread, and what to do, in a sentence or two."""
        if self.ratio is None:
            if not self.undefined:
                return "Nothing that is random reaches the results."
            return f"The variances are off: {self._way_out()}."
        ratio = self.ratio
        spread = f"nine in ten lie within {ratio.low:.2f} to {ratio.high:.2f} of the true ones"
        few = self.inputs is not None and self.inputs < _ENOUGH_INPUTS
        if self.agrees:
            # Agreement is what a small number of inputs can't show: the tail may lie elsewhere.
            asked = (
                f" This is of {self.inputs} inputs: ask {_ENOUGH_INPUTS} or more." if few else ""
            )
            return f"The variances agree ({spread}): take moments(f) as it is.{asked}"
        if not self.undefined and self._median_agrees(ratio):
            # A median alone would have called these right.
            return f"The median is right, but the variances spread ({spread}): {self._way_out()}."
        return f"The variances are off ({spread}): {self._way_out()}."

    def _way_out(self) -> str:
        """What to do about variances that are off."""
        spread = self.ratio.high / self.ratio.low if self.ratio and self.ratio.low > 0 else np.inf
        if not self.undefined and spread <= _COMMON:
            left = _HALF * np.log(spread)
            return (
                "mostly by one factor, so measure it with "
                "calibrate_moments(key, f, params, x), which leaves half of them "
                f"{left:.0%} off or more"
            )
        small = self.noise <= SMALL_NOISE and not _disagrees(self.linear_error, self.draws)
        if small and self.method != "linear":
            return 'take moments(f, method="linear"), for noise is small'
        first = f", first {', '.join(self._measured[0].shares[:3])}" if self._measured else ""
        if self.sites and not self._measured:
            first = " (moments_check(..., sites=True) says which)"
        return f"draw samples, or make fewer parameters random{first}"

    @property
    def _measured(self) -> tuple[Assumption, ...]:
        return tuple(one for one in self.sites if one.ratio is not None)

    @property
    def verdict(self) -> str:
        """The table's words without its rows, as `summary` and `deploy` take it (`verdict=`)."""
        if self.ratio is None:
            return self._words()
        return f"variances, divided by the true ones: {self.ratio}\n{self._words()}"

    def _words(self) -> str:
        source = 'method="linear"' if self.reference == "linear" else f"{self.draws} draws of f"
        error = "" if self.ratio is None else f", whose own error is {self.ratio.error:.0%}"
        parts = [
            f"results of the {self.method} method against {source}{error}; noise {self.noise:.1%}",
            f"sites against {self.draws} draws, whose own error is {(2 / self.draws) ** 0.5:.0%}",
            f"means within {self.mean_error:.2g} standard deviations (95 % of entries)",
            self.advice,
        ]
        if not self._measured:
            del parts[1]
        if self.decisions is not None:
            ece, nll, agreement, own_error = self.decisions
            parts.insert(
                -1,
                f"decisions {'agree' if self.decides else 'are off'}: beside {self.draws} draws, "
                f"whose own error is {own_error:.3f}, ECE {ece:.3f}, NLL {nll:+.3f}, "
                f"the same class for {agreement:.0%}",
            )
        if _disagrees(self.linear_error, self.draws):
            parts.insert(1, f'method="linear" is {self.linear_error:.0%} off those draws')
        if self.undefined:
            parts.insert(0, f"{self.undefined:.1%} of the variances are NaN or infinite")
        return "\n".join(parts)

    def _table(self) -> core.Table:
        rows = [_row("results", self.ratio)]
        rows += [_row(one.site or "(operand)", one.ratio) for one in self._measured[:_SHOWN]]
        columns = ("variance, divided by the true one", "median>", "5 %>", "95 %>")
        return core.Table(columns, rows, caption=self._words())


def _row(name: str, ratio: Ratio | None) -> tuple[str, ...]:
    if ratio is None:
        return name, "", "", ""
    return name, f"{ratio.median:.2f}", f"{ratio.low:.2f}", f"{ratio.high:.2f}"


# 8 parameters: a function and its arguments, what to compare with, and what to judge as well.
@core.validate(
    key=core.single_key,
    f=core.pure_function,
    params=core.input_batch,
    x=core.input_batch,
    draws=core.static_integer(2),
    sites=core.boolean,
    logits=core.boolean,
)
def moments_check(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    x: Any,
    draws: int | None = None,
    *,
    sites: bool = False,
    logits: bool = False,
    method: str = "auto",
) -> MomentsCheck:
    """Compares the moments of a function's results with a reference, and finds what is lost where.

    Args:
        key: A PRNG key, for draws.
        f: A pure function `f(params, x)`.
        params: Parameters with `Gaussian` leaves, or with factors (`calibrate_moments`).
        x: Inputs, a few like those to come; they may hold `Gaussian` leaves.
        draws: How many samples of `f` to compare with; a variance is then known to
            sqrt(2 / draws), 10 % for 200. None compares with `moments(f, method="linear")` where
            that isn't what `moments(f)` takes, noise is at most 10 % of the spread of its arrays
            and draws don't contradict it, and with 200 draws elsewhere.
        sites: Whether to measure how far each place is off by itself: their rules are compiled,
            which takes seconds for a small convolutional network, and a transformer of eight small
            blocks half as long again.
        logits: Whether `f` returns logits of classes along their last axis, so that what their
            softmax says is compared with draws as well: variances that are right by themselves
            decide wrongly where logits share noise, and wrong ones may hardly matter.
        method: The method that is checked, as for `moments`; "diagonal" is what a bundle computes.

    Returns:
        The ratio of the variances, the error of the means, the sites that lose most if asked for,
        and one sentence on what to do.

    Raises:
        ValueError: Fewer than 2 draws, nothing in the arguments is random, or `logits` are no
            array with an axis of classes.
        TypeError: `f` is a Flax model.
        MomentsError: As `moments`.
    """
    f = core.read_while_alive(f)
    of_method = moments(f, method=method)
    # Nothing here warns: what a warning would say is what is returned.
    plain, _ = uncalibrated((params, x))
    noise = _relative_noise(plain)
    method = of_method.explain(params, x).method
    # The linear method would agree with itself.
    linear = draws is None and noise <= SMALL_NOISE and method != "linear"
    count = DRAWS if draws is None else draws
    places = assumptions(f, params, x)
    reference = _reference(key, f, plain, count, places, sites, linear)
    ours = jax.tree.leaves(_moments_of(f, method)(params, x), is_leaf=is_gaussian)
    error = LINEAR_ERROR if reference.method == "linear" else float(np.sqrt(2 / count))
    ratio, mean_error, undefined = _compared(_random(ours, reference.moments), error)
    return MomentsCheck(
        ratio=ratio, mean_error=mean_error, undefined=undefined, reference=reference.method,
        draws=count, noise=noise, linear_error=reference.linear_error,
        sites=_worst_first(with_ratios(places, reference.errors)), inputs=_inputs(x),
        decisions=_decided(key, f, plain, ours, count) if logits else None, method=method,
    )  # fmt: skip


class _Reference(NamedTuple):
    """Moments of a function's results to compare with, None where they aren't random.

    Attributes:
        method: "linear" or "draws".
        moments: The moments.
        linear_error: How far the linear method is from draws, relative; None if that isn't known.
        errors: The ratios of places by themselves.
    """

    method: Literal["linear", "draws"]
    moments: Sequence[Gaussian | None]
    linear_error: float | None
    errors: Mapping[Place, Ratio | None]


def _reference(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    args: Sequence[Any],
    count: int,
    places: Assumptions,
    sites: bool,
    linear: bool,
) -> _Reference:
    """Computes a reference: by the linear method if asked for, and draws don't contradict it.

    With `sites` the ratios of the places come with the draws.
    """
    errors: dict[Place, Ratio | None] = {}
    sampled: list[Gaussian | None] = []
    if places or not linear:
        measured = places if sites else Assumptions()
        errors, sampled = site_ratios(key, f, (args, {}), {}, count, 1, measured)
    if not linear:
        return _Reference("draws", sampled, None, errors)
    delta = jax.tree.leaves(_moments_of(f, "linear")(*args), is_leaf=is_gaussian)
    linear_error = _error_of_linear(delta, sampled)
    # The samples that the sites need are there anyhow. What they contradict is no reference: small
    # noise of many layers may add up to more than a first order can say.
    if _disagrees(linear_error, count):
        return _Reference("draws", sampled, linear_error, errors)
    return _Reference("linear", delta, linear_error, errors)


def _moments_of(f: Callable[..., Any], method: str) -> Callable[..., Any]:
    """Returns compiled moments; those of a function that is read while it lives are kept."""
    # The delta method runs long enough: a pass backward for each result.
    options = None if method == "linear" else RUN_ONCE

    def compiled() -> tuple[Any, tuple[()]]:
        return jax.jit(moments(f, method=method), compiler_options=options), ()

    return core.kept_reading(f, (), {"moments": method}, compiled)


def _decided(
    key: PRNGKeyArray, f: Callable[..., Any], args: Any, ours: Sequence[Any], draws: int
) -> Decisions:
    """Compares class probabilities of moments with those of draws."""
    if len(ours) != 1 or ours[0].ndim < 2 or ours[0].shape[-1] < 2:
        raise ValueError(
            "moments_check: logits=True takes one array of results, [batch, ..., classes], not "
            f"{[np.shape(one) for one in ours]}; return the logits alone"
        )
    of_draws, of_moments = jax.random.split(key)
    leaves, structure = jax.tree.flatten(args, is_leaf=is_gaussian)

    @jax.jit
    def drawn(keys: Any, leaves: Sequence[Any]) -> tuple[Any, Any]:
        def add(sums: Any, key: PRNGKeyArray) -> tuple[Any, None]:
            result = f(*jax.tree.unflatten(structure, sample_all(key, leaves)))
            p = jax.nn.softmax(jax.tree.leaves(result)[0])
            return (sums[0] + p, sums[1] + p**2), None

        # One network after the other: memory is that of one.
        zero = jnp.zeros(ours[0].shape, ours[0].dtype)
        total, squares = jax.lax.scan(add, (zero, zero), keys)[0]
        return total / draws, squares / draws

    mean, squares = (np.asarray(a, float) for a in drawn(jax.random.split(of_draws, draws), leaves))
    said = np.asarray(jax.nn.softmax(ours[0].sample(of_moments, (draws,))).mean(0), float)
    classes = said.shape[-1]
    said, mean, squares = (a.reshape(-1, classes) for a in (said, mean, squares))
    top = said.argmax(-1)[:, None]
    ours_top, true_top = (np.take_along_axis(a, top, 1)[:, 0] for a in (said, mean))
    place = np.minimum((ours_top * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(place, ours_top - true_top, _BINS)
    spread = np.sqrt(np.maximum(squares - mean**2, 0) / draws)
    tiny = np.finfo(np.float32).tiny
    ratio = np.maximum(mean, tiny) / np.maximum(said, tiny)
    return Decisions(
        ece=float(np.abs(gaps).sum() / len(said)),
        nll=float((mean * np.log(ratio)).sum(-1).mean()),
        agreement=float((mean.argmax(-1) == top[:, 0]).mean()),
        error=float(np.take_along_axis(spread, top, 1).mean()),
    )


def _inputs(x: Any) -> int | None:
    """Counts the inputs of a batch; None where its arrays differ in their first axis."""
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(x, is_leaf=is_gaussian)}
    return sizes.pop()[0] if len(sizes) == 1 and sizes != {()} else None


def _random(first: Sequence[Any], second: Sequence[Any]) -> list[tuple[Gaussian, Gaussian]]:
    """Pairs the results that are random by both."""
    pairs = zip(first, second, strict=True)
    return [(a, b) for a, b in pairs if is_gaussian(a) and is_gaussian(b)]


def _error_of_linear(delta: Sequence[Any], sampled: Sequence[Any]) -> float | None:
    """Computes how far the median variance of the delta method is from the draws', relative."""
    ratio = _compared(_random(delta, sampled), 0.0)[0] if sampled else None
    return None if ratio is None else abs(ratio.median - 1)


def _disagrees(linear_error: float | None, draws: int) -> bool:
    """Tells whether draws contradict the delta method.

    Entries share their draws, so that a median may be off as much as one entry: two errors.
    """
    return linear_error is not None and linear_error > LINEAR_ERROR + 2 * (2 / draws) ** 0.5


def _relative_noise(args: Any) -> float:
    """Computes the root mean square of noise over the spread of its array, over all entries."""
    leaves = [v for v in jax.tree.leaves(args, is_leaf=is_gaussian) if is_gaussian(v)]
    if not leaves:
        raise ValueError(
            "moments_check: nothing is random; give params with Gaussian leaves, as "
            "svi(...).posterior, or a Gaussian input."
        )
    total = size = 0.0
    for leaf in leaves:
        mean, var = np.asarray(leaf.mean, float), np.asarray(leaf.var, float)
        # A constant array (biases at zero) has no spread of its own to compare with.
        if mean.size and np.var(mean) > 0:
            total += mean.size * float(np.mean(var) / np.var(mean))
            size += mean.size
    return float(np.sqrt(total / size)) if size else float("inf")


def _compared(
    pairs: list[tuple[Gaussian, Gaussian]], error: float
) -> tuple[Ratio | None, float, float]:
    """Compares results with the reference: variances, means, and the share that is undefined."""
    if not pairs:
        return None, 0.0, 0.0
    mean, var = _flat([a.mean for a, _ in pairs]), _flat([a.var for a, _ in pairs])
    true_mean, true_var = _flat([b.mean for _, b in pairs]), _flat([b.var for _, b in pairs])
    finite = np.isfinite(var)
    varies = finite & (true_var > 0)
    undefined = float(np.mean(~finite)) if finite.size else 0.0
    if not varies.any():
        return None, 0.0, undefined
    off = np.abs(mean - true_mean)[varies] / np.sqrt(true_var[varies])
    ratio = Ratio.of(var[varies] / true_var[varies], error)
    return ratio, float(np.quantile(off, 0.95)), undefined


def _flat(parts: Sequence[Any]) -> np.ndarray:
    return np.concatenate([np.ravel(part).astype(float) for part in parts])


def _worst_first(places: tuple[Assumption, ...]) -> tuple[Assumption, ...]:
    """Orders places by how far their variances are off, one of each layer."""

    def loss(one: Assumption) -> float:
        if one.ratio is None:
            return -1.0
        return abs(float(np.log(max(one.ratio.median, 1e-12))))

    layers = {(one.site, one.kind): one for one in reversed(places)}
    return tuple(sorted(reversed(layers.values()), key=loss, reverse=True))
