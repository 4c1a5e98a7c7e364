"""Detection of runs that collapsed to the prior.

A posterior that is about the prior again predicts every example alike (Klein's thesis, section
7.3.2): the objective is then at a local optimum, which more training doesn't leave.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxeff.bayes.posteriors import Likelihood

MARGIN = 0.05
"""Nats by which the NLL of a run must be lower than that of a guess."""
NEAR_PRIOR = 0.32
"""A posterior is about the prior if the KL is below so many nats for each random parameter: what a
standard deviation half of the prior's gives."""


class CollapseWarning(UserWarning):
    """A posterior that is about the prior, with predictions that ignore the inputs."""


def guess_nll(likelihood: Likelihood, targets: Any) -> float | None:
    """Computes the NLL of the best prediction that ignores the inputs.

    Args:
        likelihood: Likelihood, as `svi` takes it.
        targets: All targets.

    Returns:
        Nats per example: by class frequencies, or a Gaussian of the targets' mean and variance;
        None for another likelihood.
    """
    targets = np.asarray(targets)
    if likelihood == "categorical":
        # The entropy of class frequencies is the NLL of always predicting them.
        shares = np.bincount(targets.ravel()) / targets.size
        tokens = targets.size // len(targets)  # an example's are summed
        return float(-tokens * sum(p * np.log(p) for p in shares if p > 0))
    if likelihood == "gaussian":
        # The entropy of a Gaussian of the targets' variance, 1/2 log(2 pi e var).
        variances = targets.reshape(len(targets), -1).var(0)
        return float(0.5 * np.log(2 * np.pi * np.e * variances).sum()) if variances.all() else None
    return None


def warn_if_collapsed(record: Mapping[str, Any], guess: float | None, size: int) -> None:
    """Warns if a run collapsed to the prior.

    Args:
        record: Record of an epoch of training: ``epoch``, ``nll`` and ``kl``.
        guess: The NLL of a prediction that ignores the inputs, or None if it isn't known.
        size: Number of random parameters.
    """
    nll, each = record["nll"], record["kl"] / size
    # Collapsed means both: predictions that ignore the inputs, and a posterior that is the
    # prior.
    if guess is None or nll < guess - MARGIN or each > NEAR_PRIOR:
        return
    warnings.warn(
        f"after {record['epoch'] + 1} epochs the network says 'I don't know' to everything: its "
        f"NLL of {nll:.3g} nats per example is no better than a guess that ignores the inputs "
        f"({guess:.3g}), and its posterior is about the prior ({each:.2g} nats of KL for each of "
        f"{size:,} random parameters). It rarely recovers. Start from trained parameters and a "
        "smaller init_scale, or lower kl or anneal it more slowly.",
        CollapseWarning,
        stacklevel=3,
    )
