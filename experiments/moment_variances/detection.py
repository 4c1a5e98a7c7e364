"""Telling inputs of another kind by the mutual information of logits: moment passes and sampling.

One posterior of SVI per network and data set serves all methods.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxeff
from experiments.harness import Refused, Row, Run
from experiments.moment_variances.methods import BASE, BOTH, CALIBRATED, DIAGONAL, JOINT, passes
from experiments.moment_variances.networks import Case
from experiments.moment_variances.recipe import OUTSIDE, Settings
from experiments.posteriors import point_then_svi
from experiments.recipes import cosine_adam
from jaxeff import data
from jaxeff.bayes import predict
from jaxeff.dirty_mnist import dirty_mnist
from jaxeff.nn import MLP, LeNet5
from jaxeff.uncertainty import accuracy, auroc, decompose_logits, sample_logits

MODELS: dict[str, Callable[[nnx.Rngs], nnx.Module]] = {
    "LeNet-5": lambda rngs: LeNet5(rngs=rngs),
    "MLP": lambda rngs: MLP((784, 100, 10), rngs=rngs),
}
_LOGIT_SAMPLES = 100
_RESAMPLES = 200
_DRAWS = 5
"""Of thirty weights: AUROCs of one network differ by up to .007 between draws."""


class Sets(NamedTuple):
    """Normalised images, channels last, and labels."""

    images: Any
    labels: Any
    test_images: Any
    test_labels: Any
    outside: Any


def load(domain: str, settings: Settings) -> Sets:
    """In-domain and out-of-domain images, both normalised by the first's statistics.

    In Dirty-MNIST's test set every other image is ambiguous and counts with its first label.
    """
    statistics = "mnist" if domain == "dirty-mnist" else domain
    m = settings.test_images
    try:
        outside = data.load(OUTSIDE[domain]).test_images[:m]
        if domain == "dirty-mnist":
            dirty = dirty_mnist()
            train, digits, half = dirty.train(), dirty.digits, m // 2
            test = (
                np.concatenate([digits.test_images[:half], dirty.test_images[:half]]),
                np.concatenate([digits.test_labels[:half], dirty.test_labels[:half, 0]]),
            )
        else:
            found = data.load(domain)
            train = found.train_images, found.train_labels
            test = found.test_images[:m], found.test_labels[:m]
    except data.DataError as error:
        raise Refused(str(error)) from error

    def images(raw: Any) -> Any:
        return jnp.asarray(data.normalize(raw, statistics))

    order = np.random.default_rng(0).permutation(len(train[1]))[: settings.train_images]
    return Sets(
        images(train[0][order]), jnp.asarray(train[1][order], jnp.int32),
        images(test[0]), jnp.asarray(test[1], jnp.int32), images(outside),
    )  # fmt: skip


def trained(run: Run[Settings], network: str, domain: str, sets: Sets) -> tuple[Any, Any]:
    """The function and its posterior, trained by SVI from a point estimate; kept."""
    epochs = run.settings.epochs
    keys = jax.random.split(run.key, 3)
    f, params = jaxeff.functional(MODELS[network](nnx.Rngs(keys[0])))
    file = run.work / f"{network}-{domain}"
    recorded = {"images": len(sets.labels), "epochs": epochs}
    _, result = point_then_svi(
        (keys[1], keys[2]), f, params, (sets.images, sets.labels), (1, epochs),
        lambda steps: (cosine_adam(2e-3, steps), cosine_adam(3e-3, epochs * steps)),
        (file.with_suffix(".point.safetensors"), file.with_suffix(".svi.safetensors")),
        {"batch_size": 100, "settings": recorded}, prior=1.0, kl=0.25, init_scale=1e-2,
    )  # fmt: skip
    return f, result.posterior


def lenet5(run: Run[Settings]) -> Case:
    """LeNet-5 under its posterior, with test images of MNIST as inputs."""
    sets = load("mnist", run.settings)
    f, posterior = trained(run, "LeNet-5", "mnist", sets)

    def inputs(key: jax.Array, n: int) -> Any:
        return sets.test_images[jax.random.choice(key, len(sets.test_images), (n,), False)]

    return Case(f, posterior, inputs, True)


def detect(run: Run[Settings], network: str, domain: str) -> list[Row]:
    """Rows of one network and data set, one per method."""
    settings = run.settings
    sets = load(domain, settings)
    f, posterior = trained(run, network, domain, sets)
    keys = jax.random.split(run.key, 4)
    chunk = 1 if network == "LeNet-5" else 20
    seen = sets.images[: settings.calibration]
    methods = passes(keys[0], f, posterior, seen, settings.samples, chunk)
    methods[JOINT] = jax.jit(jaxeff.moments(f, correlations="full")), methods[BOTH][1]

    def gaussian(method: str, x: Any) -> Any:
        g, given = methods[method]
        return sample_logits(keys[1], g(given, x), _LOGIT_SAMPLES)

    def sampled(draw: int, x: Any) -> Any:
        return predict(jax.random.fold_in(keys[2], draw), f, posterior, x, samples=BASE)

    ways: dict[str, Callable[[Any], Any]] = {
        method: partial(gaussian, method) for method in (DIAGONAL, CALIBRATED, BOTH, JOINT)
    }
    ways |= {f"{BASE} samples, draw {n}": partial(sampled, n) for n in range(_DRAWS)}
    scores, right = {}, {}
    for method, logits in ways.items():
        inside, outside = (
            jnp.concatenate([logits(x[i : i + 100]) for i in range(0, len(x), 100)], axis=1)
            for x in (sets.test_images, sets.outside)
        )
        scores[method] = [np.asarray(decompose_logits(y).epistemic) for y in (inside, outside)]
        probs = jax.nn.softmax(inside).mean(0)
        right[method] = float(accuracy(probs, sets.test_labels))
    bases = [pair for method, pair in scores.items() if "draw" in method]
    base = [_auroc(pair) for pair in bases]
    return [
        {
            "network": network, "in domain": domain, "out": OUTSIDE[domain], "method": method,
            "accuracy": right[method], "auroc": _auroc(pair), "base": float(np.mean(base)),
            "base_spread": float(np.std(base, ddof=1)),
            "standard_error": _paired_error(pair, bases),
        }
        for method, pair in scores.items()
    ]  # fmt: skip


def _auroc(sides: Any) -> float:
    inside, outside = sides
    return float(auroc(inside, outside))


def _paired_error(ours: Any, bases: Any) -> float:
    """The standard error of an AUROC less that of sampling, on the same images, by bootstrap.

    Resampled are the images, and which draw of weights the sampling has.
    """
    rng = np.random.default_rng(0)
    found = []
    for _ in range(_RESAMPLES):
        base = bases[rng.integers(len(bases))]
        rows = [rng.integers(0, len(side), len(side)) for side in ours]
        first, second = (
            _auroc([side[i] for side, i in zip(pair, rows, strict=True)]) for pair in (ours, base)
        )
        found.append(first - second)
    return float(np.std(found))
