"""Training: one jit-compiled optax loop for every experiment, and checkpoints of any pytree.

`fit` is the way in. `make_epoch` is its pure core, to be vmapped over replicates; `run_epochs`
gives any such epoch progress, checkpoints and resuming. `sweep` does both for every setting and
seed of a study.
"""

from jaxeff.store import CheckpointError, load_metadata, load_pytree, save_pytree
from jaxeff.training.canonical import canonical_convolutions
from jaxeff.training.epoch import TrainState, init, make_epoch
from jaxeff.training.fit import FitResult, fit
from jaxeff.training.loop import DivergedError, run_epochs
from jaxeff.training.losses import cross_entropy, stateless
from jaxeff.training.sweep import SweepResult, sweep

__all__ = [
    "CheckpointError",
    "DivergedError",
    "FitResult",
    "SweepResult",
    "TrainState",
    "canonical_convolutions",
    "cross_entropy",
    "fit",
    "init",
    "load_metadata",
    "load_pytree",
    "make_epoch",
    "run_epochs",
    "save_pytree",
    "stateless",
    "sweep",
]
