"""Accuracy, calibration and uncertainty of a method, from samples of its logits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import jaxeff
from experiments.dirty_mnist.recipe import Sets, Settings, split
from jaxeff import uncertainty as unc
from jaxeff.bayes import predict
from jaxeff.moment_propagation import Gaussian


@dataclass
class Outcome:
    """What one method says of the three test sets.

    Attributes:
        figures: One number per metric.
        uncertainty: Per domain, of every image.
        log_probs: Per domain, of the mean prediction.
    """

    figures: dict[str, Any]
    uncertainty: dict[str, unc.Decomposition]
    log_probs: dict[str, Float[Array, "n classes"]]


def sampled_logits(
    key: jax.Array, f: Callable[..., Any], posterior: Any, sets: Sets, samples: int | None
) -> dict[str, Float[Array, "samples n classes"]]:
    """Logits of a network with drawn weights, by domain; the draws are the same for all images."""

    def of_batch(images: Any) -> Any:
        return predict(key, f, posterior, images, samples=samples)

    return {
        domain: unc.in_batches(of_batch, images, axis=-2) for domain, images in sets.test.items()
    }


def gaussian_logits(f: Callable[..., Any], posterior: Any, sets: Sets) -> dict[str, Gaussian]:
    """Logits of a moment pass, by domain."""
    propagate = jax.jit(jaxeff.moments(f))
    return {
        domain: unc.in_batches(lambda images: propagate(posterior, images), images, axis=-2)
        for domain, images in sets.test.items()
    }


def draw_logits(
    key: jax.Array, logits: dict[str, Gaussian], settings: Settings
) -> dict[str, Float[Array, "samples n classes"]]:
    """Samples of Gaussian logits, by domain."""
    key = split(key, "logits")
    return {d: unc.sample_logits(key, g, settings.logit_samples) for d, g in logits.items()}


def evaluate(logits: dict[str, Float[Array, "samples n classes"]], sets: Sets) -> Outcome:
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
    images (the source's); ``auroc`` has clean digits alone in domain; ``auroc_aleatoric`` tells
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
