"""Single weights removed: the same networks without channels lost, and what their files take."""

import math
from typing import Any

import jax
from scipy.stats import norm

import jaxeff
from experiments.classifiers import Trained, accuracy, how_to_train
from experiments.harness import Row, Run
from experiments.pruning.recipe import Settings, Subject
from jaxeff.compression import init, quantized, update_statistics
from jaxeff.pruning import sparsity
from jaxeff.training import cross_entropy, fit

METHODS = ("random", "magnitude", "cubic", "surgery", "brain surgeon")
BLOCKS = "2 of 4"
"""A method whose share is its own."""
EVERY = 16
"""Updates between the masks of dynamic surgery."""


def sparse(run: Run[Settings], subject: Subject, model: Trained, method: str, share: float) -> Row:
    """One method: what it leaves, before and after training on."""
    settings, net = run.settings, model.network
    ends: dict[str, Any] = {model.sites[0]: None, model.sites[-1]: None}
    x = model.calibration(settings.calibration)
    params, state = model.params, model.state
    spec: Any = {"*:linear": _setting(method, share)} | ends
    if method == "brain surgeon":
        _, params, spec = sparsity.optimal_brain_surgeon(net.evaluate, params, (state, x), spec)
    else:
        spec = init(net.evaluate, params, (state, x), spec)
    data = tuple(part[: subject.retrain_images] for part in model.images.train)
    steps = subject.retrain * (len(data[1]) // settings.batch_size)
    growing = sparsity.cubic_schedule(share, begin=0, end=max(1, steps // 2))

    def loss(key: Any, params: Any, carried: Any, batch: Any, step: Any) -> Any:
        state, spec = carried
        used = {"*:linear": sparsity.Magnitude(growing(step))} | ends if method == "cubic" else spec
        of_network = cross_entropy(quantized(net.train, used), mutable=True)
        value, (metrics, after) = of_network(key, params, state, batch, step)
        if method == "surgery":
            spec = jax.lax.cond(
                step % EVERY == 0,
                lambda: update_statistics(net.evaluate, params, (state, batch[0]), spec),
                lambda: spec,
            )
        return value, (metrics, (after, spec))

    before = accuracy(quantized(net.evaluate, spec), (params, state), model.images)
    result = fit(
        jax.random.fold_in(run.fast_key, 700 + model.seed), loss, params, data,
        state=(state, spec), 
        **how_to_train(settings.retrain_rate, data, subject.retrain, settings.batch_size),
    )  # fmt: skip
    params, (state, spec) = result.params, result.state
    g = quantized(net.evaluate, spec)
    return {
        "subject": subject.name, "seed": model.seed, "method": method, "share": share,
        "before": before, "after": accuracy(g, (params, state), model.images),
        "bytes": jaxeff.cost(g, params, state, model.images.test[0][:1]).size,
    }  # fmt: skip


def _setting(method: str, share: float) -> Any:
    if method == "random":
        return sparsity.RandomMask(share)
    if method == BLOCKS:
        return sparsity.NofM(2, 4)
    if method == "surgery":  # whose threshold lies so many deviations above the mean of |w|
        mean = (2 / math.pi) ** 0.5
        return sparsity.Surgery(float((norm.ppf((1 + share) / 2) - mean) / (1 - mean**2) ** 0.5))
    return sparsity.Magnitude(share)
