"""How right the variances of `moments` are, what that costs, and whether it tells domains apart.

    python -m experiments.moment_variances

1. takes small networks of every kind, under posteriors with independent entries, and compares the
   variances of their logits on inputs that calibration hasn't seen with Monte Carlo over the
   network itself: of the diagonal pass, with one factor, with factors per site and channel, with
   correlations, with both, and of sampling;
2. times them all with one thread, in interleaved rounds;
3. tells MNIST and Fashion-MNIST apart by the mutual information of logits, by moment passes and by
   30 samples of the same posterior of SVI.

The targets are ours: 5 % with everything on; calibration at 1.05 times the cost of the diagonal;
correlations below the cost of 30 samples; an AUROC of at least that of 30 samples. The source
(arXiv 2511.23440) scales the variances of a network by one factor, .3 or .4.
"""

import os
from functools import partial

import jax

from experiments.harness import Found, Row, Run, Study
from experiments.moment_variances import findings, recipe
from experiments.moment_variances.detection import MODELS, detect, lenet5
from experiments.moment_variances.methods import measure
from experiments.moment_variances.networks import build


def run(run: Run[recipe.Settings]) -> Found:
    """Errors and costs of every network, then detection."""
    # Before JAX has started: with one processor it has one thread.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    def rows(name: str) -> list[Row]:
        key = jax.random.fold_in(run.key, recipe.NETWORKS.index(name))
        case = lenet5(run) if name == "LeNet-5, SVI" else build(name, key)
        return measure(name, case, run.settings, key)

    found = run.each(run.settings.names, rows)
    detection = [
        row
        for domain in run.settings.domains
        for network in MODELS
        for row in run.keep([domain, network], partial(detect, run, network, domain))
    ]
    return Found(found, {"detection": detection})


STUDY = Study(
    "moment_variances", __doc__, recipe.SIZES,
    (run,), findings.CLAIMS, findings.PLOTS, findings.TABLES,
    (
        "The one factor is fitted to the very inputs it is judged on, so it is the best there is.",
        "The cost of n samples is n / 30 of that of 30.",
        "Networks but LeNet-5 aren't trained: a weight w has a standard deviation of "
        ".1 |w| + .02, noise at the input a variance of .1.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
