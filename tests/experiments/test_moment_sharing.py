import pytest

from experiments.beyond import moment_sharing as sharing
from experiments.harness import Report


@pytest.mark.parametrize(
    ("ratios", "warned", "judged"),
    [
        ((0.9, 1.0, 1.1), False, "right"),
        ((0.9, 1.0, 1.1), True, "false alarm"),
        ((0.4, 1.0, 1.1), True, "told"),
        ((0.9, 1.0, 2.1), True, "told"),
        ((0.7, 0.79, 1.1), True, "told"),
        ((0.9, 1.26, 1.3), True, "told"),
        ((0.7, 0.79, 1.1), False, "silent"),
    ],
)
def test_a_call_is_judged_by_ratios_and_what_was_said(ratios, warned, judged):
    assert sharing.status(*ratios, warned) == judged


def report(statuses, call="with values"):
    rows = [{"program": i, "call": call, "method": "diagonal", "status": one, "ratio": 1.0}
            for i, one in enumerate(statuses)]  # fmt: skip
    return Report("moment_sharing", "default", {}, rows, {})


@pytest.mark.parametrize(
    ("statuses", "call", "failing"),
    [
        (["told"] * 9 + ["false alarm", "right"], "with values", 0),
        (["told"] * 8 + ["false alarm"], "with values", 1),
        (["false alarm", "right"], "under jit", 0),
        (["silent", "right"], "under jit", 1),
        (["silent", "told"], "with values", 1),
    ],
)
def test_silence_and_false_alarms_fail(statuses, call, failing):
    one = report(statuses, call)
    sharing.STUDY.judge(one)
    assert [check["passed"] for check in one.checks].count(False) == failing
