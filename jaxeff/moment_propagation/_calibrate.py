"""`calibrate_moments`: corrects variances by a factor per site and channel, measured once.

```python
import jax

import jaxeff
from jaxeff.moment_propagation import calibrate_moments
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
calibrated = calibrate_moments(jax.random.key(0), f, posterior, x[:100])
logits = jaxeff.moments(f)(calibrated, x)
```

The function is run on samples once, and for every site that combines entries the ratio of the
sampled variance to the rule's, given already calibrated inputs, is kept: one factor per channel.
Klein's thesis, section 8.3, scales the variance of a whole network by one factor chosen by hand
(its calibration factor, 0.3 and 0.4); here factors are measured.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its `special` is loaded when first used, a fifth of a second after import
from jaxtyping import Array, PRNGKeyArray

from jaxeff import core
from jaxeff.moment_propagation import _calibrated as calibrated
from jaxeff.moment_propagation import _moment_pass as moment_pass
from jaxeff.moment_propagation._moment_pass import IN_SHORT, Propagation
from jaxeff.moment_propagation._moments import RUN_ONCE, Sampling, floats, random_values
from jaxeff.moment_propagation._values import (
    Gaussian,
    Pooled,
    is_gaussian,
    is_random,
    to_variance,
)
from jaxeff.moment_propagation.linear import batched_leaves, linear_moments
from jaxeff.moment_propagation.rules import Rule
from jaxeff.program import Layer, Program, once_for_equal
from jaxeff.program.ir import Value

_METHODS = ("diagonal", "linear")
_LARGEST, _GROUPS = 8, 8
_ALIKE = 0.5
"""Standard deviation of weights' variances over their mean, up to which they hardly differ."""
_PRODUCTS = {"linear", "matmul"}
"""Kinds of layers that are cheaper with one variance an array."""


@dataclass(frozen=True)
class Groups:
    """How the inputs of a function are divided.

    Draws are split among groups of up to eight inputs, each with its own: at the same price, 256
    inputs with 25 draws leave a smaller error than 32 with 200, for inputs that share their draws
    share most of the draws' error, which then doesn't average out over them.

    Attributes:
        batched: Marks of leaves of the arguments that hold an input per place of their first axis.
        count: Number of groups.
        size: Number of inputs in each.
    """

    batched: tuple[bool, ...]
    count: int
    size: int

    @property
    def members(self) -> np.ndarray:
        """For each input the number of its group."""
        return np.repeat(np.arange(self.count), self.size)

    def part(self, args: Any, start: int, stop: int) -> Any:
        """Selects the inputs of the groups from one to before another."""
        rows = slice(start * self.size, stop * self.size)
        leaves, structure = jax.tree.flatten(args, is_leaf=is_gaussian)
        selected = [
            jax.tree.map(lambda a: a[rows], leaf) if b else leaf
            for leaf, b in zip(leaves, self.batched, strict=True)
        ]
        return jax.tree.unflatten(structure, selected)

    def axes(self, of_all: Sequence[Value], of_group: Sequence[Value]) -> list[int | None] | None:
        """Finds the axis along which each value of all inputs consists of those of groups.

        Returns one per value, None for one that no input reaches; or None if groups don't fit.
        """
        if len(of_all) != len(of_group):
            return None
        group_axes: list[int | None] = []
        for all_of, one in zip(of_all, of_group, strict=True):
            shapes = all_of.aval.shape, one.aval.shape
            if len(shapes[0]) != len(shapes[1]):
                return None
            differ = [i for i, (n, m) in enumerate(zip(*shapes, strict=True)) if n != m]
            # A second axis that differs is one over pairs of inputs.
            if len(differ) > 1 or any(shapes[0][i] != shapes[1][i] * self.count for i in differ):
                return None
            group_axes.append(differ[0] if differ else None)
        return group_axes


def groups_of(batched: Sequence[bool], examples: int) -> Groups:
    """Divides inputs: groups of eight, or smaller so that there are eight of them."""
    size = min(_LARGEST, examples // _GROUPS)
    if size < 1 or not any(batched):
        return Groups(tuple(batched), 1, examples)
    return Groups(tuple(batched), examples // size, size)


def joined(parts: Sequence[np.ndarray], axis: int | None) -> np.ndarray:
    """Joins what groups have of one value; of one that no input reaches, takes the mean."""
    if axis is None:
        return np.mean(parts, 0, dtype=parts[0].dtype)
    return np.concatenate(parts, axis)


# Calls that the draws of all groups are spread over: the progress bar moves as often.
_CALLS = 20


class SampledProgram(NamedTuple):
    """A program, what its inputs hold, and the values that are sampled.

    `prepared` is the program as its sites are evaluated; the program itself where only results are.
    """

    program: Program
    values: Sequence[Any]
    wanted: Sequence[Value]
    prepared: Program


class Drawn(NamedTuple):
    """Logarithms of sampled variances, without the bias that a logarithm has.

    Attributes:
        logs: One array per sampled value, of all draws.
        halves: For each sampled value that is a result, the same of either half of them.
    """

    logs: list[Any]
    halves: list[tuple[Any, Any]]


def drawn(
    f: Callable[..., Any],
    keys: PRNGKeyArray,
    complete: SampledProgram,
    part: SampledProgram,
    groups: Groups,
    progress: bool | None,
    posterior: Any = None,
) -> Drawn:
    """Samples the variances of values; what is compiled, once, is kept with `f`, which was read.

    Keys are of all draws, `[groups, chunks, chunk]`, at least two chunks; `complete` reads all
    inputs, `part` a group; `posterior` has draws of its own in the place of the first values.
    """
    inputs = groups.axes(complete.program.inputs, part.program.inputs) or [None] * len(
        complete.values
    )
    sampling = Sampling(part.program, part.wanted, keys.shape[2])
    start = _values_of_group(complete, inputs, 0, groups)

    def compiled() -> tuple[Any, tuple[()]]:
        return sampling.compiled(start, keys[0], posterior), ()

    # Another posterior may draw otherwise.
    results = [i for i, v in enumerate(part.wanted) if v in part.program.outputs]
    places = tuple(i for i, v in enumerate(floats(part.program)) if v in part.wanted)
    form = {"draws": (keys.shape, places)}
    add = core.kept_reading(f, start, form, compiled) if posterior is None else compiled()[0]
    by_group: list[list[np.ndarray]] = []
    chunks, chunk = keys.shape[1:]
    calls = max(1, _CALLS // (2 * groups.count))
    stops = np.linspace(0, chunks, 2 * calls + 1).astype(int).tolist()
    count, middle = chunks * chunk, stops[calls] * chunk
    with core.progress_bar(progress, "draw", keys.size, 0) as advance:
        for group in range(groups.count):
            values = _values_of_group(complete, inputs, group, groups)
            sums = sampling.start(add, values, keys[group])
            for number, (first, last) in enumerate(itertools.pairwise(map(np.int32, stops))):
                sums = jax.block_until_ready(add(sums, values, keys[group], first, last))
                if number == calls - 1:
                    early = [(np.array(sums.first[i]), np.array(sums.second[i])) for i in results]
                advance(int(last - first) * chunk, "")
            totals = [(np.asarray(a), np.asarray(b)) for a, b in zip(*sums[1:], strict=True)]
            # What isn't in the first half of the draws is in the second one.
            late = [(totals[i][0] - a, totals[i][1] - b)
                    for i, (a, b) in zip(results, early, strict=True)]  # fmt: skip
            by_group.append([
                *(_log_variance(*total, count) for total in totals),
                *(_log_variance(*half, middle) for half in early),
                *(_log_variance(*half, count - middle) for half in late),
            ])  # fmt: skip
    axes = groups.axes(complete.wanted, part.wanted) or [None] * len(complete.wanted)
    along = [*axes, *(axes[i] for i in (*results, *results))]
    parts = zip(zip(*by_group, strict=True), along, strict=True)
    logs = [joined(of_groups, axis) for of_groups, axis in parts]
    halves = logs[len(axes) :]
    pairs = zip(halves[: len(results)], halves[len(results) :], strict=True)
    return Drawn(logs[: len(axes)], list(pairs))


def _values_of_group(
    complete: SampledProgram, inputs: Sequence[int | None], group: int, groups: Groups
) -> list[Any]:
    def one(value: Any, axis: int | None) -> Any:
        if axis is None:
            return value
        return jax.tree.map(lambda a: np.split(np.asarray(a), groups.count, axis)[group], value)

    # The same values as the whole program reads, so that the function needn't be read again.
    return [one(value, axis) for value, axis in zip(complete.values, inputs, strict=True)]


def _log_variance(first: np.ndarray, second: np.ndarray, count: int) -> np.ndarray:
    """Computes the logarithm of the unbiased variance from sums of offsets and of their squares."""
    var = np.maximum(second - first * (first / count), 0) / max(count - 1, 1)
    # The logarithm of a sampled variance of a normal value is too small on average by what the
    # digamma function says: 4 % at 25 draws.
    half = max(count - 1, 1) / 2
    bias = float(scipy.special.digamma(half) - np.log(half))
    logs = np.full(var.shape, -np.inf, np.float32)
    return np.log(var, out=logs, where=var > 0, casting="unsafe") - np.float32(bias)


# More than 200 draws an input leave nothing that can be seen; fewer than 25 make the logarithm of a
# variance too noisy to tell forms by.
_EVALUATIONS, _FEWEST_DRAWS, _MOST_DRAWS = 6400, 25, 200
_FEWEST_JUDGED = 8


def _posterior(where: str, value: Any) -> None:
    # What draws by itself is computed when it is asked; its numbers are its own matter.
    if not hasattr(value, "draws"):
        core.input_batch(where, value)


# 10 parameters: `**kwargs` are those of `f`, so that no options can be gathered there.
@core.validate(
    posterior=_posterior,
    args=core.input_batch,
    samples=lambda where, n: None if n is None else core.check_count(where, n, 2),
    rules=core.instance_of(Mapping),
)
def calibrate_moments(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    posterior: Any,
    *args: Any,
    rules: Mapping[Any, Rule] | None = None,
    samples: int | None = None,
    chunk: int = 1,
    method: str = "diagonal",
    pool_variances: bool = False,
    form: str = "best",
    progress: bool | None = None,
    **kwargs: Any,
) -> calibrated.Calibrated:
    """Measures what the variances of `moments(f)` have to be multiplied by, per site and channel.

    Sharp edges
    - Factors were measured on a batch; inputs of another kind may have others. `repr` states the
      median error on inputs that they weren't measured on, and that number's standard error.
    - A function of one input doesn't depend on the others of its batch: they are asked in groups.
      Where a result mixes inputs, all share their draws.
    - Factors of positions (scores of attention that wasn't recognised) have their mean in common
      where a sequence is of another length.
    - They belong to the posterior: another one, or another scale of noise at the input, has others.
    - What is compiled is kept as long as `f` lives, so that a second call is fast; as under
      `jax.jit`, what `f` reads of global names counts as it was at first.
    - Means are left as they are. Covariances between results stay unknown.

    Args:
        key: A PRNG key.
        f: A pure function `f(params, *args)`.
        posterior: A pytree in the place of `params`; its `Gaussian` leaves are random. Or any
            posterior of `jaxeff.bayes`, such as a Laplace approximation or a sampler's draws:
            factors are then those between `moments(f)` of its Gaussians and draws of its own, so
            that they hold what its correlations do to the results.
        *args: Further arguments: a batch of inputs like those to come, 64 to 256 of them; they may
            hold `Gaussian` leaves too.
        samples: Number of draws for each input. By default 6,400 evaluations of one input are
            spread over all of them, at least 25 and at most 200 for each.
        chunk: Number of samples that run at once; memory is this many times that of `f`.
        rules: Same as for `moments`.
        method: "diagonal" measures factors of sites, for the diagonal pass. "linear" measures them
            for `moments(f, method="linear")`, one per entry of a result's last axis.
        pool_variances: Whether an array of weights whose variances hardly differ gets their mean
            before factors of sites are measured: a product takes a third less, draws of the
            returned posterior have it too, and where weights' variances tell something, a little of
            it is lost. Its `Gaussian` then has one variance, of shape ().
        form: "static": a factor per site and channel. "inputs": a regression of each result's ratio
            on the mean and variance that the diagonal pass gives it. "best": the second where it
            errs surely less on inputs that it wasn't measured on, else the first; the first where
            there are fewer than 8 inputs or more than 64 channels. Static with the linear method.
        progress: Whether to show a bar of draws; see `jaxeff.core`.
        **kwargs: Further arguments.

    Returns:
        The posterior, as Gaussians, with its factors, for `moments(f)`, `deploy` and files.

    Raises:
        ValueError: Fewer than 2 samples, an unknown method or form, or nothing in the arguments is
            random.
        MomentsError: As `moments`.
    """
    if method not in _METHODS:
        raise ValueError(
            f"calibrate_moments: method {method!r} is unknown; choose one of {_METHODS}."
        )
    if not kwargs:  # else what is compiled depends on more than shapes
        f = core.read_while_alive(f)
    source = None
    if isinstance(posterior, calibrated.Calibrated):
        posterior = posterior.posterior
    elif hasattr(posterior, "draws"):
        source, posterior = posterior, posterior.to_gaussians()
    _check(form, (posterior, *args, *kwargs.values()))
    linear = method == "linear"
    in_short = {} if linear else IN_SHORT
    propagation = Propagation({**in_short, **(rules or {})}, "variance", lambda one: None)
    inputs: tuple[Any, Any] = (posterior, *args), dict(kwargs)
    inputs, groups, complete, part = _in_groups(f, inputs, propagation, linear)
    program, values, wanted, _ = complete
    if pool_variances and not linear:
        posterior = _with_pooled_variances(posterior, program)
        inputs = (posterior, *inputs[0][1:]), inputs[1]
        leaves = jax.tree.leaves(posterior, is_leaf=is_gaussian)
        pooled = [Pooled.of(v) if is_gaussian(v) else v for v in leaves]
        values = [*pooled, *values[len(pooled) :]]
    keys = _keys(key, samples, chunk, groups)
    # Draws of different groups are independent, so a factor over all has that many.
    noise = 2 / keys.size
    ends = [v for v in wanted if v in program.outputs]

    measure = _measure(propagation, linear, f, complete, noise)
    # Before any draw: what has no rule is refused in seconds, not after minutes.
    like = Drawn(
        *jax.tree.map(
            lambda v: jax.ShapeDtypeStruct(v.aval.shape, jnp.float32),
            ([*wanted], [(v, v) for v in ends]),
        )
    )
    members = np.zeros(1, int) if linear else groups.members
    # A half of fewer than 4 draws has hardly a variance to judge by.
    judged = members if keys[0].size >= _FEWEST_JUDGED else np.zeros_like(members)
    rows, scale = np.ones(len(members), np.float32), np.float32(1)
    static = {"factors": (tuple((rules or {}).items()), method, noise)}
    finish = core.kept_reading(
        f,
        inputs,
        static,
        lambda: (jax.jit(measure).lower(like, rows, scale, values, *inputs).compile(RUN_ONCE), ()),
    )
    sampled = drawn(f, keys, complete, part, groups, progress, source)
    chosen = calibrated.choose(
        "static" if linear else form,
        judged,
        lambda rows, scale: finish(sampled, rows, np.float32(scale), values, *inputs),
    )
    stated = tuple((at, float(np.median(np.asarray(e)))) for at, e in chosen.errors.items())
    return calibrated.Calibrated(posterior, chosen.factors, stated, chosen.unseen)


def _measure(
    propagation: Propagation,
    linear: bool,
    f: Callable[..., Any],
    complete: SampledProgram,
    noise: float,
) -> Callable[..., calibrated.FactorPass]:
    """Makes the pass that compares propagated variances with sampled ones.

    `linear` if factors are of the linear method's results alone; `noise` is the variance of the
    logarithm of a factor over all draws.
    """
    program, _, wanted, prepared = complete
    ends = [v for v in wanted if v in program.outputs]

    def measure(
        sampled: Drawn, rows: Array, scale: Array, values: Sequence[Any], args: Any, kwargs: Any
    ) -> calibrated.FactorPass:
        logs = dict(zip(wanted, sampled.logs, strict=True))
        halves = dict(zip(ends, sampled.halves, strict=True))
        factors = calibrated.FactorPass({}, {}, {})

        def keep(number: int, atom: Any, ours: Gaussian) -> None:
            both = jnp.stack([logs[atom], *halves[atom]])
            factors.results[number] = ours, both

        if linear:
            # Those variances are of results alone, so there is one factor per result and none
            # inside.
            full = linear_moments(moment_pass.read(f, args, kwargs))
            leaves = jax.tree.leaves(full, is_leaf=is_gaussian)
            for i, (atom, ours) in enumerate(zip(program.outputs, leaves, strict=True)):
                if isinstance(atom, Value) and atom in logs:
                    site = f"{calibrated.RESULT}{i}"
                    factor, factors.errors[site] = _factor(ours, logs[atom], rows, noise)
                    factors.factors[site] = factor
                    keep(i, atom, Gaussian(ours.mean, ours.var * factor**scale))
            return factors

        uncorrected = once_for_equal(prepared, propagation.layer)

        def rule(layer: Layer, layer_key: Any, *operands: Any) -> Any:
            outputs = uncorrected(layer, layer_key, *operands)
            result = layer.outputs[0]
            if result not in logs or not calibrated.is_scaled(layer, outputs[0]):
                return outputs
            ours = to_variance(outputs[0])
            factor, error = _factor(ours, logs[result], rows, noise)
            # The calibrated variance goes on, so that a later factor corrects what its own layer
            # adds and not what has been corrected before.
            factors.factors[layer.site], factors.errors[layer.site] = factor, error
            return [Gaussian(ours.mean, ours.var * factor**scale), *outputs[1:]]

        outputs = propagation.outputs(prepared, rule, values)
        for i, (atom, ours) in enumerate(zip(program.outputs, outputs, strict=True)):
            if isinstance(atom, Value) and atom in logs and is_random(ours):
                keep(i, atom, to_variance(ours))
        return factors

    return measure


def _with_pooled_variances(posterior: Any, program: Program) -> Any:
    """Gives weights of products one variance for each array, where theirs hardly differ.

    What is lost of a sum of n terms is a share of `_ALIKE` over the root of n, most of which
    factors make up for.
    """
    leaves, structure = jax.tree.flatten(posterior, is_leaf=is_gaussian)
    read_otherwise = {v for layer in program.layers if layer.kind not in _PRODUCTS
                      for v in layer.inputs}  # fmt: skip

    def pooled(weight: Any, value: Value) -> Any:
        if not is_gaussian(weight) or weight.ndim < 2 or value in read_otherwise:
            return weight
        mean = jnp.mean(weight.var)
        alike = jnp.std(weight.var) <= _ALIKE * mean
        return Gaussian(weight.mean, mean) if alike else weight

    # Parameters come first among the inputs.
    inputs = program.inputs[: len(leaves)]
    return jax.tree.unflatten(
        structure, [pooled(w, v) for w, v in zip(leaves, inputs, strict=True)]
    )


def _check(form: str, arguments: Any) -> None:
    """Checks what `validate` can't: names, and that something is random."""
    if form not in calibrated.FORMS:
        raise ValueError(
            f"calibrate_moments: form {form!r} is unknown; choose one of {calibrated.FORMS}."
        )
    if not any(map(is_gaussian, jax.tree.leaves(arguments, is_leaf=is_gaussian))):
        raise ValueError(
            "calibrate_moments: nothing is random; give a posterior with Gaussian leaves, as "
            "svi(...).posterior, or a Gaussian input."
        )


def _keys(key: PRNGKeyArray, samples: int | None, chunk: int, groups: Groups) -> PRNGKeyArray:
    """Splits a key into one per draw, `[groups, chunks, chunk]`."""
    if samples is None:
        spread = _EVALUATIONS // (groups.count * groups.size)
        samples = min(max(spread, _FEWEST_DRAWS), _MOST_DRAWS)
    # Two chunks at least, one for either half of the draws.
    chunk = min(chunk, -(-samples // 2))
    return jax.random.split(key, (groups.count, -(-samples // chunk), chunk))


def _in_groups(
    f: Callable[..., Any],
    inputs: tuple[Any, Any],
    propagation: Propagation,
    linear: bool,
) -> tuple[tuple[Any, Any], Groups, SampledProgram, SampledProgram]:
    """Divides the inputs into groups, if every random result consists of those of its inputs."""

    def reading(args: Any, kwargs: Any) -> SampledProgram:
        program, values, _ = moment_pass.read(f, args, kwargs)
        prepared = program if linear else propagation.prepare(program, values)
        wanted = _measured(program, prepared, values, linear)
        return SampledProgram(program, values, wanted, prepared)

    args, kwargs = inputs
    complete = reading(args, kwargs)
    leaves = jax.tree.leaves(args, is_leaf=is_gaussian)
    batched = batched_leaves(complete.program, len(leaves))
    sizes = [np.shape(x)[0] for x, b in zip(leaves, batched, strict=True) if b]
    groups = groups_of(batched, sizes[0] if sizes else 1)
    one = Groups(groups.batched, 1, sizes[0] if sizes else 1)
    if groups.count == 1 or linear:
        return inputs, one, complete, complete
    if groups.count * groups.size < sizes[0]:  # the rest of a last group is left out
        args = groups.part(args, 0, groups.count)
        complete = reading(args, kwargs)
    part = reading(groups.part(args, 0, 1), kwargs)
    axes = groups.axes(complete.wanted, part.wanted)
    ends = [v in complete.program.outputs for v in complete.wanted]
    # A result that no input's own axis reaches (a mean over the batch) isn't one of groups.
    if axes is None or any(end and axis is None for end, axis in zip(ends, axes, strict=True)):
        return inputs, one, *(reading(*inputs),) * 2
    return (args, kwargs), groups, complete, part


def _measured(
    program: Program, prepared: Program, values: Sequence[Any], of_results: bool
) -> list[Value]:
    """Finds the values whose sampled variance a factor is made of.

    Sums over all values of a network would take longer than the network itself.
    """
    ends = {v for v in program.outputs if isinstance(v, Value)}
    if not of_results:
        ends |= {layer.outputs[0] for layer in prepared.layers if calibrated.may_scale(layer)}
    return [v for v in random_values(program, values) if v in ends]


@functools.partial(jax.jit, static_argnums=3)
def _factor(ours: Gaussian, logs: Array, rows: Array, noise: float) -> tuple[Array, Array]:
    """Computes the factor of each channel, and its relative standard error.

    The factor is the geometric mean of the entries' ratios, so that no entry dominates. Its
    error from sampling is at most that of an entry, for entries of a channel share their samples.
    Channels are drawn towards their common mean by as much as their spread is explained by that
    error (James and Stein 1961).
    """
    # An entry without variance (masked, dead) has no ratio and is left out.
    known = (ours.var > 0) & jnp.isfinite(logs)
    ratios = jnp.where(known, logs, 0) - jnp.log(jnp.where(known, ours.var, 1))
    axes = tuple(range(ours.ndim - 1))
    if axes and ours.shape[0] % rows.size == 0:
        weights = jnp.repeat(rows, ours.shape[0] // rows.size) > 0
        known &= weights.reshape(-1, *(1,) * (ours.ndim - 1))
    ratio = jnp.sum(jnp.where(known, ratios, 0), axes) / jnp.maximum(jnp.sum(known, axes), 1)
    # The noise is the variance of the logarithm of a sample variance, for normal results. Its share
    # in the spread of the channels is how far they are shrunk to their common mean.
    spread = jnp.maximum(jnp.var(ratio) - noise, 0)
    kept = spread / (spread + noise)
    common = jnp.mean(ratio)
    error = jnp.sqrt(noise * (kept + (1 - kept) / max(ratio.size, 1)))
    return jnp.exp(common + kept * (ratio - common)), jnp.full(ratio.shape, error)
