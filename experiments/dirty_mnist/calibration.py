"""The calibration factor of the moment pass, measured: what it does, and where it comes from.

The source scales the variances of all weights by 0.3 (MLP) or 0.4 (LeNet-5) before the moment pass
and supposes that moment matching makes this necessary (Klein's thesis, section 8.3). Its released
weights hold standard deviations as ``softplus(raw)``, and its released operators read their
variances as ``exp(raw)``. So both readings are swept here:
``right`` and ``misread``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import jaxeff
from experiments.dirty_mnist.evaluation import draw_logits, evaluate
from experiments.dirty_mnist.recipe import Sets, Settings
from jaxeff.moment_propagation import Gaussian, is_gaussian
from jaxeff.uncertainty import in_batches


def misread(posterior: Any) -> Any:
    """Take ``exp(raw)`` for the variance of weights whose standard deviation is softplus(raw)."""
    return _of_variances(lambda var: jnp.expm1(jnp.sqrt(var)), posterior)


def sweep(
    key: jax.Array,
    f: Callable[..., Any],
    posterior: Any,
    sampled: dict[str, Float[Array, "samples n classes"]],
    settings: Settings,
    sets: Sets,
) -> list[dict[str, Any]]:
    """Figures of the moment pass for each factor and both readings of the variances.

    Args:
        key: For drawing logits.
        f: The network.
        posterior: Pytree of `Gaussian`.
        sampled: Logits of the sampled network, for comparison.
        settings: With the factors.
        sets: The data.

    Returns:
        One record per reading and factor. ``variance_ratio`` is the median, over the clean digits
        and the classes, of the logit variance over that of the sampled network.
    """
    factors = jnp.asarray(settings.factors)
    reference = {domain: values.var(0, ddof=1) for domain, values in sampled.items()}
    readings = {"right": posterior, "misread": misread(posterior)}
    rows = []
    for reading, given in readings.items():
        swept = {
            domain: in_batches(partial(_at_factors, f, given, factors), images, axis=-2)
            for domain, images in sets.test.items()
        }
        for i, factor in enumerate(settings.factors):
            logits = {d: jax.tree.map(lambda a: a[i], g) for d, g in swept.items()}  # noqa: B023
            ratios = {
                d: float(jnp.median(g.var / jnp.maximum(reference[d], 1e-12)))
                for d, g in logits.items()
            }
            samples = draw_logits(key, logits, settings)
            rows.append(
                {
                    "reading": reading,
                    "factor": factor,
                    "variance_ratio": ratios["clean"],
                    **{f"variance_ratio_{d}": r for d, r in ratios.items() if d != "clean"},
                    **evaluate(samples, sets).figures,
                }
            )
    return rows


@partial(jax.jit, static_argnums=0)
def _at_factors(f: Callable[..., Any], posterior: Any, factors: Array, images: Array) -> Gaussian:
    """Gaussian logits ``[factors, batch, classes]``, all factors in one program."""
    propagate = jaxeff.moments(f)

    # One after the other: convolutions vmapped over their weights' variances are slow on CPUs.
    def at(factor: Array) -> Gaussian:
        return propagate(_of_variances(lambda var: factor * var, posterior), images)

    return jax.lax.map(at, factors)


def _of_variances(change: Callable[[Array], Array], posterior: Any) -> Any:
    return jax.tree.map(
        lambda leaf: Gaussian(leaf.mean, change(leaf.var)) if is_gaussian(leaf) else leaf,
        posterior,
        is_leaf=is_gaussian,
    )
