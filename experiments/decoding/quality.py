"""Perplexity of a small language model whose weights are rounded to about four bits.

The model reads 16 characters and predicts the next one; its text is Python's own reference, the
last tenth held out.
"""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.harness import Row
from experiments.recipes import cosine_adam
from jaxeff.compression import Int, LayerQuantization, memory, mxfp, nf4, nvfp4, quantized
from jaxeff.training import cross_entropy, fit

CONTEXT, WIDTH, HIDDEN, CHARACTERS = 16, 16, 512, 128
SITES = "fc*"


def _weights(bits: int = 4, **group: Any) -> Int:
    return Int(bits, symmetric="weights", activations=False, **group)


def _group(size: int, steps: str = "float16") -> Int:
    return _weights(per="group", group=size, steps=steps)


METHODS = {
    "float32": None,
    "int8 per channel": _weights(8),
    "int4 per channel": _weights(),
    "int4 g128": _group(128),
    "int4 g32": _group(32),
    "int4 g32, 8-bit steps": _group(32, "int8"),
    "NF4 g64": LayerQuantization(nf4()),
    "NVFP4": LayerQuantization(nvfp4()),
    "MXFP4": LayerQuantization(mxfp()),
    "int3 g32": _weights(3, per="group", group=32, steps="float16"),
}


def perplexities(key: Any, steps: int) -> Iterator[Row]:
    """Trains the model once, and measures it in every format.

    Args:
        key: A key of everything random.
        steps: Steps of training.
    """
    windows = _windows()
    cut = len(windows) * 9 // 10
    train, held = windows[:cut], windows[cut:]
    at = jax.random.permutation(jax.random.fold_in(key, 1), cut)[: 512 * steps]
    params = fit(
        jax.random.fold_in(key, 2), cross_entropy(model), _start(key),
        _pairs(train[np.asarray(at)]),
        optimizer=cosine_adam(2e-3, steps), epochs=1, batch_size=512, progress=False,
    ).params  # fmt: skip
    data = _pairs(held[:: max(1, len(held) // 8192)])
    for name, setting in METHODS.items():
        spec = {} if setting is None else {SITES: setting}
        value = float(jnp.exp(_nll(quantized(model, spec), params, data)))
        weights = sum(params[layer]["kernel"].size for layer in ("fc1", "fc2", "fc3"))
        bits = 32.0 if setting is None else float(memory(model, spec, params, data[0])) / weights
        yield {"format": name, "bits": bits, "perplexity": value}


def model(params: Any, x: Any) -> Any:
    """Predicts the logits of the next character."""
    h = params["table"][x].reshape(len(x), CONTEXT * WIDTH)
    for name in ("fc1", "fc2"):
        with jax.named_scope(name):
            h = jax.nn.relu(h @ params[name]["kernel"] + params[name]["bias"])
    with jax.named_scope("fc3"):
        return h @ params["fc3"]["kernel"] + params["fc3"]["bias"]


def _start(key: Any) -> Any:
    sizes = {"fc1": (CONTEXT * WIDTH, HIDDEN), "fc2": (HIDDEN, HIDDEN), "fc3": (HIDDEN, CHARACTERS)}
    params: dict[str, Any] = {"table": jax.random.normal(key, (CHARACTERS, WIDTH))}
    for i, (name, shape) in enumerate(sizes.items()):
        draws = jax.random.normal(jax.random.fold_in(key, i + 3), shape)
        params[name] = {"kernel": draws * (2 / shape[0]) ** 0.5, "bias": jnp.zeros(shape[1])}
    return params


def _windows() -> np.ndarray:
    text = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
    codes = np.frombuffer(text.encode("ascii", "ignore"), np.uint8)
    return np.lib.stride_tricks.sliding_window_view(codes, CONTEXT + 1)


def _pairs(windows: np.ndarray) -> tuple[Any, Any]:
    given = jnp.asarray(windows.astype(np.int32))
    return given[:, :-1], given[:, -1]


def _nll(f: Any, params: Any, batch: Any) -> Any:
    x, y = batch
    return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()
