"""FLOPs and bytes of a quantization-aware training step beside one written by hand."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from experiments.harness import Row
from experiments.transforms import cost, handwritten
from jaxeff.compression import LSQ, Int, init, learned, quantized

BITS = 4
METHODS = ("int", "lsq")
RATE = 0.01


def compare(name: str, batch: int, method: str) -> Row:
    """XLA's counts of one step of gradient descent, ours and by hand, and how far they differ."""
    net = cost.subject(name, batch)
    labels = jnp.arange(batch) % 10
    ours, by_hand, trained, other = _pair(net, method)
    step, expected = (functools.partial(_step, g) for g in (ours, by_hand))
    args, args_by_hand = ((p, net.x, labels) for p in (trained, other))
    compiled = cost.compile_for(step, args)
    compiled_by_hand = cost.compile_for(expected, args_by_hand)
    row: Row = {"net": name, "batch": batch, "method": method}
    counts, counts_by_hand = cost.count(compiled), cost.count(compiled_by_hand)
    for what in ("flops", "bytes"):
        row[what], row[f"{what}_by_hand"] = counts[what], counts_by_hand[what]
        row[f"{what}_ratio"] = counts[what] / counts_by_hand[what]
    losses = [float(c(*a)[0]) for c, a in ((compiled, args), (compiled_by_hand, args_by_hand))]
    row["difference"] = abs(losses[0] / losses[1] - 1)
    return row


def _step(g: Callable[..., Any], trained: Any, x: jax.Array, labels: jax.Array) -> Any:
    def loss(trained: Any) -> jax.Array:
        logits = g(trained, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, slope = jax.value_and_grad(loss)(trained)
    return value, jax.tree.map(lambda p, d: p - RATE * d, trained, slope)


def _pair(net: cost.Subject, method: str) -> tuple[Any, Any, Any, Any]:
    """Ours and by hand, as functions of what is trained and a batch; what is trained in each."""
    if method == "int":
        layers: Any = handwritten.Quantized(BITS)
        return (
            quantized(net.f, {"*:linear": Int(BITS)}),
            lambda p, x: net.by_hand(layers, p, net.state, x),
            net.params,
            net.params,
        )
    spec: Any = init(net.f, net.params, net.x, {"*:linear": LSQ(BITS)})
    steps = {site: (s.weights.step, s.activations.step) for site, s in spec.items() if s}

    def by_hand(trained: Any, x: jax.Array) -> Any:
        params, steps = trained
        return net.by_hand(Learned(), _with_steps(params, steps), net.state, x)

    return learned(net.f), by_hand, (net.params, spec), (net.params, steps)


def _with_steps(params: Any, steps: dict[str, Any], path: str = "") -> Any:
    """The parameters with the steps of each layer among them."""
    if not isinstance(params, dict):
        return params
    inside = {k: _with_steps(v, steps, f"{path}/{k}".strip("/")) for k, v in params.items()}
    return inside | ({"steps": steps[path]} if path in steps else {})


class Learned(handwritten.Plain):
    """Learned step sizes (Esser et al., arXiv:1902.08153); only the first input has a sign."""

    def __init__(self) -> None:
        self._signed = True

    def _quantize(self, x: jax.Array, step: jax.Array, signed: bool) -> jax.Array:
        lower, upper = (-(2 ** (BITS - 1)), 2 ** (BITS - 1) - 1) if signed else (0, 2**BITS - 1)
        still = lax.stop_gradient(step)
        step = still + (step - still) / (x.size * upper) ** 0.5
        v = jnp.clip(x / step, lower, upper)
        return (v + lax.stop_gradient(jnp.round(v) - v)) * step

    def _both(self, params: Any, x: Any) -> tuple[Any, Any]:
        of_weights, of_input = params["steps"]
        x = self._quantize(x, of_input, self._signed)
        self._signed = False
        return {**params, "kernel": self._quantize(params["kernel"], of_weights, True)}, x

    def conv(self, params: Any, x: Any, stride: int, padding: Any) -> Any:
        """Convolution of quantized values."""
        return super().conv(*self._both(params, x), stride, padding)

    def dense(self, params: Any, x: Any) -> Any:
        """Matrix product of quantized values."""
        return super().dense(*self._both(params, x))
