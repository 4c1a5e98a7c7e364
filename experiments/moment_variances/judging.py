"""The targets, held against the rows."""

from typing import Any

from experiments.harness import Report
from experiments.moment_variances.methods import BASE, BATCHES, BOTH, CALIBRATED, CORRELATED

ERROR, EXTRA, TIMING = 0.05, 1.05, f"{BASE} samples"


def judge(report: Report) -> None:
    """Within 5 %, calibration free, correlations cheaper than sampling, detection no worse."""
    for network, methods in by_network(report).items():
        error = methods[BOTH]["error"]
        report.check(f"{network}: {BOTH}", ERROR, error, error <= ERROR, needs="default")
    for network, methods in by_network(report).items():
        for batch in BATCHES if report.config["rounds"] else ():
            where = f"{network}, batch {batch}"
            extra = methods[CALIBRATED][f"over diagonal, batch {batch}"]
            report.check(
                f"{where}: cost of calibrated", EXTRA, extra, extra <= EXTRA, needs="default"
            )
            over = methods[CORRELATED][f"over {TIMING}, batch {batch}"]
            report.check(
                f"{where}: cost of correlated over {TIMING}", 1.0, over, over < 1, needs="default"
            )
    for row in report.extra["detection"]:
        if "draw" not in row["method"]:
            name = f"AUROC, {row['network']} on {row['in domain']}, {row['method']}"
            passed = row["auroc"] >= row["base"]
            report.check(name, row["base"], row["auroc"], passed, needs="default")


def by_network(report: Report) -> dict[str, dict[str, dict[str, Any]]]:
    """Rows by network and method."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in report.rows:
        found.setdefault(row["network"], {})[row["method"]] = row
    return found
