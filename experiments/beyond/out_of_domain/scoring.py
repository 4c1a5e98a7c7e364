"""Posteriors of one network, and what every score says of images under each.

A score of features is fitted to each network of a posterior and averaged over them; a score of
logits takes those of the mean prediction.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

import jaxeff
from experiments.beyond.out_of_domain.recipe import CLASSES, Sets, Settings
from experiments.harness import Run
from experiments.posteriors import Trainings, point_then_svi
from experiments.recipes import cosine_adam
from jaxeff import uncertainty as u
from jaxeff.ensembles import feature_density
from jaxeff.nn import LeNet5
from jaxeff.program.costs import inputs_of
from jaxeff.training import cross_entropy, fit

LAST = "fc3"
OF_LOGITS: dict[str, Callable[[Any], Array]] = {"max logit": u.max_logit, "energy": u.energy}
OF_PREDICTION: dict[str, Callable[[Any], Array]] = {"MSP": u.msp, "GEN": u.generalized_entropy}
PART = 500
"""Images evaluated at once."""
Scores = dict[str, Array]


@dataclass(frozen=True)
class Posterior:
    """A way to predict."""

    networks: list[Any]  # parameters of the networks that features are read from
    # logits, of several networks their mean, from images
    logits: Callable[[Any], Float[Array, "batch classes"]]
    # logits whose softmax is the prediction
    prediction: Callable[[Any], Float[Array, "batch classes"]]
    # what of its uncertainty stems from not knowing the weights; None for one network
    epistemic: Callable[[Any], Float[Array, " batch"]] | None = None


def network() -> tuple[Callable[..., Any], Callable[[Array], Any]]:
    """LeNet-5 for the classes that are learnt, and its initial parameters from a key."""
    f, _ = jaxeff.functional(LeNet5(CLASSES, rngs=nnx.Rngs(0)))
    return f, lambda key: jaxeff.functional(LeNet5(CLASSES, rngs=nnx.Rngs(key)))[1]


def train(run: Run[Settings], sets: Sets) -> dict[str, Posterior]:
    """Trains the ensemble, whose first member is the deterministic network, and SVI about it."""
    settings, (f, start) = run.settings, network()
    steps = settings.epochs * (len(sets.train[1]) // settings.batch_size)
    adam = cosine_adam(settings.rate, steps)
    shared: dict[str, Any] = {"batch_size": settings.batch_size, "progress": False}
    members = []
    for i in range(settings.members):
        key = jax.random.fold_in(run.key, i)
        fitted_run = fit(
            key, cross_entropy(f), start(key), sets.train, optimizer=adam, epochs=settings.epochs,
            checkpoint=run.work / f"member{i}.safetensors", **shared,
        )  # fmt: skip
        members.append(fitted_run.params)
    trainings = Trainings(
        list(jax.random.split(run.key)), (0, settings.epochs), lambda _: (adam, adam),
        (run.work / "none", run.work / "svi.safetensors"), shared,
    )  # fmt: skip
    _, result = point_then_svi(
        f, members[0], sets.train, trainings, kl=settings.kl, init_scale=settings.init_scale
    )
    moments, stacked = jaxeff.moments(f), jax.tree.map(lambda *of: jnp.stack(of), *members)
    gaussian = result.posterior
    means = jax.tree.map(
        lambda leaf: leaf.mean, gaussian, is_leaf=lambda leaf: isinstance(leaf, jaxeff.Gaussian)
    )

    def each(x: Any) -> Any:
        return jax.vmap(f, (0, None))(stacked, x)

    return {
        "deterministic": Posterior(members[:1], *[partial(f, members[0])] * 2),
        "moments": Posterior(
            [means], lambda x: moments(gaussian, x).mean,
            lambda x: u.probit_logits(moments(gaussian, x)),
            lambda x: u.moment_information(moments(gaussian, x)),
        ),
        "ensemble": Posterior(
            members, lambda x: each(x).mean(0), lambda x: u.predictive_log_probs(each(x)),
            lambda x: u.decompose_logits(each(x)).epistemic,
        ),
    }  # fmt: skip


def fitted(f: Callable[..., Any], params: Any, sets: Sets) -> dict[str, Callable[..., Any]]:
    """Fits every score of features to a network and the training images."""
    x, labels = sets.train
    h = u.in_batches(jax.jit(lambda x: inputs_of(f, LAST)(params, x)), x, PART)
    head = u.dense_head(f, params, x[:1], LAST)
    density = feature_density(h, labels, CLASSES, shrinkage=0.1)
    return {
        "ReAct": u.react(h, head), "DICE": u.dice(h, head, 70), "ASH": u.ash(head, 65),
        "KNN": u.knn(h, 10), "Mahalanobis": u.mahalanobis(h, labels, CLASSES),
        "relative Mahalanobis": u.relative_mahalanobis(h, labels, CLASSES),
        "ViM": u.vim(h, head), "DDU": lambda h, _: -density.log_density(h),
    }  # fmt: skip


def scorer(posterior: Posterior, sets: Sets) -> Callable[[Any], Scores]:
    """Makes a function from images to every score of them, and the predicted classes."""
    f, _ = network()
    members = [(params, fitted(f, params, sets)) for params in posterior.networks]
    perturbed = u.odin(f, 100.0, 0.01)

    def score(x: Any) -> Scores:
        prediction = posterior.prediction(x)
        found: Scores = {name: of(posterior.logits(x)) for name, of in OF_LOGITS.items()}
        found |= {name: of(prediction) for name, of in OF_PREDICTION.items()}
        each: list[dict[str, Array]] = []
        for params, scores in members:
            h = inputs_of(f, LAST)(params, x)
            z = f(params, x)
            each.append({name: of(h, z) for name, of in scores.items()})
            each[-1]["ODIN"] = perturbed(params, x)
        found |= jax.tree.map(lambda *of: sum(of) / len(of), *each)
        if posterior.epistemic is not None:
            found["epistemic"] = posterior.epistemic(x)
        return {**found, "class": prediction.argmax(-1)}

    compiled = jax.jit(score)
    return lambda x: u.in_batches(compiled, x, PART)
