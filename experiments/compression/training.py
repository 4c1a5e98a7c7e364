"""Quantization-aware training by any method, under one recipe."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

import jaxeff
from experiments.classifiers import Trained, accuracy, how_to_train
from experiments.compression.methods import Method
from experiments.compression.recipe import Settings, Subject
from experiments.harness import Row, Run
from jaxeff.compression import calibrate, deterministic, init, learned, memory, penalty, quantized
from jaxeff.training import DivergedError, cross_entropy, fit

PRESSURE = 1.0
"""Weight of the squared excess over a budget, relative to the budget."""


def train(run: Run[Settings], subject: Subject, model: Trained, method: Method) -> Row:
    """Trains a network on in a method's bits, from where float training ended.

    Returns:
        Accuracy with (`trained`) and without it (`untrained`), bytes, bit operations and mean bits.
    """
    settings, net = run.settings, model.network
    spec = start(settings, model, method)
    key = jax.random.fold_in(run.fast_key, 100 + model.seed)
    x = model.images.train[0][: subject.retrain_images]
    data = x, model.images.train[1][: subject.retrain_images]
    steps = subject.retrain * (len(x) // settings.batch_size)
    how = how_to_train(settings.retrain_rate, data, subject.retrain, settings.batch_size)
    slow = how_to_train(settings.retrain_rate / 10, data, subject.retrain, settings.batch_size)
    of_weights = how["optimizer"]
    if method.after is not None:
        of_weights = optax.chain(of_weights, method.after(steps, (model.sites[0], model.sites[-1])))
    of_spec = slow["optimizer"] if method.learns else optax.set_to_zero()
    optimizer = optax.partition({"params": of_weights, "spec": of_spec}, ("params", "spec"))
    # Incremental quantization is done by the optimizer: the network computes with what it holds.
    function = net.train if method.after is not None else learned(net.train, keyed=method.keyed)
    loss = _loss(model, method, function, settings.batch_size)
    evaluated = quantized(net.evaluate, deterministic(spec))
    row = {
        "subject": subject.name, "seed": model.seed, "family": method.family,
        "weight_bits": method.weight_bits, "activation_bits": method.activation_bits,
        "untrained": accuracy(evaluated, (model.params, model.state), model.images),
    }  # fmt: skip
    try:
        result = fit(
            key, loss, (model.params, spec), data, state=model.state,
            **how | {"optimizer": optimizer},
        )  # fmt: skip
    except DivergedError as error:
        return row | {"trained": None, "message": str(error)}
    params, spec = result.params
    final = deterministic(spec)
    g = quantized(net.evaluate, final)
    measured = jaxeff.cost(g, params, result.state, jnp.asarray(x[:1]))
    return row | {
        "trained": accuracy(g, (params, result.state), model.images),
        "bytes": measured.size, "bops": measured.bops, "peak_bytes": measured.peak,
    }  # fmt: skip


def start(settings: Settings, model: Trained, method: Method) -> Any:
    """A method's spec with the numbers that it starts from."""
    net, (first, last) = model.network, (model.sites[0], model.sites[-1])
    spec = method.spec(first, last)
    x = model.calibration(settings.calibration)
    f, params, state = net.evaluate, model.params, model.state
    if method.family == "fixed":
        return calibrate(f, params, [(state, x)], spec).spec
    return init(f, params, (state, x), spec)


def _loss(model: Trained, method: Method, function: Any, batch: int) -> Any:
    """Cross entropy, and what a method adds to it."""
    net = model.network
    if method.after is not None:
        return cross_entropy(lambda p, state, x: function(p[0], state, x), mutable=True)
    base = cross_entropy(function, keyed=method.keyed, mutable=True)
    if not (method.penalty or method.bounded):
        return base
    shape = model.images.shape

    def loss(key: Any, both: Any, state: Any, data: Any, step: Any) -> Any:
        value, rest = base(key, both, state, data, step)
        params, spec = both
        x = jax.ShapeDtypeStruct((batch, *shape), jnp.float32)
        if method.penalty:
            value = value + penalty(net.evaluate, params, (state, data[0]), spec)
        if method.bounded:
            taken = memory(net.evaluate, params, (state, x), spec)
            budget = _budget(model, method)
            value = value + PRESSURE * jnp.square(jax.nn.relu(taken / budget - 1))
        return value, rest

    return loss


def _budget(model: Trained, method: Method) -> float:
    """Bits of all weights if each between the ends had those of the method, the others eight."""
    rows = jaxeff.cost(
        model.network.evaluate, model.params, model.state, model.images.test[0][:1]
    ).layers
    ends = (model.sites[0], model.sites[-1])
    return sum(
        row.weights * (8 if row.site in ends else method.weight_bits) for row in rows if row.macs
    )
