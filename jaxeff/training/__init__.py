"""Training: one jit-compiled optax loop for every experiment, and checkpoints of any pytree.

`fit` is the way in. `make_epoch` is its pure core, to be vmapped over replicates; `run_epochs`
gives any such epoch progress, checkpoints and resuming. `sweep` does both for every setting and
seed of a study. `Batches` are data that come one by one, from a loader or any other iterable.
"""

from jaxeff.store import CheckpointError as CheckpointError
from jaxeff.store import load_metadata as load_metadata
from jaxeff.store import load_pytree as load_pytree
from jaxeff.store import save_pytree as save_pytree
from jaxeff.training._batches import Batches as Batches
from jaxeff.training._batches import identify as identify
from jaxeff.training._batches import or_batches as or_batches
from jaxeff.training._batches import prefetched as prefetched
from jaxeff.training._canonical import canonical_convolutions as canonical_convolutions
from jaxeff.training._canonical import canonical_in_loops as canonical_in_loops
from jaxeff.training._epoch import Loss as Loss
from jaxeff.training._epoch import TrainState as TrainState
from jaxeff.training._epoch import converge_batch_stats as converge_batch_stats
from jaxeff.training._epoch import count_examples as count_examples
from jaxeff.training._epoch import init as init
from jaxeff.training._epoch import make_epoch as make_epoch
from jaxeff.training._fit import CheckpointOptions as CheckpointOptions
from jaxeff.training._fit import DivergedError as DivergedError
from jaxeff.training._fit import FitResult as FitResult
from jaxeff.training._fit import RunOptions as RunOptions
from jaxeff.training._fit import fit as fit
from jaxeff.training._fit import run_epochs as run_epochs
from jaxeff.training._losses import CheckedLoss as CheckedLoss
from jaxeff.training._losses import LabelledLoss as LabelledLoss
from jaxeff.training._losses import SettledLoss as SettledLoss
from jaxeff.training._losses import cross_entropy as cross_entropy
from jaxeff.training._losses import evidential as evidential
from jaxeff.training._losses import label_loss as label_loss
from jaxeff.training._losses import normalized_call as normalized_call
from jaxeff.training._losses import stateless as stateless
from jaxeff.training._losses import valid_labels as valid_labels
from jaxeff.training._replicates import describe_training as describe_training
from jaxeff.training._replicates import epoch_function as epoch_function
from jaxeff.training._replicates import start_function as start_function
from jaxeff.training._sensitivity import divergences as divergences
from jaxeff.training._sensitivity import map_changes as map_changes
from jaxeff.training._sweep import SweepResult as SweepResult
from jaxeff.training._sweep import spread_replicates as spread_replicates
from jaxeff.training._sweep import sweep as sweep
