"""Ensembles, from ten heads to ten networks: several predictions at the price of about one.

`ensemble` gives sites members, `member_loss` trains them as one program, `repulsive` keeps them
apart where there are no data; `bootstrap_weights` and `with_prior` do without samples from
elsewhere. `batch_ensemble`, `packed` and `mimo` are members at less memory or less computation.
`Mixture` is what members with uncertain weights predict. One network that knows what it
has seen: `spectral` keeps distances, `feature_density` and `sngp` measure them.
"""

from jaxeff.ensembles._distance_aware import FeatureDensity as FeatureDensity
from jaxeff.ensembles._distance_aware import RandomFeatures as RandomFeatures
from jaxeff.ensembles._distance_aware import Spectral as Spectral
from jaxeff.ensembles._distance_aware import feature_density as feature_density
from jaxeff.ensembles._distance_aware import sngp as sngp
from jaxeff.ensembles._distance_aware import spectral as spectral
from jaxeff.ensembles._efficient import MIMO as MIMO
from jaxeff.ensembles._efficient import batch_ensemble as batch_ensemble
from jaxeff.ensembles._efficient import mimo as mimo
from jaxeff.ensembles._efficient import mimo_loss as mimo_loss
from jaxeff.ensembles._efficient import packed as packed
from jaxeff.ensembles._ensemble import Ensemble as Ensemble
from jaxeff.ensembles._ensemble import Members as Members
from jaxeff.ensembles._ensemble import ensemble as ensemble
from jaxeff.ensembles._losses import MemberLoss as MemberLoss
from jaxeff.ensembles._losses import bootstrap_weights as bootstrap_weights
from jaxeff.ensembles._losses import member_loss as member_loss
from jaxeff.ensembles._losses import optimize_members as optimize_members
from jaxeff.ensembles._losses import with_prior as with_prior
from jaxeff.ensembles._mixture import Mixture as Mixture
from jaxeff.ensembles._mixture import MixtureUncertainty as MixtureUncertainty
from jaxeff.ensembles._mixture import mixture_moments as mixture_moments
from jaxeff.ensembles._random_sites import RandomSites as RandomSites
from jaxeff.ensembles._random_sites import SiteTrial as SiteTrial
from jaxeff.ensembles._random_sites import affordable_members as affordable_members
from jaxeff.ensembles._random_sites import choose_random as choose_random
from jaxeff.ensembles._random_sites import sampled as sampled
from jaxeff.ensembles._repulsive import RBF as RBF
from jaxeff.ensembles._repulsive import Repulsion as Repulsion
from jaxeff.ensembles._repulsive import RepulsiveLoss as RepulsiveLoss
from jaxeff.ensembles._repulsive import repulsion as repulsion
from jaxeff.ensembles._repulsive import repulsive as repulsive
from jaxeff.ensembles._samples import Interval as Interval
from jaxeff.ensembles._samples import NoiseImages as NoiseImages
from jaxeff.ensembles._samples import Patches as Patches
from jaxeff.ensembles._samples import ShuffledPixels as ShuffledPixels
from jaxeff.ensembles._samples import batch_inputs as batch_inputs
