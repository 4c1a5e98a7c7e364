"""The noisy sine by dropout, networks and heads: every seed of an activation in one program.

The activation is an argument of the program (`jax.lax.switch`), seeds a `vmap` over data sets and
starts, members one within it: three programs serve all rows.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

import jaxeff
from experiments.ensembles.recipe import FORMS, Sine
from experiments.harness import Row
from experiments.recipes import cosine_adam
from experiments.sines import Scene, grid, scene
from jaxeff import uncertainty as unc
from jaxeff.bayes.posteriors import heteroscedastic
from jaxeff.data import sine as noisy_sine
from jaxeff.ensembles import Interval, Members, member_loss, repulsive
from jaxeff.nn import ACTIVATIONS, MLP
from jaxeff.noise import Dropout
from jaxeff.training import init, make_epoch, stateless

GAMMA = "RLLE, gamma "
# The configurations of Klein's thesis, figure 9.2.
SOURCE = {"MC dropout": "SiLU", "DE": "SiLU", "RLLE": "SELU"}
PUSHED, FARTHER = 32, 1.0
"""Inputs per step at which heads repel each other, and how far beyond the judged ones they lie."""


class Method(NamedTuple):
    """How one of the three is trained and asked."""

    loss: Callable[[Any], Any]  # of a training, for the number of an activation
    init: Callable[[Any], Any]  # parameters from a key
    # `outputs(key, params, x, index)`, means and log-variances `[samples, n, 2]`
    outputs: Callable[[Any, Any, Any, Any], Array]


def methods(settings: Sine) -> list[str]:
    """Names of what is compared; heads once for every strength."""
    return ["MC dropout", "DE", *(f"{GAMMA}{gamma:g}" for gamma in settings.gammas)]


def rows(settings: Sine, key: jax.Array, method: str, activation: str) -> list[Row]:
    """A row for each seed; that of the first has the curves of its predictions."""
    keys = jax.random.split(key, settings.seeds)
    index = jnp.asarray([*ACTIVATIONS].index(activation))
    predicted = jax.device_get(_program(settings, method)(keys, index))
    rows = []
    for seed in range(settings.seeds):
        parts, (x, y) = jax.tree.map(lambda leaf: leaf[seed], predicted)  # noqa: B023
        labels = {"method": method, "activation": activation, "seed": seed}
        known = scene((x, y), settings.margin, settings.points)
        rows.append(labels | _figures(known, parts))
        if seed == 0:
            rows[0]["curves"] = {"x": x[:, 0], "y": y, **parts._asdict()}
    return rows


@functools.cache
def _program(settings: Sine, method: str) -> Callable[..., Any]:
    """The training and judging of all seeds, compiled once for all activations."""
    return jax.jit(jax.vmap(functools.partial(_trained, settings, method), (0, None)))


def _trained(settings: Sine, name: str, key: jax.Array, index: Array) -> tuple[Any, Any]:
    """One training: what it predicts, and its data."""
    data_key, start_key, train_key, key = jax.random.split(key, 4)
    x, y = noisy_sine.noisy_sine(data_key)
    method = _dropout(settings) if name == "MC dropout" else _ensemble(settings, name)
    optimizer = cosine_adam(settings.rate, settings.steps)
    epoch = make_epoch(method.loss(index), optimizer, len(y))

    def step(carry: Any, key: Any) -> tuple[Any, None]:
        return epoch(carry, key, (scaled(x), y))[0], None

    keys = jax.random.split(train_key, settings.steps)
    carry, _ = jax.lax.scan(step, init(method.init(start_key), optimizer), keys)
    at = grid(settings.margin, settings.points)
    outputs = method.outputs(key, carry.params, scaled(at[:, None]), index)
    parts = unc.decompose_regression(outputs)
    return unc.RegressionUncertainty(*(part[:, 0] for part in parts)), (x, y)


def _figures(known: Scene, parts: unc.RegressionUncertainty) -> dict[str, float]:
    """The columns of the thesis' table of activations, and where doubt rises."""
    doubt, inside = np.sqrt(parts.epistemic), np.asarray(known.inside)
    low, high = noisy_sine.span()
    beyond = np.asarray((known.x < low) | (known.x > high))
    places = {"inside": inside, "middle": ~inside & ~beyond, "beyond": beyond}
    means = {f"epistemic_{name}": float(doubt[place].mean()) for name, place in places.items()}
    return known.figures(parts) | means


CENTRE, SPREAD = -0.5, 3.5
"""Of the regimes, for inputs of about unit variance."""


def scaled(x: Any) -> Any:
    """What networks see of inputs."""
    return (x - CENTRE) / SPREAD


def _network(settings: Sine) -> tuple[Callable[..., Array], Callable[[jax.Array], Any]]:
    """An MLP whose activation is a traced number, and its initial parameters."""
    branches = [*ACTIVATIONS.values()]
    widths = (1, settings.hidden, settings.hidden, 2)

    def f(params: Any, x: Array, index: Array) -> Array:
        for layer in ("fc1", "fc2", "fc3"):
            x = x @ params[layer]["kernel"] + params[layer]["bias"][None]
            if layer != "fc3":
                x = jax.lax.switch(index, branches, x)
        return x

    def start(key: jax.Array) -> Any:
        return jaxeff.functional(MLP(widths, rngs=nnx.Rngs(key)))[1]

    return f, start


def _dropout(settings: Sine) -> Method:
    f, start = _network(settings)
    drop = Dropout(settings.dropout, at="input")
    g = jaxeff.noisy(f, {"fc2": drop, "fc3": drop})

    def loss(index: Any) -> Any:
        def of_batch(key: Any, params: Any, batch: Any) -> Any:
            x, y = batch
            return -heteroscedastic(g(key, params, x, index)).log_prob(y).mean()

        return stateless(of_batch)

    def outputs(key: Any, params: Any, x: Any, index: Any) -> Array:
        keys = jax.random.split(key, settings.samples)
        return jax.lax.map(lambda each: g(each, params, x, index), keys)

    return Method(loss, start, outputs)


def _ensemble(settings: Sine, name: str) -> Method:
    f, start = _network(settings)
    spec = {"*" if name == "DE" else "fc3": Members(settings.members)}

    def ensemble(key: jax.Array, index: Any) -> Any:
        return jaxeff.ensemble(
            key, lambda params, x: f(params, x, index), start(key), spec, init=start
        )  # fmt: skip

    def loss(index: Any) -> Any:
        g, _ = ensemble(jax.random.key(0), index)
        plain = member_loss(g, "gaussian")
        return plain if name == "DE" else _repulsive(settings, name, g, plain)

    def fresh(key: jax.Array) -> Any:
        return ensemble(key, jnp.asarray(0))[1]

    def outputs(key: Any, params: Any, x: Any, index: Any) -> Array:
        return ensemble(jax.random.key(0), index)[0](params, x)

    return Method(loss, fresh, outputs)


def _repulsive(settings: Sine, name: str, g: Any, plain: Any) -> Any:
    """Heads' means repel each other anywhere; variances above one are kept from growing there."""
    low, high = (scaled(x) for x in noisy_sine.span(margin=settings.margin + FARTHER))
    samples = Interval(low, high, PUSHED)
    examples = sum(regime.count for regime in noisy_sine.REGIMES)
    gamma = float(name.partition(GAMMA)[2])

    def regularised(key: Any, params: Any, state: Any, batch: Any, step: Any) -> Any:
        value, aux = plain(key, params, state, batch, step)
        log_variances = g(params, samples(key, batch[0]))[..., 1]
        return value + settings.lambda_var * (jax.nn.relu(log_variances) ** 2).mean(1).sum(), aux

    return repulsive(
        regularised, g, samples, strength=gamma / examples, space=lambda p, x: g(p, x)[..., :1],
        **FORMS["source"],
    )  # fmt: skip
