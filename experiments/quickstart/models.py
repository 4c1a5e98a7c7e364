"""The point estimate and the posterior: how they are trained, and what they are judged by."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

import jaxeff
from experiments.harness import Run
from experiments.posteriors import Trainings, point_then_svi
from experiments.quickstart.recipe import Sets, Settings, split
from experiments.recipes import cosine_adam
from jaxeff import uncertainty as unc
from jaxeff.bayes import predict
from jaxeff.moment_propagation import Gaussian
from jaxeff.nn import LeNet5


@dataclass(frozen=True)
class Models:
    """One function, and the two sets of parameters it is run with."""

    f: Callable[..., Any]
    params: Any
    posterior: Any


def train(run: Run[Settings], sets: Sets) -> Models:
    """Trains LeNet-5 by maximum likelihood, then by SVI from those means."""
    key, settings, training_settings = run.key, run.settings, run.settings.training
    model = LeNet5(rngs=nnx.Rngs(split(key, "model")))
    f, params = jaxeff.functional(model)
    epochs = training_settings.pretrain_epochs, training_settings.epochs
    trainings = Trainings(
        (split(key, "pretrain"), split(key, "svi")), epochs,
        lambda steps: (
            cosine_adam(training_settings.pretrain_rate, epochs[0] * steps),
            cosine_adam(training_settings.rate, epochs[1] * steps),
        ),
        (run.work / "point.safetensors", run.work / "svi.safetensors"),
        # A checkpoint of other settings is refused.
        {"batch_size": training_settings.batch_size, "settings": settings.identity()},
    )  # fmt: skip
    point, result = point_then_svi(
        f, params, (sets.train_images, sets.train_labels), trainings, run.say,
        prior=training_settings.prior, kl=settings.kl, init_scale=settings.init_scale,
    )  # fmt: skip
    return Models(f, point, result.posterior)


@dataclass
class Outcome:
    """What was measured."""

    methods: dict[str, dict[str, Any]]  # figures by method
    # per method, the score that tells the domains apart: of every in-domain and every out-of-domain
    # image
    scores: dict[str, tuple[Float[Array, " n"], Float[Array, " o"]]]


def metrics(
    logits: Float[Array, "samples n 10"], outside: Float[Array, "samples o 10"], sets: Sets
) -> tuple[dict[str, float], tuple[Any, Any]]:
    """Figures of a method from its logit samples; a single sample scores by its entropy."""
    figures, score = _metrics(logits, outside, sets.test_labels)
    return {name: float(value) for name, value in figures.items()}, score


@jax.jit  # one program in the place of a hundred small ones, which take longer to compile
def _metrics(
    logits: Float[Array, "samples n 10"],
    outside: Float[Array, "samples o 10"],
    labels: Int[Array, " n"],
) -> tuple[dict[str, Array], tuple[Array, Array]]:
    log_probs = unc.predictive_log_probs(logits)
    inside, out = unc.decompose_logits(logits), unc.decompose_logits(outside)
    score = (inside.total, out.total) if len(logits) == 1 else (inside.epistemic, out.epistemic)
    return {
        "accuracy": unc.accuracy(jnp.exp(log_probs), labels),
        "nll": unc.nll_from_log(log_probs, labels),
        "ece": unc.ece(jnp.exp(log_probs), labels),
        "auroc": unc.auroc(*score),
    }, score


def evaluate(run: Run[Settings], sets: Sets, models: Models) -> Outcome:
    """Evaluates the point estimate, SVI by sampling, and the moment pass, all under JAX."""
    point = jax.jit(models.f)
    settings, sampling_key = run.settings, split(run.key, "samples")

    def sampled(x: Any) -> Any:
        logits = predict(sampling_key, models.f, models.posterior, x, samples=settings.samples)
        return jnp.swapaxes(logits, 0, 1)

    propagate = jax.jit(jaxeff.moments(models.f, method="diagonal"))
    outcome = Outcome({}, {})
    for method, function in (
        ("deterministic", lambda x: point(models.params, x)[:, None]),
        ("svi30", sampled),
        ("moments", lambda x: propagate(models.posterior, x)),
    ):
        inside = unc.in_batches(function, sets.test_images)
        outside = unc.in_batches(function, sets.ood_images)
        record(outcome, method, run, sets, inside, outside)
    return outcome


def record(
    outcome: Outcome, method: str, run: Run[Settings], sets: Sets, inside: Any, outside: Any
) -> None:
    """Adds a method from its outputs: Gaussian logits, or logits `[images, samples, classes]`."""

    def samples(out: Any) -> Float[Array, "samples n 10"]:
        if isinstance(out, Gaussian):
            return unc.sample_logits(split(run.key, "logits"), out, run.settings.logit_samples)
        return jnp.swapaxes(out, 0, 1)

    figures, scores = metrics(samples(inside), samples(outside), sets)
    outcome.methods[method], outcome.scores[method] = figures, scores
