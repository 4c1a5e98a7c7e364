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
from operator import itemgetter

import jax

from experiments import harness as h
from experiments.harness import Found, Report, Row, Run, Study
from experiments.moment_variances import recipe
from experiments.moment_variances.detection import MODELS, detect, lenet5
from experiments.moment_variances.methods import (
    BASE,
    BATCHES,
    BOTH,
    CALIBRATED,
    CORRELATED,
    DIAGONAL,
    METHODS,
    measure,
)
from experiments.moment_variances.networks import build

ERROR, EXTRA, TIMING = 0.05, 1.05, f"{BASE} samples"
COST = "over diagonal, batch 10"
PASSES = (DIAGONAL, CALIBRATED, CORRELATED, BOTH)


errors = h.pivot(h.every, ["network"], "method", "error", METHODS)


def drawn(report: Report) -> list[Row]:
    """Selects errors beside costs: every pass, and sampling with however many samples."""
    return [
        row | {"way": "sampling" if row["method"].endswith(" samples") else row["method"]}
        for row in report.rows
        if report.config["rounds"] and (row["method"] in PASSES or "samples" in row["method"])
    ]


def timed(method: str, report: Report) -> list[Row]:
    """Selects a method's rows, if costs were measured."""
    rounds = report.config["rounds"]
    return [row for row in report.rows if rounds and row["method"] == method]


claim = partial(h.Claim, needs="default")
CLAIMS = (
    claim("{network}: {method}", "error", h.at_most(ERROR), ERROR, h.where(method=BOTH)),
    *(
        claim(
            f"{{network}}, batch {batch}: cost of {method}{of}", column, rule, source,
            partial(timed, method),
        )
        for batch in BATCHES
        for method, of, rule, source, column in (
            (CALIBRATED, "", h.at_most(EXTRA), EXTRA, f"over diagonal, batch {batch}"),
            (CORRELATED, f" over {TIMING}", h.below(1), 1.0, f"over {TIMING}, batch {batch}"),
        )
    ),
    claim(
        "AUROC, {network} on {in domain}, {method}", "auroc", h.at_least("base"),
        itemgetter("base"), h.extra("detection"), when=lambda row: "draw" not in row["method"],
    ),
)  # fmt: skip

TABLES = (
    h.Listing("median error of variances, held-out inputs", of=errors),
    h.Listing(
        "variances over Monte Carlo's, held-out inputs",
        (
            "network", "method", "ratio", "low", "high", "error", "standard_error", COST,
            f"over {TIMING}, batch 10", f"over {TIMING}, batch 1",
        ),
    ),
    h.Listing(
        "out-of-domain AUROC of mutual information",
        (
            "network", "in domain", "out", "method", "accuracy", "auroc", "base", "standard_error",
        ),
        h.extra("detection"),
    ),
)  # fmt: skip

PLOTS = (
    h.Plot(
        "pareto",
        h.Curves(
            COST, "error", drawn, "{way}", "{network}", guides=(ERROR,),
            style={DIAGONAL: "o", CALIBRATED: "s", CORRELATED: "^", BOTH: "*", "sampling": ".-"},
            axes={
                "xscale": "log", "yscale": "log", "xlabel": "cost over the diagonal pass, batch 10",
                "ylabel": "median error of variances",
            },
        ),
        columns=6, size=(3, 2.8),
    ),
)  # fmt: skip


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
    (run,), CLAIMS, PLOTS, TABLES,
    (
        "The one factor is fitted to the very inputs it is judged on, so it is the best there is.",
        "The cost of n samples is n / 30 of that of 30.",
        "Networks but LeNet-5 aren't trained: a weight w has a standard deviation of "
        ".1 |w| + .02, noise at the input a variance of .1.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
