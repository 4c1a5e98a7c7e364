"""Ensembles, from ten heads to ten networks: several predictions at the price of about one.

`ensemble` gives sites members, `member_loss` trains them as one program, `repulsive` keeps them
apart where there are no data; `bootstrap_weights` and `with_prior` do without samples from
elsewhere. `batch_ensemble`, `packed` and `mimo` are members at less memory or less computation.
`Mixture` is what members with uncertain weights predict. One network that knows what it
has seen: `spectral` keeps distances, `feature_density` and `sngp` measure them.
"""

from jaxeff.ensembles._ensemble import Ensemble, ensemble
from jaxeff.ensembles._feature_density import FeatureDensity, feature_density
from jaxeff.ensembles._kernels import RBF, Repulsion, repulsion
from jaxeff.ensembles._losses import MemberLoss, member_loss, optimize_members
from jaxeff.ensembles._members import Members
from jaxeff.ensembles._mixture import Mixture, MixtureUncertainty, mixture_moments
from jaxeff.ensembles._natural import bootstrap_weights, with_prior
from jaxeff.ensembles._random_sites import RandomSites, SiteTrial, choose_random
from jaxeff.ensembles._repulsive import RepulsiveLoss, repulsive
from jaxeff.ensembles._sampled import affordable_members, sampled
from jaxeff.ensembles._samples import Interval, NoiseImages, Patches, ShuffledPixels, batch_inputs
from jaxeff.ensembles._sngp import RandomFeatures, sngp
from jaxeff.ensembles._spectral import Spectral, spectral
from jaxeff.ensembles.efficient import MIMO, batch_ensemble, mimo, mimo_loss, packed

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
