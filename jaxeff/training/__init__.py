"""Training: one jit-compiled optax loop for every experiment, and checkpoints of any pytree.

`fit` is the way in. `make_epoch` is its pure core, to be vmapped over replicates; `run_epochs`
gives any such epoch progress, checkpoints and resuming. `sweep` does both for every setting and
seed of a study.
"""

from jaxeff.store import CheckpointError, load_metadata, load_pytree, save_pytree
from jaxeff.training._canonical import canonical_convolutions, canonical_in_loops
from jaxeff.training._epoch import (
    Loss,
    TrainState,
    converge_batch_stats,
    count_examples,
    init,
    make_epoch,
)
from jaxeff.training._fit import (
    CheckpointOptions,
    DivergedError,
    FitResult,
    RunOptions,
    fit,
    run_epochs,
)
from jaxeff.training._losses import (
    CheckedLoss,
    LabelledLoss,
    cross_entropy,
    evidential,
    label_loss,
    normalized_call,
    stateless,
    valid_labels,
)
from jaxeff.training._replicates import describe_training, epoch_function, start_function
from jaxeff.training._sensitivity import divergences, map_changes
from jaxeff.training._sweep import SweepResult, spread_replicates, sweep

__all__ = [
    "CheckedLoss",
    "CheckpointError",
    "CheckpointOptions",
    "DivergedError",
    "FitResult",
    "LabelledLoss",
    "Loss",
    "RunOptions",
    "SweepResult",
    "TrainState",
    "canonical_convolutions",
    "canonical_in_loops",
    "converge_batch_stats",
    "count_examples",
    "cross_entropy",
    "describe_training",
    "divergences",
    "epoch_function",
    "evidential",
    "fit",
    "init",
    "label_loss",
    "load_metadata",
    "load_pytree",
    "make_epoch",
    "map_changes",
    "normalized_call",
    "run_epochs",
    "save_pytree",
    "spread_replicates",
    "start_function",
    "stateless",
    "sweep",
    "valid_labels",
]
