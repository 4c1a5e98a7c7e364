"""The two problems: classes of two moons, and the noisy sine with a predicted noise level.

How long each method runs, and of which size the networks are, is ours.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, Bool, Float

from experiments import sines
from jaxeff import functional
from jaxeff.data import plane, two_moons
from jaxeff.data import sine as noisy_sine
from jaxeff.nn import MLP
from jaxeff.uncertainty import (
    auroc,
    decompose_logits,
    decompose_regression,
    nll_from_log,
    out_of_domain,
    predictive_log_probs,
)

TEST = 1000
SIDE = 40
MOONS_MARGIN = 1.0


@dataclass(frozen=True)
class Settings:
    """Everything the figures depend on."""

    width: int  # units of both hidden layers
    warmup: int  # iterations of warm-up of the teacher
    samples: int  # draws of each chain that are kept
    max_depth: int  # of NUTS
    pretrain_epochs: int  # of the point estimate, from which variational inference starts
    epochs: int  # of variational inference
    chains: int = 4  # Markov chains
    kl: float = 0.25  # final weight of the KL term, reached linearly
    rate: float = 1e-2  # learning rate of Adam, decayed by a cosine
    particles: int = 8  # weight draws of a training step
    unlabelled: int = 800  # inputs for distillation
    teacher_draws: int = 100  # draws of the teacher that are distilled
    draws: int = 300  # of a variational posterior, to predict with


@dataclass(frozen=True)
class Problem:
    """A data set, a network and what is asked of its posterior."""

    name: str  # the problem's
    likelihood: str  # as `jaxeff.bayes` takes it
    f: Callable[..., Any]  # the network
    params: Any  # its initial parameters
    train: tuple[Array, Array]  # inputs and targets
    test: tuple[Array, Array]  # inputs and targets from the same distribution
    points: Float[Array, "points features"]  # where uncertainty is evaluated
    outside: Bool[Array, " points"]  # which of them lie where there are no data
    unlabelled: Float[Array, "n features"]  # inputs for distillation, uniform over the same region
    # from outputs ``[draws, test, ...]`` to the predictive NLL, nats per example
    nll: Callable[[Any], Float[Array, ""]]
    # from outputs to the epistemic uncertainty: mutual information in nats, or a standard deviation
    # in units of the target
    epistemic: Callable[[Any], Float[Array, " points"]]

    def auroc(self, epistemic: Float[Array, " points"]) -> float:
        """How well epistemic uncertainty tells where there are no data."""
        return float(auroc(epistemic[~self.outside], epistemic[self.outside]))


def moons(settings: Settings, seed: int) -> Problem:
    """Two moons, 200 examples; out of domain is where a kernel density estimate says so."""
    keys = jax.random.split(jax.random.key(seed), 4)
    train, test = (
        jax.tree.map(jnp.asarray, two_moons(keys[i], n)) for i, n in ((0, 200), (1, TEST))
    )
    _, points = plane(train[0], MOONS_MARGIN, SIDE)
    low, high = points.min(0), points.max(0)
    f, params = functional(_network(2, settings.width))
    return Problem(
        "moons", "categorical", f, params, train, test, points, out_of_domain(points, train[0]),
        jax.random.uniform(keys[2], (settings.unlabelled, 2), minval=low, maxval=high),
        lambda outputs: nll_from_log(predictive_log_probs(outputs), test[1]),
        lambda outputs: decompose_logits(outputs).epistemic,
    )  # fmt: skip


def sine(settings: Settings, seed: int) -> Problem:
    """The noisy sine, inputs standardised; out of domain are its gaps."""
    keys = jax.random.split(jax.random.key(seed), 3)
    train, test = noisy_sine.noisy_sine(keys[0]), noisy_sine.noisy_sine(keys[1])
    mean, std = train[0].mean(), train[0].std()
    x = sines.grid(sines.MARGIN, SIDE * 10)
    f, params = functional(_network(1, settings.width))
    anywhere = jax.random.uniform(keys[2], (settings.unlabelled, 1), minval=x[0], maxval=x[-1])

    def nll(outputs: Float[Array, "draws test 2"]) -> Float[Array, ""]:
        log_density = norm.logpdf(test[1], outputs[..., 0], jnp.exp(outputs[..., 1] / 2))
        return -(logsumexp(log_density, 0) - np.log(len(outputs))).mean()

    return Problem(
        "sine", "gaussian", f, params,
        ((train[0] - mean) / std, train[1]), ((test[0] - mean) / std, test[1]),
        (x[:, None] - mean) / std, ~noisy_sine.in_regime(x), (anywhere - mean) / std,
        nll, lambda outputs: jnp.sqrt(decompose_regression(outputs).epistemic[:, 0]),
    )  # fmt: skip


def _network(features: int, width: int) -> MLP:
    return MLP((features, width, width, 2), activation=jax.nn.silu, rngs=nnx.Rngs(0))
