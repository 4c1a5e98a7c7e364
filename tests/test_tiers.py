"""Time decides no test, unless a run asks for it."""

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
    listed = [line.split()[-1] for line in done.stdout.splitlines() if " s (limit 0." in line]
    assert sorted(name.partition("::")[2] for name in listed) == [
        "test_slow",
        "test_with_a_limit_of_its_own",
    ]
    done = run("--cpu-limit", "2")  # 0.1 s and 0.3 s
    assert done.returncode == 1
    assert "1 failed, 3 passed" in done.stdout
    assert "more than 2 times its limit of 0.05 s" in done.stdout
