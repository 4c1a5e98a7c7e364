"""Accuracy, calibration and uncertainty of a method, from samples of its logits.

Also by the calibration factor of the moment pass. The thesis scales
the variances of all weights by 0.3 (MLP) or 0.4 (LeNet-5) before the moment pass and supposes that
moment matching makes this necessary (Klein's thesis, section 8.3). Its released weights hold
standard deviations as ``softplus(raw)``, and its released operators read their variances as
``exp(raw)``. So both readings are swept here: ``right`` and ``misread``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import jaxeff
from experiments.dirty_mnist.recipe import Sets, Settings, split
from experiments.harness import Row
from jaxeff import uncertainty as unc
from jaxeff.bayes import predict
from jaxeff.moment_propagation import Gaussian, is_gaussian
from jaxeff.uncertainty import in_batches

Logits = dict[str, Float[Array, "samples n classes"]]
"""By domain."""


@dataclass
class Outcome:
    """What one method says of the three test sets."""

    figures: dict[str, Any]  # one number per metric
    uncertainty: dict[str, unc.Decomposition]  # per domain, of every image
    log_probs: dict[str, Float[Array, "n classes"]]  # per domain, of the mean prediction


def sampled_logits(
    key: jax.Array, f: Callable[..., Any], posterior: Any, sets: Sets, samples: int | None
) -> Logits:
    """Logits of a network with drawn weights, by domain; the draws are the same for all images."""

    def of_batch(images: Any) -> Any:
        return predict(key, f, posterior, images, samples=samples)

    return {
        domain: unc.in_batches(of_batch, images, axis=-2) for domain, images in sets.test.items()
    }


def gaussian_logits(f: Callable[..., Any], posterior: Any, sets: Sets) -> dict[str, Gaussian]:
    """Logits of a moment pass, by domain."""
    propagate = jax.jit(jaxeff.moments(f, method="diagonal"))
    return {
        domain: unc.in_batches(lambda images: propagate(posterior, images), images, axis=-2)
        for domain, images in sets.test.items()
    }


def draw_logits(key: jax.Array, logits: dict[str, Gaussian], settings: Settings) -> Logits:
    """Samples of Gaussian logits, by domain."""
    key = split(key, "logits")
    return {d: unc.sample_logits(key, g, settings.logit_samples) for d, g in logits.items()}


def evaluate(logits: Logits, sets: Sets) -> Outcome:
    """The figures of a method from samples of its logits."""
    log_probs = {d: jax.jit(unc.predictive_log_probs)(values) for d, values in logits.items()}
    uncertainty = {d: jax.jit(unc.decompose_logits)(values) for d, values in logits.items()}
    return Outcome(figures(uncertainty, log_probs, sets), uncertainty, log_probs)


def figures(
    uncertainty: dict[str, unc.Decomposition], log_probs: dict[str, Array], sets: Sets
) -> dict[str, float]:
    """The numbers that are reported.

    An ambiguous image counts once per label for accuracy, likelihood and calibration, and once for
    the AUROC. ``auroc_dirty`` is that of the mutual information, all digits against out-of-domain
    images (the thesis'); ``auroc`` has clean digits alone in domain; ``auroc_aleatoric`` tells
    ambiguous from clean digits by the softmax entropy.
    """
    numbers: dict[str, Any] = {}
    for domain, labels in labels_of(sets, log_probs).items():
        repeated = jnp.repeat(log_probs[domain], len(labels) // len(log_probs[domain]), axis=0)
        suffix = "" if domain == "clean" else f"_{domain}"
        numbers[f"accuracy{suffix}"] = unc.accuracy(repeated, labels)
        numbers[f"nll{suffix}"] = unc.nll_from_log(repeated, labels)
        numbers[f"ece{suffix}"] = unc.ece(jnp.exp(repeated), labels)
    clean, ambiguous, ood = (uncertainty[d] for d in ("clean", "ambiguous", "ood"))
    in_domain = jnp.concatenate([clean.epistemic, ambiguous.epistemic])
    numbers["auroc"] = unc.auroc(clean.epistemic, ood.epistemic)
    numbers["auroc_dirty"] = unc.auroc(in_domain, ood.epistemic)
    numbers["auroc_total"] = unc.auroc(clean.total, ood.total)
    numbers["auroc_aleatoric"] = unc.auroc(clean.aleatoric, ambiguous.aleatoric)
    for domain, u in uncertainty.items():
        numbers[f"sme_{domain}"], numbers[f"mi_{domain}"] = u.aleatoric.mean(), u.epistemic.mean()
    return {name: float(value) for name, value in numbers.items()}


def labels_of(sets: Sets, log_probs: dict[str, Any]) -> dict[str, Array]:
    """The labels of the test images in domain; of an ambiguous one all, one after the other."""
    clean = sets.dirty.digits.test_labels[: len(log_probs["clean"])]
    ambiguous = sets.dirty.test_labels[: len(log_probs["ambiguous"])].reshape(-1)
    return {"clean": jnp.asarray(clean), "ambiguous": jnp.asarray(ambiguous)}


def misread(posterior: Any) -> Any:
    """Take ``exp(raw)`` for the variance of weights whose standard deviation is softplus(raw)."""
    return _of_variances(lambda var: jnp.expm1(jnp.sqrt(var)), posterior)


def sweep(
    key: jax.Array, f: Callable[..., Any], posterior: Any, sampled: Logits, settings: Settings,
    sets: Sets,
) -> list[Row]:  # fmt: skip
    """Figures of the moment pass for each factor and both readings of the variances.

    ``variance_ratio`` is the median, over the clean digits and the classes, of the logit variance
    over that of the sampled network.
    """
    factors = jnp.asarray(settings.factors)
    reference = {domain: values.var(0, ddof=1) for domain, values in sampled.items()}
    readings = {"right": posterior, "misread": misread(posterior)}
    rows = []
    for reading, given in readings.items():
        swept = {
            domain: in_batches(partial(_at_factors, f, given, factors), images, axis=-2)
            for domain, images in sets.test.items()
        }
        for i, factor in enumerate(settings.factors):
            logits = {d: jax.tree.map(lambda a: a[i], g) for d, g in swept.items()}  # noqa: B023
            ratios = {
                "variance_ratio" if d == "clean" else f"variance_ratio_{d}":
                    float(jnp.median(g.var / jnp.maximum(reference[d], 1e-12)))
                for d, g in logits.items()
            }  # fmt: skip
            figures = evaluate(draw_logits(key, logits, settings), sets).figures
            rows.append({"reading": reading, "factor": factor, **ratios, **figures})
    return rows


def over_draws(
    key: jax.Array, f: Callable[..., Any], posterior: Any, settings: Settings, sets: Sets
) -> list[Row]:
    """Both kinds of uncertainty by the number of weight samples, and the moment pass' own.

    Mutual information of few samples is too small, as their mean is one of them; one has none. The
    pass has `samples` None.
    """
    few = {domain: images[: settings.drawn_images] for domain, images in sets.test.items()}
    part = replace(sets, test=few)
    logits = sampled_logits(key, f, posterior, part, max(settings.draws))
    passed = draw_logits(key, gaussian_logits(f, posterior, part), settings)
    logits_by_draws: list[tuple[int | None, Logits]] = [
        (n, {d: values[:n] for d, values in logits.items()}) for n in settings.draws
    ]
    rows = []
    for samples, drawn in [*logits_by_draws, (None, passed)]:
        parts = {d: jax.jit(unc.decompose_logits)(values) for d, values in drawn.items()}
        inside = jnp.concatenate([parts["clean"].epistemic, parts["ambiguous"].epistemic])
        means = {
            f"{name}_{d}": float(value.mean())
            for d, u in parts.items()
            for name, value in (("sme", u.aleatoric), ("mi", u.epistemic))
        }
        auroc = float(unc.auroc(inside, parts["ood"].epistemic))
        rows.append({"samples": samples, "auroc_dirty": auroc, **means})
    return rows


@partial(jax.jit, static_argnums=0)
def _at_factors(f: Callable[..., Any], posterior: Any, factors: Array, images: Array) -> Gaussian:
    """Gaussian logits ``[factors, batch, classes]``, all factors in one program."""
    propagate = jaxeff.moments(f, method="diagonal")

    # One after the other: convolutions vmapped over their weights' variances are slow on CPUs.
    def at(factor: Array) -> Gaussian:
        return propagate(_of_variances(lambda var: factor * var, posterior), images)

    return jax.lax.map(at, factors)


def _of_variances(change: Callable[[Array], Array], posterior: Any) -> Any:
    def changed(leaf: Any) -> Any:
        return Gaussian(leaf.mean, change(leaf.var)) if is_gaussian(leaf) else leaf

    return jax.tree.map(changed, posterior, is_leaf=is_gaussian)
