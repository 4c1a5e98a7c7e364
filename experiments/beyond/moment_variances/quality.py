"""What a variance is good for: likelihood of test labels, and inputs of another kind told apart."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.beyond.moment_variances.networks import Sets
from experiments.harness import Row
from jaxeff.uncertainty import auroc, decompose_logits, nll_from_log, predictive_log_probs

_RESAMPLES = 200


def quality(logits: Callable[[Any], Any], sets: Sets, asked: int, batch: int) -> Row:
    """NLL of test labels, and AUROC of mutual information with its standard error.

    Args:
        logits: Sampled logits of a batch, `[samples, batch, ..., classes]`.
        sets: Test inputs with labels, and those of another kind.
        asked: How many of each are asked.
        batch: How many at once.
    """
    x, labels = (part[:asked] for part in sets.test)
    inside, outside = (_in_batches(logits, side, batch) for side in (x, sets.outside))
    flattened = jnp.concatenate([jnp.reshape(y, (len(y), -1, y.shape[-1])) for y in inside], 1)
    sides = [np.concatenate([_epistemic(y) for y in parts]) for parts in (inside, outside)]
    rng = np.random.default_rng(0)
    again = (jnp.asarray(rng.choice(side, (_RESAMPLES, len(side)))) for side in sides)
    return {
        "nll": float(nll_from_log(predictive_log_probs(flattened), labels.ravel())),
        "auroc": float(auroc(*map(jnp.asarray, sides))),
        "auroc_error": float(jnp.std(jax.vmap(auroc)(*again))),
    }


def _in_batches(logits: Callable[[Any], Any], x: Any, batch: int) -> list[jax.Array]:
    return [logits(x[i : i + batch]) for i in range(0, len(x) - batch + 1, batch)]


def _epistemic(logits: jax.Array) -> np.ndarray:
    """The mutual information of each example, a mean over what it has labels for."""
    epistemic = np.asarray(decompose_logits(logits).epistemic)
    return epistemic.reshape(len(epistemic), -1).mean(1)
