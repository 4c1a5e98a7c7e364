import math

import pytest

from experiments.beyond import moment_growth as growth
from experiments.harness import Report


def rows(run=27.9, compile=7.9, memory=2.9, extra=0.1, deeper=0.5):
    """Rows of a network whose time grows with width and depth, and of methods that grow beside."""
    for width, depth in ((64, 2), (128, 2), (64, 4)):
        alone = width / 64 * depth
        steeper = (width / 64) ** extra * (depth / 2) ** extra
        place = {"width": width, "depth": depth}
        yield {**place, "method": growth.ALONE, "seconds": alone, "compile_seconds": 1.0}
        for method in (growth.LINEAR, growth.CALIBRATED):
            yield {
                **place, "method": method, "seconds": 20 * alone * steeper, "run": run,
                "compile": compile, "compile_seconds": (depth / 2) ** deeper, "memory": memory,
            }  # fmt: skip


def judged(**columns):
    report = Report("moment_growth", "default", {}, list(rows(**columns)), {})
    growth.STUDY.judge(report)
    return [check["passed"] for check in report.checks].count(False)


@pytest.mark.parametrize(
    ("columns", "failing"),
    [({}, 0), ({"run": 28.1}, 3), ({"compile": 8.1}, 6), ({"memory": 3.1}, 3),
     ({"extra": 0.3}, 2), ({"deeper": 0.7}, 1)],
)  # fmt: skip
def test_each_target_can_fail(columns, failing):
    assert judged(**columns) == failing


def test_exponents_are_slopes_of_logarithms():
    report = Report("moment_growth", "default", {}, list(rows(extra=0.1)), {})
    slopes = {(row["along"], row["method"]): row for row in growth.exponents(report)}
    assert math.isclose(slopes["width", growth.ALONE]["seconds"], 1)
    assert math.isclose(slopes["width", growth.LINEAR]["beyond"], 0.1)
    assert math.isclose(slopes["depth", growth.LINEAR]["compile_seconds"], 0.5)
