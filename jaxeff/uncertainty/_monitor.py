"""`monitor`: a pure step that predicts, and keeps watch over inputs, sets and drift.

```python
import jax
from jaxeff.nn import small_classifier
from jaxeff.uncertainty import APS, Monitoring, conformalize, monitor, msp

f, params, (x, y) = small_classifier()
calibration = conformalize(f(params, x[:64]), y[:64], APS(), 0.8)
watch = Monitoring(coverage=0.8)
step, state = monitor(jax.random.key(0), f, params, x[64:128], calibration, msp, watch)
for one, label in zip(x[128:140, None], y[128:140, None]):
    seen, state = jax.jit(step)(params, one, label, state)      # label -1: not known
print(seen.unknown_rate, seen.coverage, seen.evidence, seen.alarm)
```

The state is some thirty numbers, whatever the network: counts of held-out and later scores in a few
bins, running means, and the evidence of drift. It scans, vmaps over streams, deploys with
``state=("state",)``, and goes into C.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, UInt32

from jaxeff import core
from jaxeff.uncertainty import _conformal, _martingale, _selective

Share = Annotated[float, core.Number(above=0, below=1)]


@core.register_setting
class Monitoring(core.Setting):
    """How a stream is watched.

    The alarm needs no labels. Scores of the inputs fall into bins, of which a bin's p-value is
    taken among all that came before, held-out ones included; so p-values are exact, and the alarm's
    rate is as stated, for any network and any score, with as few held-out inputs as there are. Half
    of those make the bins and the other half the counts: bins of the same ones would favour them.
    The martingale and its papers are in `exchangeability`.

    Sharp edges:
        Inputs that depend on each other, such as overlapping windows of one sound, are not
        exchangeable though nothing drifts: give each event once, or every tenth window.
        A drift becomes the new normal: bins count what comes. Shiryaev-Roberts goes on to alarm
        until then; begin anew with the first state, or with held-out inputs of the new kind.
        Rates of alarms are of all draws of the key. Streams with one key, such as devices that run
        the same program, have their false alarms together: give each its own ``state.key``, two
        random words.
        What drifts in no score isn't seen. A score may be of anything: a variance, a distance, a
        norm, the loudness of a sound. Of several scores each has a martingale of its own, and the
        evidence is the most of theirs over their number (Bonferroni), so that "ville" keeps its
        rate, however they depend on each other; of "shiryaev_roberts" it is about that.
        From 16 million inputs on, counts in float32 stand still.

    Attributes:
        coverage: How often sets are to hold the truth.
        rate: What the sets' threshold moves by at the most, as of `online_conformal`; 0: it stays.
        delay: Labels of a step are of the inputs so many steps before.
        batch_size: Inputs of a step.
        unknown: Share of held-out inputs that count as unknown.
        window: Number of latest inputs that running means are of, about.
        false_alarms: The alarm's rate without drift: of "ville" the probability that a stream ever
            has one; of "shiryaev_roberts" one over the mean number of inputs before the next.
        procedure: "ville": one alarm, that stays. "shiryaev_roberts": begins anew behind an alarm,
            and is as quick after a year as on the first day.
        bins: Number of bins of scores.
    """

    coverage: Share = core.static(0.9)
    rate: core.NonNegative = core.static(0.0)
    delay: Annotated[int, core.Count(0)] = core.static(0)
    batch_size: Annotated[int, core.Count(1)] = core.static(1)
    unknown: Share = core.static(0.05)
    window: Annotated[int, core.Count(1)] = core.static(100)
    false_alarms: Share = core.static(0.01)
    procedure: Annotated[str, core.Choice("ville", "shiryaev_roberts")] = core.static("ville")
    bins: Annotated[int, core.Count(2)] = core.static(16)


class MonitorState(NamedTuple):
    """What a monitor keeps between steps.

    Attributes:
        threshold: The largest score inside of sets.
        unknown_rate: Running share of unknown inputs.
        coverage: Running share of sets that held the truth, of those whose truth came.
        known: Number of truths that came.
        counts: Held-out and later scores in each bin, `[scores, bins]`.
        capital: The test martingale of each score.
        alarm: Whether drift was found.
        key: Words of a random key, for ties of p-values.
        regions: Sets whose truth is awaited, with an axis of `delay` before the batch's.
    """

    threshold: Float[Array, ""]
    unknown_rate: Float[Array, ""]
    coverage: Float[Array, ""]
    known: Float[Array, ""]
    counts: Float[Array, "scores bins"]
    capital: _martingale.Capital
    alarm: Bool[Array, ""]
    key: UInt32[Array, " words"]
    regions: Any


class Reading(NamedTuple):
    """What a step tells.

    Attributes:
        outputs: What the function returned.
        region: The conformal sets, as of `conformal`.
        unknown: A mask of the inputs that score higher than nearly all held-out ones, `[batch]`;
            of several scores those of which any does.
        unknown_rate: Running share of those.
        coverage: Running share of sets that held the truth.
        evidence: The evidence of drift, its most in the batch; the alarm is where it reaches
            ``1 / false_alarms``.
        alarm: Whether drift was found.
    """

    outputs: Any
    region: Any
    unknown: Bool[Array, " batch"]
    unknown_rate: Float[Array, ""]
    coverage: Float[Array, ""]
    evidence: Float[Array, ""]
    alarm: Bool[Array, ""]


Step = Callable[[Any, Any, Any, MonitorState], tuple[Reading, MonitorState]]
Learn = Callable[[Any, Any, Any, Any], tuple[Any, Any]]


@core.validate(
    f=core.function_of_form("f(params, x)"),
    x=core.input_batch,
    calibration=core.instance_of(_conformal.ConformalCalibration),
    score=core.function_of_form("score(outputs)"),
    spec=core.instance_of(Monitoring),
)
def monitor(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    x: Any,
    calibration: _conformal.ConformalCalibration,
    score: Callable[[Any], Float[Array, " batch *scores"]],
    spec: Monitoring | None = None,
) -> tuple[Step, MonitorState]:
    """Makes a step that predicts and watches: the unknown, coverage, and drift.

    With evidence ``A_n = (A_{n-1} + w_n) e_n`` of bets e_n on conformal p-values, a stream without
    drift ever alarms with a probability of at most `false_alarms` (``w_n = 1 / (n (n + 1))``;
    Ville's inequality), or after at least ``1 / false_alarms`` inputs in the mean (``w_n = 1``;
    Shiryaev and Roberts). `exchangeability` has the bets and papers.

    With a `rate` the threshold follows the truth as in `online_conformal`. With a delay of d steps
    of b inputs each, the share outside differs from what was asked by at most ``(high - low +
    (d + 1) b rate) / (rate n)`` after n truths, for scores between `low` and `high`: up to (d + 1)
    b moves are under way when the threshold leaves their range.

    Args:
        key: A random key, for ties of p-values; another one for each device.
        f: ``f(params, x)``, such as ``jaxeff.moments(f)``.
        params: Parameters of the function.
        x: Held-out inputs, of the kind that is normal.
        calibration: From `conformalize`: the sets' method, and their threshold to begin with.
        score: A function of outputs that says how unknown each input is, `[batch]`, or several,
            `[batch, scores]`; higher is less known.
        spec: Rates, delay, and the alarm's procedure; `Monitoring()` if None.

    Returns:
        ``step(params, x, targets, state) -> (Reading, state)``, and the first state. Targets
        ``[batch]`` are of the inputs `delay` steps before, -1 (of numbers: NaN) where the truth
        isn't known, as in the first `delay` steps. Scores that aren't numbers count as unknown.

    Raises:
        ValueError: There are thresholds of groups or classes, or fewer than two held-out inputs.
    """
    spec = Monitoring() if spec is None else spec
    _check_one_threshold(calibration)
    outputs = jax.jit(f)(params, x)
    held = _checked_scores(score(outputs))
    limits, edges, counts = _of_held_out(held, spec)
    first = _first_state(spec, calibration, counts, jax.random.bits(key, (2,), jnp.uint32), outputs)

    def step(params: Any, x: Any, targets: Any, state: MonitorState) -> tuple[Reading, Any]:
        outputs = f(params, x)
        scores = _rows_of_scores(score(outputs))
        region = calibration.method.region(outputs, state.threshold)
        state, due = _queued(state, region)
        state = _told(spec, calibration.method, state, due, targets)
        unknown = ~(scores <= limits[None]).all(-1)  # where a score is no number, too
        state, evidence = _watched(spec, state, _bins(scores, edges), unknown)
        rates = state.unknown_rate, state.coverage
        return Reading(outputs, region, unknown, *rates, evidence, state.alarm), state

    return step, first


def _of_held_out(held: Array, spec: Monitoring) -> tuple[Array, Array, Array]:
    """Computes of each score what is unknown from, the edges of bins, and the counts in them."""
    # The share of unknown ones in all: each score has a part of it.
    share = 1 - spec.unknown / held.shape[1]
    limits = jnp.stack([_selective.coverage_threshold(one, share) for one in held.T])
    edges = jnp.quantile(held[::2], jnp.arange(1, spec.bins) / spec.bins, axis=0)
    edges = edges.T.astype(jnp.float32)
    places = _bins(held[1::2], edges)[..., None] == jnp.arange(spec.bins)[None, None]
    return limits, edges, places.sum(0).astype(jnp.float32)


def _check_one_threshold(calibration: _conformal.ConformalCalibration) -> None:
    if jnp.ndim(calibration.threshold):
        raise ValueError(
            "monitor: calibration must have one threshold, not one for each group or class"
        )


def _rows_of_scores(scores: Any) -> Float[Array, "batch scores"]:
    """Gives one score for each input the axis that several have."""
    several = jnp.asarray(scores, jnp.float32)
    return several[:, None] if several.ndim == 1 else several


def _checked_scores(scores: Any) -> Float[Array, "held scores"]:
    """Converts the scores of held-out inputs, which must be numbers, of two inputs at least."""
    shape = jnp.shape(scores)
    if not 1 <= len(shape) <= 2 or shape[0] < 2 or 0 in shape:
        raise ValueError(
            "monitor: score(outputs) must be a vector of a number for each of at least two "
            f"held-out inputs x, or have a row of numbers for each, but its shape is {shape}"
        )
    held = _rows_of_scores(scores)
    if core.is_concrete(held) and bool(jnp.isnan(held).any()):
        raise ValueError("monitor: x gives scores that aren't numbers: leave those inputs out")
    return held


def _first_state(
    spec: Monitoring,
    calibration: _conformal.ConformalCalibration,
    counts: Array,
    words: Array,
    outputs: Any,
) -> MonitorState:
    def queue(outputs: Any) -> Any:
        region = calibration.method.region(outputs, jnp.float32(0))
        rows = jax.tree.map(lambda r: r[jnp.zeros(spec.batch_size, int)], region)
        return jax.tree.map(lambda r: jnp.zeros((spec.delay, *r.shape), r.dtype), rows)

    zero = jnp.zeros((), jnp.float32)
    return MonitorState(
        threshold=jnp.asarray(calibration.threshold, jnp.float32),
        unknown_rate=zero,
        coverage=jnp.asarray(spec.coverage, jnp.float32),
        known=zero,
        counts=counts,
        capital=_no_capital(len(counts)),
        alarm=jnp.zeros((), bool),
        key=words,
        regions=queue(outputs) if spec.delay else (),
    )


def _no_capital(scores: int) -> _martingale.Capital:
    """Returns the evidence before the first input, of each score."""
    return jax.tree.map(lambda a: jnp.stack([a] * scores), _martingale.no_capital())


def _bins(scores: Array, edges: Array) -> Array:
    """Counts the edges below each score `[batch, scores]`; one that is no number is above all."""
    return (~(scores[..., None] <= edges[None])).sum(-1)


def _queued(state: MonitorState, region: Any) -> tuple[MonitorState, Any]:
    """Puts sets at the end of the queue, and returns those whose truth may come now."""
    if not jax.tree.leaves(state.regions):
        return state, region
    due = jax.tree.map(lambda q: q[0], state.regions)
    later = jax.tree.map(lambda q, new: jnp.concatenate([q[1:], new[None]]), state.regions, region)
    return state._replace(regions=later), due


def _told(
    spec: Monitoring,
    method: _conformal.ConformalMethod,
    state: MonitorState,
    due: Any,
    targets: Any,
) -> MonitorState:
    """Takes what came to be known into the running coverage and the threshold."""
    known, inside = _conformal.known_hits(method, due, targets)

    def one(before: tuple[Array, Array], at: tuple[Array, Array]) -> tuple[Any, None]:
        (coverage, count), (is_known, hit) = before, at
        count = count + is_known
        weight = is_known / jnp.maximum(jnp.minimum(count, spec.window), 1)
        return (coverage + (hit - coverage) * weight, count), None

    told = jnp.asarray(known, jnp.float32), jnp.asarray(inside, jnp.float32)
    start = state.coverage, state.known
    (coverage, count), _ = jax.lax.scan(one, start, told, unroll=len(inside) == 1)
    moves = jnp.where(known, spec.coverage - told[1], 0).sum()
    threshold = state.threshold + spec.rate * moves if spec.rate else state.threshold
    return state._replace(coverage=coverage, known=count, threshold=threshold)


def _watched(
    spec: Monitoring, state: MonitorState, bins: Array, unknown: Array
) -> tuple[MonitorState, Array]:
    """Bets on the bins of new scores `[batch, scores]`, one input after the other."""
    renewed = spec.procedure == "shiryaev_roberts"
    next_key, drawn = jax.random.split(jax.random.wrap_key_data(state.key, impl="threefry2x32"))
    draws = jax.random.uniform(drawn, bins.shape, jnp.float32)
    places = jnp.arange(spec.bins)

    def of_score(counts: Array, capital: Any, place: Array, u: Array) -> Any:
        higher = jnp.where(places > place, counts, 0).sum()
        counts = counts + (places == place).astype(jnp.float32)
        equal = jnp.where(places == place, counts, 0).sum()
        p_value = (higher + u * equal) / counts.sum()
        return counts, *_martingale.bet(capital, p_value, renewed=renewed)

    def one(before: tuple[Any, ...], at: tuple[Array, ...]) -> tuple[Any, Array]:
        (counts, capital, alarm, rate), (place, u, is_unknown) = before, at
        counts, capital, evidences = jax.vmap(of_score)(counts, capital, place, u)
        evidence = evidences.max() / len(evidences)
        is_drift = evidence >= 1 / spec.false_alarms
        rate = rate + (is_unknown - rate) / jnp.minimum(capital.seen[0], spec.window)
        if renewed:
            anew = _no_capital(len(evidences))._replace(seen=capital.seen)
            capital = jax.tree.map(lambda a, b: jnp.where(is_drift, a, b), anew, capital)
        return (counts, capital, alarm | is_drift, rate), evidence

    # An alarm of Shiryaev and Roberts is of this step, one of Ville's inequality stays.
    alarm = jnp.zeros((), bool) if renewed else state.alarm
    start = state.counts, state.capital, alarm, state.unknown_rate
    each = bins, draws, unknown.astype(jnp.float32)
    kept, evidence = jax.lax.scan(one, start, each, unroll=len(bins) == 1)
    counts, capital, alarm, rate = kept
    after = state._replace(counts=counts, capital=capital, alarm=alarm, unknown_rate=rate)
    return after._replace(key=jax.random.key_data(next_key)), evidence.max()


def _learner(where: str, value: Any) -> None:
    """Checks for what `learner` returns."""
    if not (isinstance(value, tuple) and len(value) == 3 and callable(value[0])):
        raise TypeError(
            f"{where} must be a step, its parameters and its first state, as learner(...) returns "
            f"them, not {core.describe_value(value)}"
        )


@core.validate(
    learns=_learner,
    x=core.input_batch,
    calibration=core.instance_of(_conformal.ConformalCalibration),
    score=core.function_of_form("score(outputs)"),
)
def watched(
    key: PRNGKeyArray,
    learns: tuple[Learn, Any, Any],
    x: Any,
    calibration: _conformal.ConformalCalibration,
    score: Callable[[Any], Float[Array, " batch *scores"]],
    spec: Monitoring | None = None,
) -> tuple[Learn, Any, dict[str, Any]]:
    """Makes a step that learns from inputs whose label is told, and watches the others for drift.

    ```python
    import jax
    from jaxeff.adapters import learner
    from jaxeff.nn import small_classifier
    from jaxeff.uncertainty import LAC, conformalize, msp, watched

    f, params, (x, y) = small_classifier()
    sets = conformalize(f(params, x[:64]), y[:64], LAC(), 0.9)
    learns = learner(f, params, x[:1])
    step, params, state = watched(jax.random.key(0), learns, x[64:128], sets, msp)
    for one, label in zip(x[128:140, None], y[128:140, None]):      # label -1: it watches
        seen, state = jax.jit(step)(params, one, label, state)
    print(seen.outputs.argmax(), seen.alarm)
    ```

    What is told, and what is told again so that it isn't forgotten, was chosen by somebody, and
    isn't what comes by itself: the watch leaves it out.

    Args:
        key: A random key, for ties of p-values; another one for each device.
        learns: What `adapters.learner` returns: a step, its parameters, and its first state.
        x: Held-out inputs, of the kind that is normal.
        calibration: From `conformalize`, of the step's outputs: the sets of a reading.
        score: A function of outputs that says how unknown each input is, as for `monitor`.
        spec: How inputs are watched, as for `monitor`; `Monitoring()` if None.

    Returns:
        ``step(params, x, y, state) -> (Reading, state)``; the parameters that it takes; and the
        first state, ``{"learnt": the learner's, "watch": the monitor's}``. Where a label from 0 on
        is told, the watch stays as it was; with other labels only that changes.

    Raises:
        TypeError: `learns` is no such tuple.
    """
    learn, params, first = learns
    count = len(jax.tree.leaves(x)[0])
    outputs, _ = jax.jit(learn)(params, x, jnp.full(count, -1), first)
    watch, begin = monitor(key, lambda _, outputs: outputs, {}, outputs, calibration, score, spec)

    def step(params: Any, x: Any, y: Any, state: Any) -> tuple[Any, Any]:
        outputs, learnt = learn(params, x, y, state["learnt"])
        reading, after = watch({}, outputs, y, state["watch"])
        # Readings of what is told are thrown away with the state behind them.
        is_told = (y >= 0).any()
        after = jax.tree.map(lambda new, old: jnp.where(is_told, old, new), after, state["watch"])
        rates = {name: getattr(after, name) for name in ("unknown_rate", "coverage", "alarm")}
        return reading._replace(**rates), {"learnt": learnt, "watch": after}

    return step, params, {"learnt": first, "watch": begin}
