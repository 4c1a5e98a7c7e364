"""Ensembles, from ten heads to ten networks: several predictions at the price of about one.

`ensemble` gives sites members, `member_loss` trains them as one program, `repulsive` keeps them
apart where there are no data; `bootstrap_weights` and `with_prior` do without samples from
elsewhere. `Mixture` is what members with uncertain weights predict. One network that knows what it
has seen: `spectral` keeps distances, `feature_density` and `sngp` measure them.
"""

from jaxeff.ensembles.drawn import affordable, drawn
from jaxeff.ensembles.ensemble import Ensemble, ensemble
from jaxeff.ensembles.feature_density import FeatureDensity, feature_density
from jaxeff.ensembles.kernels import RBF, Repulsion, repulsion
from jaxeff.ensembles.losses import MemberLoss, member_loss, members_only
from jaxeff.ensembles.members import Members
from jaxeff.ensembles.mixture import Mixture, MixtureUncertainty, mixture_moments
from jaxeff.ensembles.natural import bootstrap_weights, with_prior
from jaxeff.ensembles.repulsive import RepulsiveLoss, repulsive
from jaxeff.ensembles.samples import (
    Interval,
    NoiseImages,
    Patches,
    ShuffledPixels,
    batch_inputs,
)
from jaxeff.ensembles.sngp import RandomFeatures, sngp
from jaxeff.ensembles.spectral import Spectral, spectral

__all__ = [
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
    "Repulsion",
    "RepulsiveLoss",
    "ShuffledPixels",
    "Spectral",
    "affordable",
    "batch_inputs",
    "bootstrap_weights",
    "drawn",
    "ensemble",
    "feature_density",
    "member_loss",
    "members_only",
    "mixture_moments",
    "repulsion",
    "repulsive",
    "sngp",
    "spectral",
    "with_prior",
]
