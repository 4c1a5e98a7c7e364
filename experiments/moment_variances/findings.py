"""The targets held against the rows, tables and the picture."""

from collections.abc import Iterator
from functools import partial
from operator import itemgetter

from experiments import harness as h
from experiments.harness import Report, Row
from experiments.moment_variances.methods import (
    BASE,
    BATCHES,
    BOTH,
    CALIBRATED,
    CORRELATED,
    DIAGONAL,
    METHODS,
)

ERROR, EXTRA, TIMING = 0.05, 1.05, f"{BASE} samples"
COST = "over diagonal, batch 10"
PASSES = (DIAGONAL, CALIBRATED, CORRELATED, BOTH)


def errors(report: Report) -> Iterator[Row]:
    """Selects a row per network, the methods' errors its columns."""
    for (network,), same in h.grouped(report.rows, "network").items():
        found = {row["method"]: row["error"] for row in same}
        yield {"network": network} | {method: found[method] for method in METHODS}


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
