"""The coverage study: what is close, what a crash and a hang leave behind, and resuming."""

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.conformance import __main__ as study
from tests.conformance import programs, suites
from tests.conformance.judging import judge
from tests.conformance.trial import run_case

DIFFICULT = """
import ctypes, time
import numpy as np
from tests.conformance.harnesses import Case

def crash():
    ctypes.string_at(0)

def hang():
    time.sleep(100)

def good():
    return (lambda x: x + 1), [np.arange(3)]

def cases():
    builds = {"a": good, "b": crash, "c": good, "d": hang, "e": good}
    return {name: Case("group", name, build) for name, build in builds.items()}
"""


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [
        ([1.0, np.nan, np.inf, -0.0], [1.0, np.nan, np.inf, -0.0], "ok"),
        ([1 + 3e-7], [1.0], "ok"),
        ([1 + 6e-6], [1.0], "rounding"),
        ([1e-40], [0.0], "ok"),
        ([1.1], [1.0], "wrong"),
        ([0.0], [-0.0], "wrong"),
        ([np.nan], [1.0], "wrong"),
        ([np.inf], [-np.inf], "wrong"),
        ([np.inf], [3e38], "wrong"),
    ],
)
def test_floats(ours, theirs, outcome):
    assert judge([np.float32(ours)], [np.float32(theirs)]).outcome == outcome


def test_other_types():
    ones = np.ones(2, ml_dtypes.bfloat16)
    assert judge([ones + ones / 128], [ones]).ulps == 1
    assert judge([np.int8([1, 2])], [np.int8([1, 3])]).outcome == "wrong"
    assert "dtype" in judge([np.int8([1])], [np.int16([1])]).message
    assert judge([ones], [ones, ones]).outcome == "wrong"
    assert judge([np.zeros(0, np.float64)], [np.zeros(0, np.float64)]).outcome == "ok"


@pytest.mark.slow
def test_survives_crashes_and_hangs_and_resumes(tmp_path, monkeypatch):
    (tmp_path / "difficult_cases.py").write_text(DIFFICULT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(suites.SUITES, "difficult", "difficult_cases:cases")
    settings = study.Settings()
    object.__setattr__(settings, "suite", "difficult")
    study_of = replace(study.STUDY, sizes=dict.fromkeys(study.STUDY.sizes, settings))
    arguments = ["--seconds", "8", "--results", str(tmp_path)]
    study_of.main(arguments)
    path = tmp_path / "importer.json"
    report = json.loads(path.read_text())
    outcomes = {row["case"]: row["outcome"] for row in report["rows"]}
    assert outcomes == {"a": "ok", "b": "crash", "c": "ok", "d": "timeout", "e": "ok"}
    assert [check["passed"] for check in report["checks"]] == [False, False]
    assert report["summary"][-1]["ok"] == 3

    study_of.main(arguments)
    assert json.loads(path.read_text())["rows"] == report["rows"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--suite", "nope"], "'nope'"), (["--group", "nope"], "no group 'nope'"),
     (["--match", "nope"], "no case of harnesses has 'nope'")],
)  # fmt: skip
def test_what_is_not_there_is_one_line(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        study.STUDY.main([*arguments, "--results", str(tmp_path)])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_programs_are_timed_beside_xla():
    program = programs.cases()["unsigned dot"]
    row = run_case(program, "pipeline", constants=False, say=lambda stage: None)
    assert row["outcome"] == "ok"
    assert min(row["xla_ms"], row["tvm_ms"], row["ratio"]) > 0


def test_programs_as_c_libraries():
    program = programs.cases()["unsigned dot"]
    row = run_case(program, "c", constants=False, say=lambda stage: None)
    assert (row["outcome"], row["same_bits"]) == ("ok", True)
    assert "ratio" not in row
