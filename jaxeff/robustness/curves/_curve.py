"""Accuracy over noise levels: measured, summarised over replicates, and as one number (rAUC).

```python
import jax
import jax.numpy as jnp
from jaxeff.nn import small_classifier
from jaxeff.noise import Additive
from jaxeff.robustness import accuracy_curve, noisy_accuracy

f, params, (x, y) = small_classifier()
levels, key = jnp.logspace(-2, 2, 17), jax.random.key(0)
accuracy_curve(key, f, params, (x, y), lambda level: {"*": Additive(level)}, levels)
noisy_accuracy(key, f, params, (x, y), {"*": Additive(levels)}, repeats=2)       # [repeats, levels]
```

Of a trained network, `fit_midpoint` finds where the curve falls (example: `jaxeff.robustness`).

Sharp edge: the same keys are used at every level, so neighbouring levels differ by the level alone.

References:
    Wang et al., "Variance-Aware Noisy Training: Hardening DNNs against Unstable Analog
    Computations", arXiv:2503.16183.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from scipy import stats

from jaxeff import core
from jaxeff.noise import Noise, noisy
from jaxeff.noise.models import check_noise
from jaxeff.training import canonical_in_loops, count_examples

CONFIDENCE = 0.95

Spec = Mapping[str, Noise | None]
Metric = Callable[[Any, Any], Float[Array, " batch"]]
"""From outputs and targets to a number for each example."""


@core.shown_as_table
class Curve(NamedTuple):
    """Accuracy over noise levels.

    Sharp edge: the band is a confidence interval of the mean over whatever the replicates are. Over
    draws of the noise it says nothing about another training; over seeds it does. Neither holds
    what the finite test set adds.

    Attributes:
        levels: The noise levels.
        mean: Mean accuracy over the replicates; NaN where there is none.
        std: Standard deviation of one replicate; NaN for fewer than two.
        low: Lower end of the confidence interval of the mean (Student's t, 95 %).
        high: The upper end; both NaN for fewer than two replicates.
        replicates: Replicates with a finite accuracy.
        draws: The accuracies themselves.
    """

    levels: Float[np.ndarray, " levels"]
    mean: Float[np.ndarray, " levels"]
    std: Float[np.ndarray, " levels"]
    low: Float[np.ndarray, " levels"]
    high: Float[np.ndarray, " levels"]
    replicates: Int[np.ndarray, " levels"]
    draws: Float[np.ndarray, "replicates levels"]

    def _table(self) -> core.Table:
        rows = [
            (f"{level:.4g}", f"{mean:.4f}", f"{low:.4f} to {high:.4f}", str(count))
            for level, mean, low, high, count in zip(
                *(np.asarray(a) for a in (*self[:2], *self[3:6])), strict=True
            )
        ]
        caption = f"{len(rows)} levels of up to {len(self.draws)} replicates"
        columns = ("level>", "accuracy>", f"{CONFIDENCE:.0%} of the mean", "replicates>")
        return core.Table(columns, rows, caption=f"Accuracy over noise: {caption}")


def _noise(_: str, spec: Any) -> None:
    check_noise(spec)


class AccuracyOptions(TypedDict, total=False):
    """How accuracy under noise is measured; `noisy_accuracy` has their meaning and defaults."""

    repeats: int
    batch_size: int
    chunk: int
    state: Any
    metric: Metric | None


# 10 parameters: a model, data and noise, and the options that `accuracy_curve` takes too.
@core.validate(
    specs=_noise,
    data=core.supervised_data,
    metric=core.function_of_form("metric(outputs, targets)"),
)
def noisy_accuracy(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, Int[Array, " n"]],
    specs: Spec,
    *,
    repeats: int = 5,
    batch_size: int = 1000,
    chunk: int = 1,
    state: Any = None,
    metric: Metric | None = None,
) -> Float[Array, "repeats levels"]:
    """Computes the accuracy, or a metric, of every draw at every level, as one compiled program.

    It is pure, so it can be jitted and vmapped over parameters.

    Args:
        key: Random key of the noise.
        f: `f(params, x) -> logits`; with a state `f(params, state, x) -> (logits, new state)`.
            With a metric its outputs may be anything.
        params: The parameters of `f`.
        data: Inputs and labels; with a metric the targets that it takes.
        specs: A spec whose numbers have a leading axis of levels.
        repeats: Passes over the data with fresh noise, at every level.
        batch_size: Inputs evaluated at once.
        chunk: Levels evaluated at once. Memory grows with `batch_size` times `chunk`.
        state: The model's state, which stays as it is.
        metric: `metric(outputs, targets)`, a number for each example, `[batch]`, of which the mean
            is taken: an error, a log-likelihood, an overlap. By default whether the largest logit
            is that of the label.

    Raises:
        TypeError: The spec isn't a mapping from patterns to noise models.
        ValueError: A count below 1, no numbers in the spec, data or numbers that differ in length,
            no data or data with NaN, a label that is no class of the model, or a metric that
            isn't a number for each example.
    """
    if metric is None:
        core.labelled_data("noisy_accuracy: data", data)
    count_examples(specs)
    total = count_examples(data)
    size = min(batch_size, total)
    if len(data) != 2:
        raise ValueError("noisy_accuracy: data must be a pair (inputs, targets)")
    variables = (params,) if state is None else (params, state)
    _check_metric(f, variables, data, size, metric)
    batches = _batches(data, size, total)
    # One key per draw and batch, the same at every level: curves are compared under common random
    # numbers, which takes the noise of the draws off their differences.
    keys = jax.random.split(key, (repeats, len(batches[-1])))
    return _sums(f, variables, dict(specs), keys, batches, chunk, metric or _hits) / total


def _batches(data: tuple[Any, Any], size: int, total: int) -> tuple[Any, Any, Bool[Array, "p n"]]:
    """Cuts data into batches of one shape; which of their examples are no copies comes last."""
    parts = math.ceil(total / size)

    def cut(leaf: Any) -> Array:
        leaf = jnp.asarray(leaf)
        # The last batch is filled with copies, which aren't counted.
        missing = parts * size - total
        filled = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], missing, axis=0)])
        return filled.reshape(parts, size, *leaf.shape[1:])

    inputs, targets = jax.tree.map(cut, data)
    return inputs, targets, jnp.arange(parts * size).reshape(parts, size) < total


def _hits(logits: Any, labels: Any) -> Array:
    # Whole numbers, not shares: their sums are exact, whatever the size of the last batch.
    return logits.argmax(-1) == labels


def _check_metric(
    f: Any, variables: tuple[Any, ...], data: tuple[Any, Any], size: int, metric: Metric | None
) -> None:
    """Checks labels against the classes of the model, or the shape of a metric; runs nothing."""
    first, wanted = jax.tree.map(lambda leaf: jnp.asarray(leaf)[:size], data)
    outputs = _outputs(variables, jax.eval_shape(f, *variables, first))
    if metric is None:
        core.check_labels("noisy_accuracy: data, the labels,", data[1], outputs.shape[-1])
        return
    scores = jax.eval_shape(metric, outputs, wanted)
    if getattr(scores, "shape", None) != (size,):
        raise ValueError(
            f"noisy_accuracy: metric must give a number for each of {size} examples, [{size}], not "
            f"{list(scores.shape) if hasattr(scores, 'shape') else type(scores).__name__}"
        )


def _outputs(variables: tuple[Any, ...], results: Any) -> Any:
    """Takes a model's outputs from its results, which end in a new state if it has one."""
    return results if len(variables) == 1 else results[0]


@functools.partial(jax.jit, static_argnames=("f", "chunk", "metric"))
def _sums(
    f: Any,
    variables: tuple[Any, ...],
    specs: Any,
    keys: Any,
    batches: Any,
    chunk: int,
    metric: Metric,
) -> Array:
    """Sums scores by draw and level; `variables` are parameters, and a state if there is one."""

    def at_level(spec: Spec) -> Array:
        perturbed = noisy(f, spec)

        def in_batch(inputs: Any) -> Array:
            key, (x, targets, real) = inputs
            scores = metric(_outputs(variables, perturbed(key, *variables, x)), targets)
            # Copies that fill a batch may have any score, NaN too.
            return jnp.where(real, scores, jnp.zeros_like(scores)).sum()

        quick = canonical_in_loops(in_batch)
        return jax.lax.map(lambda k: jax.lax.map(quick, (k, batches)).sum(), keys)

    # A loop over one level at a time: vmapped convolutions are slow on a CPU.
    return jax.lax.map(at_level, specs, batch_size=chunk if chunk > 1 else None).T


@core.validate(
    spec=core.any_of(core.function_of_form("spec(level)"), _noise),
    levels=core.real_array(),
    data=core.supervised_data,
    metric=core.function_of_form("metric(outputs, targets)"),
)
@core.forwards(noisy_accuracy, AccuracyOptions)
def accuracy_curve(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, Int[Array, " n"]],
    spec: Spec | Callable[[Any], Spec],
    levels: Float[Array | np.ndarray, " levels"],
    **options: Unpack[AccuracyOptions],
) -> Curve:
    """Measures a trained model's accuracy, or another metric, over noise levels.

    Args:
        key: Random key of the noise.
        f: Same as for `noisy_accuracy`.
        params: The parameters of `f`.
        data: Same as for `noisy_accuracy`.
        spec: The noise at a level, `spec(level) -> {pattern: model}`; or a spec whose numbers
            have a leading axis of levels.
        levels: The levels.
        **options: `repeats`, `batch_size`, `chunk`, `state` and `metric`, as for `noisy_accuracy`.

    Returns:
        The curve over the draws of the noise.

    Raises:
        ValueError: Levels that aren't one row of numbers, or as for `noisy_accuracy`.
    """
    levels = jnp.asarray(levels, float)
    if levels.ndim != 1 or not len(levels):
        raise ValueError(f"the levels must be one row of numbers, not of shape {levels.shape}.")
    specs = _stacked([spec(level) for level in levels]) if callable(spec) else spec
    draws = noisy_accuracy(key, f, params, data, specs, **options)
    return summarize(levels, draws)


def _stacked(specs: list[Spec]) -> Spec:
    """Stacks the specs of all levels into one, with a leading axis."""
    for spec in specs:
        check_noise(spec)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(dict(spec) for spec in specs))


@core.validate(levels=core.real_array(1), accuracies=core.real_array(2, nan=True))
def summarize(
    levels: Float[Array | np.ndarray, " levels"],
    accuracies: Float[Array | np.ndarray, "replicates levels"],
) -> Curve:
    """Returns the curve of replicates: draws of the noise, or trainings from several seeds.

    It also takes what several trained networks scored, such as `[seeds, settings]` of
    `jaxeff.training.sweep`:

    ```python
    import jax, jax.numpy as jnp
    from jaxeff.nn import small_classifier
    from jaxeff.noise import Additive
    from jaxeff.robustness import noisy_accuracy, summarize

    f, params, (x, y) = small_classifier(64)
    levels, key = jnp.logspace(-2, 2, 5), jax.random.key(0)
    networks = jax.tree.map(lambda w: jnp.stack([w, 0.9 * w]), params)  # of two seeds, in a study
    spec = {"*": Additive(levels)}
    score = lambda network: noisy_accuracy(key, f, network, (x, y), spec, repeats=2).mean(0)
    print(summarize(levels, jax.vmap(score)(networks)))               # the band is over networks
    ```

    Args:
        levels: The noise levels.
        accuracies: Accuracies of every replicate; NaN for one that diverged, which is left out.

    Raises:
        ValueError: The shapes don't agree.
    """
    sigma, draws = np.asarray(levels, float), np.asarray(accuracies, float)
    if draws.ndim != 2 or draws.shape[1:] != sigma.shape:
        raise ValueError(
            f"accuracies [replicates, levels] are wanted for {len(sigma)} levels, not an array of "
            f"shape {draws.shape}."
        )
    finite = np.isfinite(draws)
    count = finite.sum(0)
    none = np.full(sigma.shape, np.nan)
    mean = np.divide(np.where(finite, draws, 0).sum(0), count, out=none.copy(), where=count > 0)
    # Divergence leaves holes, so each level counts its own replicates.
    squares = np.where(finite, draws - mean, 0) ** 2
    freedom = count - 1
    variance = np.divide(squares.sum(0), freedom, out=none.copy(), where=freedom > 0)
    std = np.sqrt(variance)
    # Student's t: the deviation is estimated from the same few replicates.
    half = stats.t.ppf((1 + CONFIDENCE) / 2, np.maximum(freedom, 1)) * std / np.sqrt(count.clip(1))
    return Curve(sigma, mean, std, mean - half, mean + half, count, draws)


@core.validate(curves=core.real_array(nan=True))
def envelope(
    curves: Float[Array | np.ndarray, "*leading trainings levels"],
) -> Float[Array, "*leading levels"]:
    """Computes the ideal accuracy at every level: the best of the networks trained with noise.

    Where each level was trained for, this is training and inference noise that match; beyond the
    strongest one it is the best there is.

    ```python
    >>> import numpy as np
    >>> from jaxeff.robustness import envelope
    >>> ideal = envelope(np.array([[0.9, 0.5, 0.3], [0.8, 0.7, 0.6]]))  # trained at two levels
    >>> ideal.tolist() == np.float32([0.9, 0.7, 0.6]).tolist()
    True

    ```

    Sharp edge: pass means over seeds: the maximum over noisy estimates is too high.

    Args:
        curves: Accuracy of the network of every training level at every evaluation level; NaN
            entries are left out.
    """
    # A replicate that diverged is no upper bound: NaN is skipped, not passed on.
    return jnp.nanmax(jnp.asarray(curves), axis=-2)


@core.validate(
    levels=core.real_array(1),
    accuracies=core.real_array(nan=True),
    ideal=core.real_array(1, nan=True),
)
def robustness_area(
    levels: Float[Array | np.ndarray, " levels"],
    accuracies: Float[Array | np.ndarray, "*leading levels"],
    ideal: Float[Array | np.ndarray, " levels"],
) -> Float[Array, "*leading"]:
    """Computes the relative area under the accuracy curve (rAUC), by the trapezoidal rule.

    It is a pure function of arrays that jits and vmaps; NaN accuracies of a diverged replicate give
    NaN.

    ```python
    >>> import numpy as np
    >>> from jaxeff.robustness import robustness_area
    >>> levels, ideal = np.array([0.0, 0.5, 0.9]), np.array([0.9, 0.7, 0.6])
    >>> area = robustness_area(levels, np.array([0.85, 0.7, 0.65]), ideal)
    >>> print(f"{area:.3f}")  # rAUC, 1 for the envelope itself
    0.996

    ```

    Sharp edge: rAUC exceeds 1 for a network that beats noisy training at its own levels.

    Args:
        levels: Evaluation levels in rising order.
        accuracies: At each of them.
        ideal: Accuracy under matched noise (`envelope`).

    Returns:
        The area relative to the ideal one.

    Raises:
        ValueError: The shapes don't agree, fewer than two levels, or levels that don't rise.
    """
    x, y, best = jnp.asarray(levels), jnp.asarray(accuracies), jnp.asarray(ideal)
    if x.ndim != 1 or len(x) < 2 or y.shape[-1:] != x.shape or best.shape != x.shape:
        raise ValueError(
            f"an area needs at least two levels and an accuracy and an ideal for each, got shapes "
            f"{x.shape}, {y.shape} and {best.shape}."
        )
    if core.is_concrete(x) and not (np.diff(np.asarray(x)) > 0).all():
        raise ValueError(f"evaluation levels must rise, got {np.asarray(x).tolist()}.")
    # Both areas over the same levels: their spacing, linear or not, weighs alike in both.
    return jnp.trapezoid(y, jnp.broadcast_to(x, y.shape), axis=-1) / jnp.trapezoid(best, x)


@core.validate(
    levels=core.real_array(1),
    accuracies=core.real_array(nan=True),
    standard=core.real_array(1, nan=True),
    level=core.finite,
)
def preserved_accuracy(
    levels: Float[Array | np.ndarray, " levels"],
    accuracies: Float[Array | np.ndarray, "*leading levels"],
    standard: Float[Array | np.ndarray, " levels"],
    level: float,
) -> Float[Array, "*leading"]:
    """Computes accuracy at a network's nominal level, relative to standard noisy training.

    It is what a large `robustness_area` costs, a pure function likewise.

    ```python
    >>> import numpy as np
    >>> from jaxeff.robustness import preserved_accuracy
    >>> levels, accuracy = np.array([0.0, 0.5, 0.9]), np.array([0.85, 0.7, 0.65])
    >>> print(f"{preserved_accuracy(levels, accuracy, np.array([0.8, 0.7, 0.6]), 0.9):.3f}")
    1.083

    ```

    Args:
        levels: Evaluation levels.
        accuracies: Accuracies of the network at these levels.
        standard: Accuracies of the network trained at `level` with noise that doesn't vary.
        level: The nominal noise level, one of `levels`.

    Returns:
        1 where nothing is lost.

    Raises:
        ValueError: The networks weren't evaluated at this level.
    """
    grid = np.asarray(levels)
    (places,) = np.nonzero(np.isclose(grid, level, rtol=1e-5, atol=0))
    if not len(places):
        raise ValueError(f"level {level:g} is none of the evaluation levels, {grid.tolist()}.")
    i = int(places[0])
    return jnp.asarray(accuracies)[..., i] / jnp.asarray(standard)[i]
