"""A search whose process is killed (`kill -9`) goes on in another, with the rewards of one run."""

import json
import signal
import subprocess
import sys

import pytest

from tests.search import interrupted_search

pytestmark = pytest.mark.promotes("dtype", "rank")
LIMIT = 600
"""Seconds that a process may take on a machine that is busy with others; alone some ten."""


def started(*arguments):
    program = [sys.executable, interrupted_search.__file__, *map(str, arguments)]
    return subprocess.run(program, check=False, capture_output=True, text=True, timeout=LIMIT)


def episodes(folder):
    lines = (folder / "episodes.jsonl").read_text().splitlines()[1:]
    tasks = map(json.loads, lines)
    return [line["rows"] for line in tasks if line["task"][0] == "episode"]


@pytest.mark.process
def test_a_killed_process_loses_only_the_episode_it_was_measuring(tmp_path):
    killed = started(tmp_path, 6)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = episodes(tmp_path)
    assert len(before) == 3
    resumed = started(tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert int(resumed.stdout) == 3  # of six episodes, three are known
    after = episodes(tmp_path)
    assert after[:3] == before
    uninterrupted, measured = interrupted_search.run()
    assert measured == 8
    assert [row["reward"] for row in after] == [row["reward"] for row in uninterrupted.episodes]
    assert after == json.loads(json.dumps(uninterrupted.episodes))
    assert len({json.dumps(row["policy"]) for row in after}) > 1
