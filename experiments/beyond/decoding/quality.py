"""Perplexity of a small language model whose weights are rounded to about four bits, or pruned.

The model reads 16 characters and predicts the next one; its text is Python's own reference, the
last tenth held out.
"""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.harness import Row
from experiments.recipes import cosine_adam
from jaxeff.compression import (
    Grouped,
    Int,
    LayerQuantization,
    PostTrained,
    awq,
    gptq,
    memory,
    mxfp,
    nf4,
    nvfp4,
    quantized,
    rotate,
    smooth_quant,
)
from jaxeff.contrib import HalfQuadratic
from jaxeff.pruning.sparsity import NofM, wanda
from jaxeff.training import cross_entropy, fit

CONTEXT, WIDTH, HIDDEN, CHARACTERS = 16, 16, 512, 128
SITES = "fc*"
CALIBRATION = 512
"""Windows that transforms see."""


def _weights(bits: int = 4, **group: Any) -> Int:
    return Int(bits, activations=False, **group)


def _group(size: int, steps: str = "float16") -> Int:
    return _weights(per="group", group=size, steps=steps)


Fitted = tuple[Any, dict[str, Any]]


def _alone(setting: Any) -> Callable[[Any, Any], Fitted]:
    """Rounds to the nearest values."""
    return lambda params, batch: (params, {} if setting is None else {SITES: setting})


def _by(transform: Callable[..., PostTrained], setting: Any) -> Callable[[Any, Any], Fitted]:
    """Changes parameters by what layers read first."""
    return lambda params, batch: transform(model, params, batch, {SITES: setting})[1:]


_BOTH = Int(4, activations_per="token")
METHODS: dict[str, Callable[[Any, Any], Fitted]] = {
    "float32": _alone(None),
    "int8 per channel": _alone(_weights(8)),
    "int4 per channel": _alone(_weights()),
    "int4 g128": _alone(_group(128)),
    "int4 g32": _alone(_group(32)),
    "int4 g32, AWQ": _by(awq, _group(32)),
    "int4 g32, GPTQ": _by(gptq, _group(32)),
    "int4 g32, 8-bit steps": _alone(_group(32, "int8")),
    "int4 g64, HQQ": _alone(LayerQuantization(Grouped(HalfQuadratic(4, numbers="float16"), 64))),
    "NF4 g64": _alone(LayerQuantization(nf4())),
    "NVFP4": _alone(LayerQuantization(nvfp4())),
    "MXFP4": _alone(LayerQuantization(mxfp())),
    "int3 g32": _alone(_weights(3, per="group", group=32, steps="float16")),
    "int3 g32, GPTQ": _by(gptq, _weights(3, per="group", group=32, steps="float16")),
    "int3 g64, HQQ": _alone(LayerQuantization(Grouped(HalfQuadratic(3, numbers="float16"), 64))),
    "int4, activations too": _alone(_BOTH),
    "int4, activations too, SmoothQuant": _by(smooth_quant, _BOTH),
    "int4, activations too, rotated": _by(partial(rotate, jax.random.key(0)), _BOTH),
    "2:4 by magnitude": _alone(NofM(2, 4)),
    "2:4 by Wanda": _by(wanda, NofM(2, 4)),
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
    batch = _pairs(train[:: max(1, len(train) // CALIBRATION)])[0]
    for name, method in METHODS.items():
        fitted, spec = method(params, batch)
        value = float(jnp.exp(_nll(quantized(model, spec), fitted, data)))
        weights = sum(params[layer]["kernel"].size for layer in ("fc1", "fc2", "fc3"))
        bits = float(memory(model, fitted, data[0], spec)) / weights if spec else 32.0
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
    tokens = jnp.asarray(windows.astype(np.int32))
    return tokens[:, :-1], tokens[:, -1]


def _nll(f: Any, params: Any, batch: Any) -> Any:
    x, y = batch
    return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()
