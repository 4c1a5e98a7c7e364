"""Compression without training: ranges, equalization, rounding, and what each is worth."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from experiments.classifiers import BATCH, Trained, accuracy
from experiments.compression.methods import FLOAT
from experiments.compression.recipe import Settings
from experiments.harness import Row, Run
from jaxeff import compression as jc

WIDTHS = (2, 3, 4, 5, 6, 7, 8)
"""Of the accuracy over bits."""
BITS = ((8, 8), (4, 8), (3, 8), (4, 4))
"""Weights and activations of the methods side by side."""


def over_bits(run: Run[Settings], model: Trained) -> list[Row]:
    """Accuracy over the bits of weights, of activations and of both, in one program."""
    del run
    f, params = model.folded()
    reference, widths = FLOAT, np.array(WIDTHS)
    pairs = [(FLOAT, FLOAT), *((w, reference) for w in widths), *((reference, w) for w in widths)]
    pairs += [(w, w) for w in widths]
    sites = len(model.sites)
    weights, activations = (
        np.repeat(np.array(c)[:, None], sites, 1) for c in zip(*pairs, strict=True)
    )
    x, labels = model.images.test
    right = np.zeros(len(pairs))
    step = min(BATCH, len(labels))
    starts = range(0, len(labels) - step + 1, step)
    for i in starts:
        logits = jc.each_policy(f, params, x[i : i + step], model.sites, weights, activations)
        right += np.sum(np.asarray(logits).argmax(-1) == np.asarray(labels[i : i + step]), axis=1)
    return [
        {
            "subject": model.subject.name, "seed": model.seed, "weight_bits": int(w),
            "activation_bits": int(a), "accuracy": float(r) / (len(starts) * step),
        }
        for (w, a), r in zip(pairs, right, strict=True)
    ]  # fmt: skip


def side_by_side(run: Run[Settings], model: Trained) -> list[Row]:
    """Accuracy of every method without training."""
    settings = run.settings
    x = model.calibration(settings.calibration)
    rows = []
    for weights, activations in BITS:
        for name, make in _methods(settings.rounding_steps).items():
            f, params, spec = make(*model.folded(), x, weights, activations)
            rows.append(
                {
                    "subject": model.subject.name, "seed": model.seed, "method": name,
                    "weight_bits": weights, "activation_bits": activations,
                    "accuracy": accuracy(jc.quantized(f, spec), (params,), model.images),
                }
            )  # fmt: skip
    return rows


Compressed = tuple[Any, Any, Any]
"""A function, its parameters and their spec."""
Make = Callable[[Any, Any, jax.Array, int, int], Compressed]


def _ranges(method: str, f: Any, params: Any, x: Any, weights: int, bits: int) -> Compressed:
    wanted = {"*:linear": jc.Int(weights, bits, symmetric=False)}
    return jc.calibrate(f, params, x, wanted, method=method)


def _clipped(f: Any, params: Any, x: Any, weights: int, bits: int) -> Compressed:
    wanted = {"*:linear": jc.LayerQuantization(jc.Uniform(weights), jc.Uniform(bits))}
    return jc.calibrate(f, params, x, wanted, method="mse", weights=True)


def _equalized(f: Any, params: Any, x: Any, weights: int, bits: int) -> Compressed:
    f, params, _ = jc.equalize(f, params, x)
    return _ranges("minmax", f, params, x, weights, bits)


def _corrected(f: Any, params: Any, x: Any, weights: int, bits: int) -> Compressed:
    f, params, spec = _equalized(f, params, x, weights, bits)
    return jc.correct_biases(f, params, x, spec)


def _rounded(method: Any, f: Any, params: Any, x: Any, weights: int, bits: int) -> Compressed:
    spec = {"*:linear": jc.LayerQuantization(jc.Uniform(weights), None)}
    _, fitted, of_weights = method(f, params, x, spec)
    wanted = {"*:linear": jc.LayerQuantization(None, jc.Uniform(bits))}
    return f, fitted, _joined(of_weights, jc.calibrate(f, params, x, wanted).spec)


def _methods(steps: int) -> dict[str, Make]:
    """By name, a function of (f, params, x, weight bits, activation bits)."""
    return {
        **{name: partial(_ranges, name) for name in ("minmax", "percentile", "mse", "kl")},
        "mse, weights too": _clipped,
        "equalized": _equalized,
        "equalized, biases": _corrected,
        "adaround": partial(_rounded, partial(jc.adaround, steps=steps)),
        "gptq": partial(_rounded, jc.gptq),
        "awq": partial(_rounded, jc.awq),
    }


def _joined(
    weights: dict[str, Any], activations: dict[str, Any]
) -> dict[str, jc.LayerQuantization]:
    """Settings of the same sites for weights and for activations as one."""
    return {
        site: jc.LayerQuantization(weights[site].weights, activations[site].activations)
        for site in activations
    }
