"""Priors, likelihoods and posteriors, and predictions from them."""

from jaxeff.bayes.posteriors._density import (
    Random,
    Scales,
    draw_prior,
    log_joint,
    log_prior,
    random_part,
    with_random,
)
from jaxeff.bayes.posteriors._likelihood import (
    Likelihood,
    check_data,
    check_likelihood,
    check_targets,
    heteroscedastic,
    likelihood_name,
    require_likelihood,
    resolve_likelihood,
)
from jaxeff.bayes.posteriors._mixture import MixturePosterior
from jaxeff.bayes.posteriors._posterior import (
    Draws,
    Posterior,
    check_posterior,
    draw,
    is_posterior,
    parameter_table,
    sample,
    to_gaussians,
)
from jaxeff.bayes.posteriors._predictive import predict
from jaxeff.bayes.posteriors._prior import Prior, named_leaves, prior_scales

__all__ = [
    "Draws",
    "Likelihood",
    "MixturePosterior",
    "Posterior",
    "Prior",
    "Random",
    "Scales",
    "check_data",
    "check_likelihood",
    "check_posterior",
    "check_targets",
    "draw",
    "draw_prior",
    "heteroscedastic",
    "is_posterior",
    "likelihood_name",
    "log_joint",
    "log_prior",
    "named_leaves",
    "parameter_table",
    "predict",
    "prior_scales",
    "random_part",
    "require_likelihood",
    "resolve_likelihood",
    "sample",
    "to_gaussians",
    "with_random",
]
