"""`report`: measures what a page says, a section at a time, and keeps each that is finished.

A section is a function of the `Subject` that returns plain data; the page is made of these alone.

```python
import jax
import jaxeff
from jaxeff.nn import small_classifier
from jaxeff.reporting import judge_predictions

f, params, (x, y) = small_classifier(64)
page = jaxeff.report(jax.random.key(0), f, params, (x, y), sections=("layers",))
print(page.sections["layers"]["peak"])                   # 3920 bytes of activations at a time

judged = judge_predictions(jax.random.key(0), f(params, x), y, f(params, x[:, ::-1]))
judged["inside"]["accuracy"], judged["auroc"]
```
"""

import functools
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxeff import compression, core, robustness, uncertainty
from jaxeff.moment_propagation import is_gaussian, moments, moments_check
from jaxeff.noise import Additive, slots
from jaxeff.program import cost, trace
from jaxeff.pruning import Plan, Prune, masked, prune_plan, pruned
from jaxeff.reporting._page import Report, as_json, versions
from jaxeff.store import Journal, describe_arrays, describe_computation, run_identity
from jaxeff.training import Batches, or_batches

BATCH = 250
"""Inputs that are evaluated at once."""
CHECKED = 32
"""Inputs that moments are checked on."""
PERTURBED = 64
"""Inputs whose divergences are measured, layer by layer: all changes share them."""
LOSS = 0.01
"""Accuracy that fewer bits or channels may cost: one point."""


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    Attributes:
        key: Random key of noise and samples.
        f: The classifier.
        params: The parameters of `f` as numbers: of a posterior, the means.
        posterior: The parameters with `Gaussian` leaves; None where nothing is random.
        x: Inputs in domain.
        y: Their labels.
        outside: Inputs out of domain; None without.
        outside_labels: Their labels; None without.
        levels: Noise levels.
        widths: Bit widths.
        shares: Shares of channels to remove.
        examples: Inputs that accuracies are measured on, layer by layer.
    """

    key: PRNGKeyArray
    f: Callable[..., Any]
    params: Any
    posterior: Any
    x: Any
    y: Any
    outside: Any
    outside_labels: Any
    levels: tuple[float, ...]
    widths: tuple[int, ...]
    shares: tuple[float, ...]
    examples: int

    @property
    def some(self) -> tuple[Any, Any]:
        """Inputs and labels that a curve is measured on."""
        return jax.tree.map(lambda leaf: leaf[: self.examples], (self.x, self.y))

    @property
    def one(self) -> Any:
        """A single input, for costs."""
        return jax.tree.map(lambda leaf: leaf[:1], self.x)

    def accuracy(self, f: Callable[..., Any], params: Any) -> float:
        """Computes the accuracy of another function on some inputs."""
        x, y = self.some
        logits = uncertainty.in_batches(jax.jit(lambda part: f(params, part)), x, BATCH)
        return float(uncertainty.accuracy(logits, y))


def layers(subject: Subject) -> dict[str, Any]:
    """Lists the layers and what they cost for one input."""
    of_model = cost(subject.f, subject.params, subject.one)
    names = ("site", "kind", "params", "macs", "weight_bits", "activation_bits", "live")
    rows = [
        {name: getattr(row, name) for name in names}
        | {"shape": list(row.shape[1:]), "bytes": math.ceil(row.storage / 8)}
        for row in of_model.layers
    ]
    totals = {name: getattr(of_model, name) for name in ("params", "macs", "size", "peak")}
    return {"rows": rows, **totals}


def noise(subject: Subject) -> dict[str, Any]:
    """Measures accuracy over additive noise everywhere, and what each layer tolerates alone."""
    first, second = jax.random.split(subject.key)
    f, params, (x, y) = subject.f, subject.params, subject.some
    levels = jnp.asarray(subject.levels)
    # All levels at once share the draws, which cost more than a small network's layers.
    curve = robustness.accuracy_curve(
        first, f, params, (x, y), {"*": Additive(levels)}, levels, repeats=3,
        batch_size=max(BATCH // len(levels), 1), chunk=len(levels),
    )  # fmt: skip
    midpoint = robustness.fit_midpoint(curve.levels, curve.draws)
    sites = slots(f, params, subject.one)
    part = jax.tree.map(lambda leaf: leaf[:PERTURBED], x)
    tolerated = _tolerated(second, f, params, part, sites, np.sort(levels))
    # Levels are in the units of a layer's values: what those are like makes them comparable.
    readable = {layer.site for layer in trace(f, params, part).layers}
    values = robustness.activations(f, [s for s in sites if s in readable])
    # One program: layer by layer it is a hundred small ones, whose compilation takes longer.
    stds = jax.jit(lambda *args: jax.tree.map(jnp.std, values(*args)))(params, part)
    spread = {site: float(std) for site, std in stds.items()}
    rows: list[dict[str, Any]] = [
        {"site": site, "level": float(level), "spread": spread.get(site)}
        for site, level in zip(sites, tolerated, strict=True)
    ]
    return {
        "levels": curve.levels,
        **{name: getattr(curve, name) for name in ("mean", "low", "high")},
        "draws": curve.draws,
        "midpoint": midpoint.mu,
        "midpoint_error": midpoint.mu_std,
        "message": midpoint.message,
        "rows": rows,
        "worst": min(rows, key=lambda row: row["level"])["site"],
    }


def _tolerated(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    x: Any,
    sites: Sequence[str],
    levels: np.ndarray,
) -> np.ndarray:
    """Finds the level that each layer tolerates alone, by halves of the levels, which rise."""
    # The highest level below the threshold, the lowest above it; -1 and the end: none is known.
    low, high = np.full(len(sites), -1), np.full(len(sites), len(levels))
    kl = np.zeros((len(sites), len(levels)))
    every = np.arange(len(sites))
    while (high - low > 1).any():
        # Layers that are done repeat a level, so that every round is the same program.
        middle = np.clip((low + high) // 2, 0, len(levels) - 1)
        by_site = jnp.asarray(levels[middle, None])
        one = robustness.kl_sensitivity(key, f, params, x, sites, by_site, draws=2)
        kl[every, middle] = one.kl[:, 0]
        beyond = one.kl[:, 0] >= robustness.ONE_BIT
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    # Levels above that nobody measured are beyond the threshold as well.
    kl[np.arange(len(levels)) > high[:, None]] = np.inf
    no_errors = np.full_like(kl, np.nan)
    return robustness.tolerated_level(
        robustness.NoiseSensitivity(tuple(sites), levels, kl, no_errors)
    )


def bits(subject: Subject) -> dict[str, Any]:
    """Measures accuracy over bits of all weights and inputs of layers, and each layer's damage."""
    f, params, (x, y) = subject.f, subject.params, subject.some
    program = trace(f, params, subject.one)
    sites = [layer.site for layer in program.layers if layer.kind == "linear" and layer.weights]
    if not sites:
        raise ValueError("no layer outside of loops multiplies with weights")
    rows = np.repeat(np.asarray(subject.widths)[:, None], len(sites), 1)
    policies = jnp.asarray(rows)
    logits = uncertainty.in_batches(
        lambda part: compression.each_policy(f, params, part, sites, policies, policies),
        x, BATCH, axis=1,
    )  # fmt: skip
    accuracies = [float(uncertainty.accuracy(of, y)) for of in logits]
    unchanged = subject.accuracy(f, params)
    part = jax.tree.map(lambda leaf: leaf[:PERTURBED], x)
    damage = compression.kl_sensitivity(f, params, part, sites, subject.widths)
    both = np.asarray(damage.weights) + np.asarray(damage.activations)
    enough = [w for w, a in zip(subject.widths, accuracies, strict=True) if a >= unchanged - LOSS]
    # Where accuracy begins to fall, the next narrower width tells which layer it falls by.
    below = [i for i, w in enumerate(subject.widths) if not enough or w < enough[0]]
    at = below[-1] if below else 0
    return {
        "widths": subject.widths,
        "accuracies": accuracies,
        "float": unchanged,
        "examples": len(y),
        "at_means": subject.posterior is not None,
        "needed": enough[0] if enough else None,
        "sites": sites,
        "weights": damage.weights,
        "activations": damage.activations,
        "worst": sites[int(both[:, at].argmax())],
        "worst_width": subject.widths[at],
    }


def channels(subject: Subject) -> dict[str, Any]:
    """Measures accuracy over shares of removed channels, and each group's alone."""
    f, params = subject.f, subject.params
    unchanged = subject.accuracy(f, params)
    curve = []
    for share in subject.shares:
        # Statistics over channels are taken over those left, as in a network that is narrower.
        plan = prune_plan(f, params, subject.one, {"*:linear": Prune(share, crossed="left")})
        small, narrow = plan.shrink(params), pruned(f, plan)
        left = cost(narrow, small, subject.one)
        curve.append({
            "share": share, "accuracy": subject.accuracy(narrow, small), "params": left.params,
            "macs": left.macs,
        })  # fmt: skip
    plan = prune_plan(f, params, subject.one, {"*:linear": Prune(0.5, crossed="left")})
    sites = {group.name: list(group.sites) for group in plan.channels}
    part, labels = jax.tree.map(lambda leaf: leaf[:BATCH], subject.some)

    @jax.jit
    def hits(keep: dict[str, Array]) -> Array:
        alone = Plan(keep, plan.channels, plan.crossed)
        return uncertainty.accuracy(masked(f, alone)(params, part), labels)

    # All groups are in every plan, so that one program serves for each of them.
    full = {name: jnp.ones_like(jnp.asarray(keep)) for name, keep in plan.keep.items()}
    base = float(hits(full))
    rows: list[dict[str, Any]] = [
        {"group": name, "sites": sites[name], "channels": len(keep),
         "accuracy": float(hits(full | {name: jnp.asarray(keep)}))}
        for name, keep in plan.keep.items()
    ]  # fmt: skip
    worst = min(rows, key=lambda row: row["accuracy"], default=None)
    return {
        "curve": curve, "float": unchanged, "base": base, "rows": rows,
        "worst": worst and worst["group"],
    }  # fmt: skip


def predictions(subject: Subject) -> dict[str, Any]:
    """Judges the predictions, in and out of domain: of a posterior, with its moments."""
    if subject.posterior is None:
        predict = jax.jit(lambda part: subject.f(subject.params, part))
    else:
        g = moments(subject.f)
        predict = jax.jit(lambda part: g(subject.posterior, part))
    logits = uncertainty.in_batches(predict, subject.x, BATCH)
    outside = subject.outside
    return judge_predictions(
        subject.key,
        logits,
        subject.y,
        None if outside is None else uncertainty.in_batches(predict, outside, BATCH),
        subject.outside_labels,
    )


def _predicted(where: str, value: Any) -> None:
    """Checks logits: an array, or a `Gaussian`."""
    mean = value.mean if is_gaussian(value) else value
    core.real_array(2)(where, mean)
    core.warn_of_probs(where, mean)


@core.validate(key=core.single_key, logits=_predicted, outside=_predicted)
def judge_predictions(
    key: PRNGKeyArray, logits: Any, labels: Any, outside: Any = None, outside_labels: Any = None
) -> dict[str, Any]:
    """Computes accuracy, calibration, risk by coverage and, with inputs out of domain, detection.

    Args:
        key: Random key of samples of Gaussian logits.
        logits: Results for inputs in domain, `[inputs, classes]`: an array, or a `Gaussian`.
        labels: Their classes.
        outside: Logits of inputs out of domain, in the same form.
        outside_labels: Classes of these, where they have some; without, each that is accepted
            counts as wrong.

    Returns:
        Plain numbers and lists, the section "predictions" of a report.
    """
    classes = (logits.mean if is_gaussian(logits) else logits).shape[-1]
    core.check_labels("judge_predictions: labels", labels, classes, logits.shape[:-1])
    if outside_labels is not None:
        batch = () if outside is None else outside.shape[:-1]
        core.check_labels("judge_predictions: outside_labels", outside_labels, classes, batch)
    inside = _judged(key, logits, labels)
    result: dict[str, Any] = {"inside": inside, "random": is_gaussian(logits)}
    result["score"] = "mutual information" if is_gaussian(logits) else "entropy of the softmax"
    if outside is None:
        return result
    out_of_domain = _judged(key, outside, outside_labels)
    result["outside"] = out_of_domain
    inside_scores, outside_scores = (
        jnp.asarray(inside["scores"]),
        jnp.asarray(out_of_domain["scores"]),
    )
    result["auroc"] = float(uncertainty.auroc(inside_scores, outside_scores))
    result["fpr95"] = float(uncertainty.fpr95(inside_scores, outside_scores))
    wrong = out_of_domain["wrong"] if outside_labels is not None else np.ones(len(outside_scores))
    both = uncertainty.risk_coverage(
        jnp.concatenate([inside_scores, outside_scores]),
        jnp.concatenate([jnp.asarray(inside["wrong"]), wrong]),
    )
    result["risk_of_both"] = _curve(both)
    return result


def _judged(key: PRNGKeyArray, logits: Any, labels: Any) -> dict[str, Any]:
    """Judges one set of predictions; without labels, only how sure they are."""
    if is_gaussian(logits):
        probs = uncertainty.predict_probs(key, logits)
        scores = uncertainty.from_gaussian(key, logits).epistemic
    else:
        probs = jax.nn.softmax(jnp.asarray(logits))
        scores = uncertainty.predictive_entropy(probs[None])  # of one sample
    judged: dict[str, Any] = {
        "examples": len(probs),
        "classes": probs.shape[-1],
        "confidence": float(probs.max(-1).mean()),
        "scores": np.asarray(scores),
    }
    if labels is None:
        return judged
    labels = jnp.asarray(labels)
    wrong = (probs.argmax(-1) != labels).astype(float)
    bins = uncertainty.reliability(probs, labels)
    return judged | {
        "accuracy": float(uncertainty.accuracy(probs, labels)),
        "nll": float(uncertainty.nll(probs, labels)),
        "ece": float(uncertainty.ece(probs, labels)),
        "brier": float(uncertainty.brier(probs, labels)),
        "aurc": float(uncertainty.aurc(scores, wrong)),
        "reliability": {name: np.asarray(part) for name, part in bins._asdict().items()},
        "risk": _curve(uncertainty.risk_coverage(scores, wrong)),
        "wrong": np.asarray(wrong),
    }


def _curve(curve: uncertainty.RiskCoverage) -> dict[str, Any]:
    """Thins a curve of as many points as there are inputs to what a figure can show."""
    shown = np.unique(np.linspace(0, len(curve.risk) - 1, 200).astype(int))
    return {name: np.asarray(part)[shown] for name, part in curve._asdict().items()}


def moments_of(subject: Subject) -> dict[str, Any]:
    """Checks the variances of moments against a reference."""
    if subject.posterior is None:
        raise ValueError("nothing is random: give parameters with Gaussian leaves, such as svi's")
    x = jax.tree.map(lambda leaf: leaf[:CHECKED], subject.x)
    check = moments_check(subject.key, subject.f, subject.posterior, x, sites=True)
    return {
        "agrees": check.agrees,
        "advice": check.advice,
        "verdict": check.verdict,
        "ratio": None if check.ratio is None else list(check.ratio),
        "rows": [
            {"site": one.site or "(operand)", "ratio": one.ratio and one.ratio.median}
            for one in check.sites
        ],
    }


SECTIONS: Mapping[str, Callable[[Subject], dict[str, Any]]] = {
    "layers": layers,
    "predictions": predictions,
    "noise": noise,
    "bits": bits,
    "channels": channels,
    "moments": moments_of,
}
"""By name, what measures a section; the page has them in this order, then that of the target."""


LEVELS = tuple(float(level) for level in np.geomspace(0.01, 10, 10))


class ReportOptions(TypedDict, total=False):
    """What a report says, and how far it goes; `ReportSettings` has their meaning and defaults."""

    title: str
    about: Mapping[str, str] | None
    levels: Sequence[float]
    widths: Sequence[int]
    shares: Sequence[float]
    examples: int
    sections: Sequence[str] | None
    folder: str | os.PathLike[str] | None
    progress: bool | None


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """What a report says, and how far it goes.

    Attributes:
        title: Title of the page.
        about: Texts of the model card by their headings.
        levels: Levels of additive noise.
        widths: Bit widths, rising.
        shares: Shares of channels to remove.
        examples: Inputs that curves are measured on, at most.
        sections: Names of those to measure; all by default.
        folder: Place where finished sections are kept.
        progress: Whether to show a progress bar.
    """

    title: str = "Model"
    about: Mapping[str, str] | None = None
    levels: Sequence[float] = LEVELS
    widths: Sequence[int] = (2, 3, 4, 5, 6, 8)
    shares: Sequence[float] = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75)
    examples: int = 500
    sections: Sequence[str] | None = None
    folder: str | os.PathLike[str] | None = None
    progress: bool | None = None

    def chosen(self, with_target: bool) -> tuple[str, ...]:
        """Lists the sections to measure, in their order."""
        for share in self.shares:
            core.check_number("report: shares", share, low=0, below=1)
        for name in self.sections or ():
            core.check_choice("sections", name, (*SECTIONS, "target"))
        every = tuple(SECTIONS) + ("target",) * with_target
        return tuple(name for name in every if self.sections is None or name in self.sections)


class Deployed(Protocol):
    """A compiled model that tells what it takes: a `jaxeff_export.Bundle`."""

    def facts(self, data: tuple[Any, Any] | None = None) -> dict[str, Any]:
        """Describes the library and its target, as plain data, checked on data if there are any."""
        ...


def _inputs_and_labels(data: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
    """Separates a function's arguments from labels: `(x, y)`, `((a, b), y)` or `(a, b, y)`."""
    inputs = core.as_arguments(data[0]) if len(data) == 2 else tuple(data[:-1])
    return inputs, data[-1]


def _inputs_outside(outside: Any, count: int) -> tuple[tuple[Any, ...], Any]:
    """Separates inputs out of domain, as many arguments as those in domain, from their labels."""
    # Two arrays beside two inputs in domain are these inputs; beside one they are it and labels.
    alone = not isinstance(outside, tuple)
    if alone or (count > 1 and len(outside) == count and not isinstance(outside[0], tuple)):
        return core.as_arguments(outside), None
    return _inputs_and_labels(outside)


def _labelled_inputs(where: str, value: Any) -> None:
    """Checks a classifier's inputs, one or several, and labels."""
    several = isinstance(value, tuple | list) and len(value) > 2
    core.labelled_data(where, _inputs_and_labels(value) if several else value)


def _of_one(f: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[..., Any]:
    """Makes a function of several arguments one of a list of them, which all measures take."""
    if len(inputs) == 1:
        return f

    # A list, since what takes a batch reads a tuple as several arguments.
    @functools.wraps(f)
    def joined(params: Any, inputs: Any) -> Any:
        return f(params, *inputs)

    return joined


def _one(inputs: tuple[Any, ...]) -> Any:
    return inputs[0] if len(inputs) == 1 else list(inputs)


@core.validate(
    f=core.pure_function,
    params=core.input_batch,
    data=or_batches(_labelled_inputs),
    key=core.single_key,
    title=core.string,
    about=core.string_mapping,
    levels=core.real_array(1),
    widths=core.static_integers(1),
    shares=core.real_array(1),
    examples=core.static_integer(10),
    sections=core.string_sequence,
)
@core.forwards(ReportSettings, ReportOptions)
def report(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    data: Any,
    *,
    outside: Any = None,
    bundle: Deployed | None = None,
    **options: Unpack[ReportOptions],
) -> Report:
    """Measures a classifier and makes one page of it: HTML, or a model card in Markdown.

    | section | what is measured |
    |---|---|
    | `layers` | parameters, MACs, bits and live memory of each |
    | `predictions` | accuracy, calibration, risk by coverage, detection of what is out of domain |
    | `noise` | accuracy over additive noise; the level that each layer tolerates alone |
    | `bits` | accuracy over bits; the damage of few bits in each layer alone |
    | `channels` | accuracy over removed channels; half of each group alone |
    | `moments` | whether the variances of `jaxeff.moments` are right, where anything is random |
    | `target` | instructions, cycles and memory by kernel, of a bundle |

    A section that can't be measured says why on the page.

    Args:
        key: Random key of noise and samples: with the same one a report of the same model says the
            same.
        f: A classifier `f(params, *inputs) -> logits`.
        params: The parameters of `f`; of a posterior, `Gaussian` leaves, whose means are used where
            numbers are wanted.
        data: Inputs and labels that were not trained on, `(x, labels)`; of a function of several
            inputs `((a, b), labels)` or `(a, b, labels)`; batches of them (a loader, an iterator,
            `jaxeff.training.Batches`) are read into memory first.
        outside: Inputs out of domain, or inputs and labels in the form of `data`; of several
            inputs `(a, b)` without labels.
        bundle: The deployed model, for the section of its target.
        **options: `title` of the page; `about`, texts of the model card by their headings, such as
            `{"Intended use": "..."}`; `levels` of additive noise, in the units of layers' values;
            bit `widths`, rising; `shares` of channels to remove; `examples`, the inputs that curves
            of noise, bits and channels are measured on, at most; `sections`, the names of those to
            measure, all by default; `folder`, where finished sections are kept: called again with
            the same arguments, only what is missing is measured; and `progress`, whether to show a
            progress bar, which None shows on a terminal and in a notebook.

    Returns:
        The page: `page.save("report.html")`, `page.save("MODEL_CARD.md")`, `page.sections`.

    Raises:
        ValueError: An unknown section, or data that don't fit each other.
        CheckpointError: The folder holds sections of another model, data or settings.
    """
    if (source := Batches.of(data)) is not None:
        data = source.gathered()
        _labelled_inputs("report: data", data)
    settings = ReportSettings(**options)
    chosen = settings.chosen(bundle is not None)
    subject = _subject(key, f, params, data, outside, settings)
    program = describe_computation(subject.f, subject.params, subject.one)
    grids = {name: getattr(subject, name) for name in ("levels", "widths", "shares", "examples")}
    described = describe_arrays("params", params)
    identity = run_identity(key, (subject.x, subject.y, outside), grids, described | {"f": program})
    kept = None
    if settings.folder is not None:
        kept = Journal(Path(settings.folder) / "report.jsonl", as_json(identity))
    measured: dict[str, Any] = {}
    with core.progress_bar(settings.progress, "section", len(chosen)) as advance:
        for number, name in enumerate(chosen):
            if name == "target":  # a bundle is another file, which may be new
                measured[name] = _target(bundle, data)
            elif kept is not None and name in kept:
                measured[name] = kept[name]
            else:
                # A key of its own: a section measured alone draws what it draws beside others.
                place = [*SECTIONS].index(name)
                measured[name] = _section(name, subject, jax.random.fold_in(key, place))
                if kept is not None and "missing" not in measured[name]:
                    kept.add(name, measured[name])
            advance(1, f"{name} {number + 1} of {len(chosen)}")
    facts = {
        "versions": versions(),
        "hashes": {
            "function": program["hash"][:16],
            "parameters": _digest(described),
            "data": _digest(describe_arrays("data", (subject.x, subject.y, outside))),
        },
        "examples": len(subject.y),
        "settings": grids,
    }
    return Report(settings.title, dict(settings.about or {}), as_json(facts), measured)


def _subject(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    data: Sequence[Any],
    outside: Any,
    settings: ReportSettings,
) -> Subject:
    """Checks that a classifier and data fit each other, and collects what sections measure."""
    random = any(map(is_gaussian, jax.tree.leaves(params, is_leaf=is_gaussian)))
    numbers = jax.tree.map(
        lambda leaf: leaf.mean if is_gaussian(leaf) else leaf, params, is_leaf=is_gaussian
    )
    arguments, y = _inputs_and_labels(data)
    f, x = _of_one(f, arguments), _one(arguments)
    beyond, beyond_labels = None, None
    if outside is not None:
        beyond_arguments, beyond_labels = _inputs_outside(outside, len(arguments))
        beyond = _one(beyond_arguments)
    logits = jax.eval_shape(f, numbers, jax.tree.map(lambda leaf: leaf[:1], x))
    if not hasattr(logits, "shape") or len(logits.shape) != 2:
        raise ValueError("report: f must be a classifier, f(params, x) -> logits [batch, classes]")
    core.check_labels("report: data, the labels,", y, logits.shape[-1])
    core.warn_of_one_class("report: data, the labels,", y)
    if beyond is not None:
        core.input_batch("report: outside", beyond)
        jax.eval_shape(f, numbers, jax.tree.map(lambda leaf: leaf[:1], beyond))
    if beyond_labels is not None:
        core.check_labels("report: outside, the labels,", beyond_labels, logits.shape[-1])
    return Subject(
        key=key, f=f, params=numbers, posterior=params if random else None, x=x, y=jnp.asarray(y),
        outside=beyond, outside_labels=beyond_labels, levels=tuple(map(float, settings.levels)),
        widths=tuple(settings.widths), shares=tuple(map(float, settings.shares)),
        examples=settings.examples,
    )  # fmt: skip


def _section(name: str, subject: Subject, key: PRNGKeyArray) -> dict[str, Any]:
    """Measures a section; one that doesn't apply to the model says why."""
    try:
        section: dict[str, Any] = as_json(SECTIONS[name](replace(subject, key=key)))
    # What a method refuses is a finding about the model, and no reason to lose the other sections.
    except (ValueError, TypeError, NotImplementedError) as error:
        return {"missing": str(error)}
    return section


def _target(bundle: Deployed | None, data: Sequence[Any]) -> dict[str, Any]:
    if bundle is None:
        return {"missing": "no bundle was given"}
    inputs = data[0] if len(data) == 2 else tuple(data[:-1])
    section: dict[str, Any] = as_json(bundle.facts((inputs, data[-1])))
    return section


def _digest(described: Mapping[str, Any]) -> str:
    """Hashes what identifies arrays, short enough to be read out."""
    return hashlib.sha256(json.dumps(as_json(described), sort_keys=True).encode()).hexdigest()[:16]
