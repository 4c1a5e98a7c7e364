"""Accuracy, likelihood, calibration and out-of-domain detection of every method."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import jaxeff
from experiments.quickstart.recipe import Sets, Settings, split
from experiments.quickstart.training import Models
from experiments.report import Report
from jaxeff.bayes import predict
from jaxeff.moments import Gaussian
from jaxeff.uncertainty import (
    accuracy,
    auroc,
    decompose_logits,
    ece,
    nll_from_log,
    predictive_log_probs,
    sample_logits,
)

# Table at T3698 of the source: Dirty-MNIST, calibration factor 0.4 for its moment pass.
SOURCE = {
    "svi30": {"accuracy": 0.987, "auroc": 0.986},
    "moments": {"accuracy": 0.989, "auroc": 0.966},
}
BATCH = 500


@dataclass
class Outcome:
    """What was measured.

    Attributes:
        methods: Figures by method.
        scores: Per method, the score that tells the domains apart: of every in-domain and every
            out-of-domain image.
    """

    methods: dict[str, dict[str, Any]]
    scores: dict[str, tuple[Float[Array, " n"], Float[Array, " o"]]]


def in_batches(f: Any, images: Float[Array, "n 28 28 1"], batch: int = BATCH) -> Any:
    """Applies a function to images a batch at a time; results are joined along their axis 0."""
    parts = [f(images[i : i + batch]) for i in range(0, len(images), batch)]
    return jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)


def metrics(
    logits: Float[Array, "samples n 10"], outside: Float[Array, "samples o 10"], sets: Sets
) -> tuple[dict[str, float], tuple[Any, Any]]:
    """Figures of a method from its logit samples; a single sample scores by its entropy."""
    log_probs = predictive_log_probs(logits)
    inside, out = decompose_logits(logits), decompose_logits(outside)
    score = (inside.total, out.total) if len(logits) == 1 else (inside.epistemic, out.epistemic)
    labels = sets.test_labels
    return {
        "accuracy": float(accuracy(jnp.exp(log_probs), labels)),
        "nll": float(nll_from_log(log_probs, labels)),
        "ece": float(ece(jnp.exp(log_probs), labels)),
        "auroc": float(auroc(*score)),
    }, score


def evaluate(key: jax.Array, settings: Settings, sets: Sets, models: Models) -> Outcome:
    """Evaluates the point estimate, SVI by sampling, and the moment pass, all under JAX."""
    point = jax.jit(models.f)
    sampling_key = split(key, "samples")

    def sampled(x: Any) -> Any:
        logits = predict(sampling_key, models.f, models.posterior, x, samples=settings.samples)
        return jnp.swapaxes(logits, 0, 1)

    propagate = jax.jit(jaxeff.moments(models.f))
    outcome = Outcome({}, {})
    for method, function in (
        ("deterministic", lambda x: point(models.params, x)[:, None]),
        ("svi30", sampled),
        ("moments", lambda x: propagate(models.posterior, x)),
    ):
        inside = in_batches(function, sets.test_images)
        outside = in_batches(function, sets.ood_images)
        record(outcome, method, key, settings, sets, inside, outside)
    return outcome


def record(
    outcome: Outcome,
    method: str,
    key: jax.Array,
    settings: Settings,
    sets: Sets,
    inside: Any,
    outside: Any,
) -> None:
    """Adds a method from its outputs: Gaussian logits, or logits `[images, samples, classes]`."""

    def samples(out: Any) -> Float[Array, "samples n 10"]:
        if isinstance(out, Gaussian):
            return sample_logits(split(key, "logits"), out, settings.logit_samples)
        return jnp.swapaxes(out, 0, 1)

    figures, scores = metrics(samples(inside), samples(outside), sets)
    outcome.methods[method], outcome.scores[method] = figures, scores


def check(report: Report, outcome: Outcome, settings: Settings) -> None:
    """The claims of the quickstart, beside the source's numbers."""
    methods = outcome.methods
    floor = 0.97 if settings.data == "mnist" else 0.93
    for method in ("svi30", "moments"):
        source, ours = SOURCE[method], methods[method]
        report.check(
            f"{method} accuracy", source["accuracy"], ours["accuracy"], ours["accuracy"] > floor
        )
        report.check(f"{method} OOD AUROC", source["auroc"], ours["auroc"], ours["auroc"] > 0.5)
    gap = abs(methods["svi30"]["accuracy"] - methods["moments"]["accuracy"])
    report.check("accuracy, moment pass minus SVI", 0.002, gap, gap < 0.01)
    for method, values in methods.items():
        if "max_abs_error" in values:
            report.check(
                f"{method} agrees with JAX",
                None,
                values["max_abs_error"],
                values["agrees"],
            )
    report.extra["differences"] = [
        "The source trains on Dirty-MNIST (MNIST with ambiguous digits) for 1000 epochs; here "
        f"{settings.data} for {settings.epochs} epochs, warm-started from a trained point "
        "estimate.",
        "The source scales the moment pass' weight variances by 0.4; here the factor is 1.",
        "Latency is measured on this machine; the source's is a Raspberry Pi's.",
    ]
