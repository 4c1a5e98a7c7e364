"""Bits per layer by every allocator, at the bit operations of a uniform policy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxeff
from experiments.classifiers import Trained, accuracy
from experiments.compression.recipe import Settings
from experiments.harness import Row, Run
from jaxeff import compression as jc

WIDTHS = (2, 3, 4, 5, 6, 7, 8)


def allocate(run: Run[Settings], model: Trained) -> list[Row]:
    """Accuracy of every allocator's policy, without training.

    Returns:
        A row per allocator and budget, with the bits of every layer.
    """
    settings = run.settings
    f, params = model.folded()
    x = model.calibration(settings.calibration)
    labels = jnp.asarray(model.images.train[1][: settings.calibration])
    sites = model.sites
    cost = jaxeff.cost(f, params, x[:1])
    errors = jc.quantization_errors(f, params, x, sites, WIDTHS)

    def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        each = optax.softmax_cross_entropy_with_integer_labels(f(params, x), labels)
        return each.mean()

    key = jax.random.fold_in(run.fast_key, 200 + model.seed)
    trace = jc.hessian_trace(key, loss, params, (x, labels), sites, probes=settings.probes)
    sensitivities = {
        "kl": jc.kl_sensitivity(f, params, x, sites, WIDTHS),
        "hessian": jc.hessian_sensitivity(trace, errors),
        "noise to signal": jc.noise_to_signal(errors),
    }
    macs = {row.site: row.macs for row in cost.layers if row.site in sites}
    rows = []
    for bits in settings.budgets:
        budget = sum(macs.values()) * bits**2
        policies: dict[str, dict[str, Any]] = {
            "uniform": {s: jc.LayerQuantization(jc.Uniform(bits), jc.Uniform(bits)) for s in sites}
        }
        policies |= {
            name: jc.allocate_bits(_finite(table), cost, budget, unit="bops")
            for name, table in sensitivities.items()
        }
        policies["closed form"] = _closed_form(macs, budget)
        for name, spec in policies.items():
            chosen = {site: _bits(spec.get(site)) for site in sites}
            rows.append(
                {
                    "subject": model.subject.name, "seed": model.seed, "budget": bits,
                    "allocator": name,
                    "weight_bits": [w for w, _ in chosen.values()],
                    "activation_bits": [a for _, a in chosen.values()],
                    "sites": list(sites),
                    "bops": sum(macs[s] * w * a for s, (w, a) in chosen.items()) / budget,
                    "accuracy": accuracy(jc.quantized(f, spec), (params,), model.images),
                }
            )  # fmt: skip
    return rows


def _finite(table: jc.BitSensitivity) -> jc.BitSensitivity:
    """Curvature that is negative by chance counts as none."""
    weights, activations = (
        None if widths is None else np.maximum(widths, 0.0)
        for widths in (table.weights, table.activations)
    )
    return table._replace(weights=weights, activations=activations)


def _closed_form(macs: dict[str, int], budget: float) -> dict[str, jc.LayerQuantization]:
    """Whole bits of the largest signal-to-noise ratio that the budget allows (Lin et al.)."""
    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        if _work(macs, middle) <= budget:
            low = middle
        else:
            high = middle
    bits = _whole(macs, low)
    return {site: jc.LayerQuantization(jc.Uniform(b), jc.Uniform(b)) for site, b in bits.items()}


def _whole(macs: dict[str, int], decibels: float) -> dict[str, int]:
    widths = jc.signal_to_noise_bits({site: float(m) for site, m in macs.items()}, decibels)
    return {site: int(np.clip(np.floor(b), WIDTHS[0], WIDTHS[-1])) for site, b in widths.items()}


def _work(macs: dict[str, int], decibels: float) -> float:
    return sum(macs[site] * b * b for site, b in _whole(macs, decibels).items())


def _bits(setting: Any) -> tuple[int, int]:
    weights = setting.weights.bits if setting is not None and setting.weights else 32
    activations = setting.activations.bits if setting is not None and setting.activations else 32
    return int(weights), int(activations)
