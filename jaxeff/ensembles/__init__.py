"""Ensembles, from ten heads to ten networks: several predictions at the price of about one.

`ensemble` gives sites members, `member_loss` trains them as one program, `repulsive` keeps them
apart where there are no data; `bootstrap_weights` and `with_prior` do without samples from
elsewhere. `batch_ensemble`, `packed` and `mimo` are members at less memory or less computation.
`Mixture` is what members with uncertain weights predict. One network that knows what it
has seen: `spectral` keeps distances, `feature_density` and `sngp` measure them.
"""

from jaxeff.ensembles._distance_aware import (
    FeatureDensity,
    RandomFeatures,
    Spectral,
    feature_density,
    sngp,
    spectral,
)
from jaxeff.ensembles._efficient import MIMO, batch_ensemble, mimo, mimo_loss, packed
from jaxeff.ensembles._ensemble import Ensemble, Members, ensemble
from jaxeff.ensembles._losses import (
    MemberLoss,
    bootstrap_weights,
    member_loss,
    optimize_members,
    with_prior,
)
from jaxeff.ensembles._mixture import Mixture, MixtureUncertainty, mixture_moments
from jaxeff.ensembles._random_sites import (
    RandomSites,
    SiteTrial,
    affordable_members,
    choose_random,
    sampled,
)
from jaxeff.ensembles._repulsive import RBF, Repulsion, RepulsiveLoss, repulsion, repulsive
from jaxeff.ensembles._samples import Interval, NoiseImages, Patches, ShuffledPixels, batch_inputs

__all__ = [
    "MIMO",
    "RBF",
    "Ensemble",
    "FeatureDensity",
    "Interval",
    "MemberLoss",
    "Members",
    "Mixture",
    "MixtureUncertainty",
    "NoiseImages",
    "Patches",
    "RandomFeatures",
    "RandomSites",
    "Repulsion",
    "RepulsiveLoss",
    "ShuffledPixels",
    "SiteTrial",
    "Spectral",
    "affordable_members",
    "batch_ensemble",
    "batch_inputs",
    "bootstrap_weights",
    "choose_random",
    "ensemble",
    "feature_density",
    "member_loss",
    "mimo",
    "mimo_loss",
    "mixture_moments",
    "optimize_members",
    "packed",
    "repulsion",
    "repulsive",
    "sampled",
    "sngp",
    "spectral",
    "with_prior",
]
