"""Time decides no test, unless a run asks for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import time
import pytest

def spend(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def test_slow():
    spend(0.2)

@pytest.mark.slow
def test_of_another_tier():
    spend(0.2)

@pytest.mark.seconds(0.15)
def test_with_a_limit_of_its_own():
    spend(0.2)

def test_quick():
    pass
"""
COMPILING = """
import jax
import numpy as np
import pytest

double = jax.jit(lambda x: 2 * x)

@pytest.fixture
def compiled():
    return double(np.ones(5))

def test_of_two_shapes():
    double(np.ones(3))
    double(np.ones(3))
    double(np.ones(4))

def test_of_a_fixture(compiled):
    assert compiled.shape == (5,)
"""
CONFTEST = """
from tests import tiers
from tests.tiers import pytest_addoption, pytest_configure

tiers.LIMIT = 0.05
"""


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
def test_a_slow_test_is_listed_and_fails_where_that_is_asked_for(tmp_path, monkeypatch, workers):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: x\n    seconds: x\n")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-n", str(workers), *options]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )

    done = run()
    assert done.returncode == 0, done.stdout
    assert "compilations" not in done.stdout
    listed = [line.split()[-1] for line in done.stdout.splitlines() if " s (limit 0." in line]
    assert sorted(name.partition("::")[2] for name in listed) == [
        "test_slow",
        "test_with_a_limit_of_its_own",
    ]
    done = run("--cpu-limit", "2")  # 0.1 s and 0.3 s
    assert done.returncode == 1
    assert "1 failed, 3 passed" in done.stdout
    assert "more than 2 times its limit of 0.05 s" in done.stdout
    # A time that is over at once: the other tier isn't begun, and that is said.
    done = run("--minutes", "0")
    assert done.returncode == 0, done.stdout
    assert "3 passed, 1 skipped" in done.stdout
    assert "1 tests outside the default tier were not run: the 0 minutes" in done.stdout
    done = run("--at-most", "0")
    assert done.returncode == 0, done.stdout
    assert "4 skipped" in done.stdout
    assert "4 tests were not run: the 0 minutes" in done.stdout


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
def test_rooms_are_listed_with_their_compilations(tmp_path, monkeypatch, workers):
    room = tmp_path / "tests" / "room"
    room.mkdir(parents=True)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (room / "test_suite.py").write_text(COMPILING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    command = [sys.executable, "-m", "pytest", "-n", str(workers), "--cpu-times", "times"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout
    (listed,) = (line for line in done.stdout.splitlines() if line.startswith("tests/room: "))
    assert listed.startswith("tests/room: 2 tests, ")
    assert listed.endswith(" s, 3 compilations, 1.5 a test")
    times = [json.loads(line) for line in (tmp_path / "times").read_text().splitlines()]
    assert {row["test"].partition("::")[2]: row["compilations"] for row in times} == {
        "test_of_two_shapes": 2,
        "test_of_a_fixture": 1,
    }
