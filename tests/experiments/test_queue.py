"""The queue of runs: what it takes, where it goes on, and what it says."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from experiments import queue
from experiments.harness import Part, Run, Study, journals
from experiments.harness.command import SIZES, read

ROOT = Path(__file__).parents[2]
LIST = ROOT / "docs" / "results" / "queue.toml"


def write(path, *runs):
    lines = []
    for run in runs:
        lines += ["[[run]]", *(f"{name} = {json.dumps(value)}" for name, value in run.items())]
    path.write_text("\n".join(lines))
    return path


@dataclass(frozen=True)
class Tosses:
    """Settings of a study that has none."""


COINS = {"name": "limits", "study": "gaussian_limits", "arguments": ["--fast"], "hours": 0.1}


@pytest.fixture
def at(tmp_path, monkeypatch):
    """A queue with folders of its own, whose studies run in this working tree."""
    for name, place in (("RUNS", "runs"), ("JOURNALS", "journals")):
        monkeypatch.setattr(queue, name, tmp_path / place)
        (tmp_path / place).mkdir()
    monkeypatch.setattr(queue.Queue, "tree", lambda self: ROOT)

    def make(*runs):
        listed = queue.entries(write(tmp_path / "list.toml", *runs))
        return queue.Queue(listed, tmp_path / "state")

    return make


def test_the_list_can_be_run():
    listed = queue.entries(LIST)
    assert listed
    for entry in listed:
        assert entry.hours > 0
        assert entry.why
        assert entry.waits or entry.stem  # its arguments are understood


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({**COINS, "study": "coins"}, "there is no study coins"),
        ({**COINS, "hour": 1}, "unexpected keyword argument 'hour'"),
        ({"name": "x"}, "missing 2 required"),
    ],
)
def test_a_wrong_list_says_what_is_wrong(tmp_path, run, message):
    with pytest.raises(queue.Wrong, match=message):
        queue.entries(write(tmp_path / "list.toml", run))
    with pytest.raises(queue.Wrong, match="two runs are called limits"):
        queue.entries(write(tmp_path / "list.toml", COINS, COINS))


def kept(q, entry, **more):
    """Makes an entry a kept run, as if it had been published."""
    order_size = "fast" if "--fast" in entry.arguments else "default"
    content = {
        "experiment": "gaussian_limits", "size": order_size, "study_version": 1,
        "config": {"size": order_size, "seed": 0, "draws": 400_000}, **more,
    }  # fmt: skip
    (queue.RUNS / f"{entry.name}.json").write_text(json.dumps(content))


def test_what_is_done_is_not_run_again(at, monkeypatch):
    q = at(COINS, {**COINS, "name": "longer", "arguments": ["--draws", "800"]})
    first, second = q.listed
    ran = []
    monkeypatch.setattr(queue.Queue, "run", lambda self, entry, *_: ran.append(entry.name) or 0)
    monkeypatch.setattr(queue.Queue, "publish", kept)
    kept(q, second)  # of other arguments
    assert not q.is_done(second)
    assert q.go(False, []) == []
    assert ran == ["limits", "longer"]
    assert q.go(False, ["limits"]) == []
    assert ran == ["limits", "longer"]  # longer's is still of other arguments, and wasn't asked for
    kept(q, first, tasks_left=2)
    assert not q.is_done(first)
    kept(q, first, study_version=0)
    assert not q.is_done(first)
    kept(q, first)
    assert q.is_done(first)


def test_what_needs_an_accelerator_runs_only_there(at, monkeypatch):
    q = at(COINS, {**COINS, "name": "large", "accelerator": True})
    ran = []
    monkeypatch.setattr(queue.Queue, "run", lambda self, entry, *_: ran.append(entry.name) or 1)
    (failed,) = q.go(False, [])
    assert "limits: it ended with 1" in failed
    (failed,) = q.go(True, [])
    assert ran == ["limits", "large"]


def test_all_studies_are_held_before_the_first_run(at, monkeypatch):
    """Hours later the checkout's files may be others, which don't fit the modules in memory."""
    q = at(COINS, {**COINS, "name": "again", "study": "scaling"})
    events, real = [], queue.load
    monkeypatch.setattr(queue, "load", lambda name: events.append(name) or real(name))
    monkeypatch.setattr(queue.Queue, "run", lambda self, entry: events.append("run") or 1)
    assert len(q.go(accelerator=False, only=())) == 2  # both end with 1
    assert {"gaussian_limits", "scaling"} <= {*events[: events.index("run")]}


@pytest.mark.process
def test_a_study_runs_and_what_it_took_is_counted(at, monkeypatch):
    q = at({**COINS, "study": "photonic", "name": "light", "arguments": ["--seed", "x"]})
    (entry,) = q.listed
    monkeypatch.setattr(queue.Entry, "stem", "photonic")
    assert q.run(entry) == 2
    assert "argument --seed" in (q.state / "logs" / "light.log").read_text()
    (line,) = map(json.loads, q.spent.read_text().splitlines())
    assert (line["name"], line["status"]) == ("light", 2)
    assert line["cpu_seconds"] > 0.1
    assert "light" in str(q.status())


def fill(folder, stem, identity, *tasks):
    """Writes the journal of a study as it is while it runs."""
    work = folder / stem / "work"
    work.mkdir(parents=True)
    lines = [{"run": identity}]
    lines += [{"task": task, "rows": [{"a": task, "commit": "x"}]} for task in tasks]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (work / journals.ROWS).write_text(text + '{"task": 9, "ro')  # which is being written
    return work


def test_results_made_elsewhere_are_collected(at, tmp_path):
    q = at(COINS)
    (entry,) = q.listed
    identity = {"study": entry.stem, "seed": 0, "draws": 1}
    work = fill(tmp_path / "elsewhere", entry.stem, identity, 1, 2)
    before = (work / journals.ROWS).read_bytes()
    (work / "chain.safetensors").write_text("state")
    assert q.collect(tmp_path / "elsewhere") == ["limits"]
    assert (work / journals.ROWS).read_bytes() == before  # it goes on there
    assert (q.results / entry.stem / "work" / "chain.safetensors").read_text() == "state"
    assert [one.task for one in q.done(entry)] == [1, 2]
    there, done = journals.unpack(entry.journal)
    assert there == identity
    assert [one.task for one in done] == [1, 2]

    more = fill(tmp_path / "third", entry.stem, identity, 2, 3)
    q.collect(tmp_path / "third")
    assert [one.task for one in journals.unpack(entry.journal)[1]] == [1, 2, 3]
    assert q.collect(q.results) == ["limits"]  # its own, after a kill
    assert [one.task for one in journals.unpack(entry.journal)[1]] == [1, 2, 3]
    with pytest.raises(queue.Wrong, match="no results of a run of the list"):
        q.collect(more)
    other = fill(tmp_path / "other", entry.stem, {**identity, "seed": 1}, 1)
    with pytest.raises(queue.CheckpointError, match="seed is 0 there and 1 here"):
        q.collect(other.parents[1])


def test_the_status_counts_tasks_of_other_machines_too(at):
    q = at(COINS, {**COINS, "name": "other", "arguments": ["--draws", "800"], "hours": 3.0})
    entry, _ = q.listed
    done = [journals.Done(n, [{"a": n, "commit": "x"}], {"cpu_seconds": 180.0, "machine": "B"})
            for n in (1, 2)]  # fmt: skip
    journals.pack(entry.journal, {"study": entry.stem}, done)
    table = q.status()
    first, second = table.rows
    assert first[2:] == ("begun", "2", "0.10", "0.10", "0.01")
    assert second[2:] == ("", "", "0.00", "3.00", "3.00")
    assert table.total[-1] == "3.01"
    kept(q, entry)
    assert q.status().rows[0][2] == "done"


def test_what_is_left_takes_what_like_tasks_took(at):
    """Convolutional ones are dear, whatever the seed, and the list's estimate is far off."""
    q = at({**COINS, "hours": 50.0}, {**COINS, "name": "other", "study": "scaling", "hours": 4.0})
    entry = q.listed[0]
    name = lambda net, seed: {"net": net, "seed": seed}  # noqa: E731
    took = {("mlp", 0): 36.0, ("mlp", 1): 72.0, ("lenet5", 0): 3600.0}
    done = [journals.Done(name(*task), [{"a": 1}], {"cpu_seconds": seconds})
            for task, seconds in took.items()]  # fmt: skip
    journals.pack(entry.journal, {"study": entry.stem}, done)
    plan = [name(net, seed) for net in ("mlp", "lenet5") for seed in (0, 1, 2)]
    work = q.results / entry.stem / "work"
    work.mkdir(parents=True)
    said = {"config": {"size": "fast", "seed": 0}, "tasks": plan}
    (work / journals.PLAN).write_text(json.dumps(said))
    # mlp 2 takes the mean of two; lenet5 1 is like mlp 1 and lenet5 0, lenet5 2 like the latter.
    expected = (54 + (72 + 3600) / 2 + 3600) / 3600
    assert q.status().rows[0][-1] == f"{expected:.2f}"
    (work / journals.PLAN).write_text(json.dumps({**said, "config": {"size": "full", "seed": 0}}))
    assert q.status().rows[0][-1] == "48.97"  # of another run's plan nothing is known
    assert q.status().rows[1][-1] == "4.00"
    kept(q, entry)
    q.spent.write_text(json.dumps({"name": "limits", "cpu_seconds": 36_000.0}) + "\n")
    assert q.status().rows[1][-1] == "0.80"  # as other estimates were: five times too high


def test_a_run_says_what_it_is_going_to_make(tmp_path):
    order = read("tosses", "", {size: Tosses() for size in SIZES}, ["--results", str(tmp_path)])
    run = Run("tosses", order, order.settings, Console(quiet=True))
    part = Part(lambda run: [("heads", 1), ("heads", 2)], lambda run, task: [{"n": task[1]}])
    later = Part(lambda run: [("tails", 1)], lambda run, task: [{"n": task[1]}])
    first = Part(lambda run: [("first", 1)], lambda run, task: [said.append(planned()) or {"n": 1}])
    planned = lambda: json.loads((run.work / journals.PLAN).read_text())  # noqa: E731
    said = []
    study = Study("tosses", "", {size: Tosses() for size in SIZES}, (first, part, later), (), ())
    study.measure(run)
    assert [*map(tuple, said[0]["tasks"])] == [
        ("first", 1), ("heads", 1), ("heads", 2), ("tails", 1),
    ]  # fmt: skip
    assert said[0]["config"] == run.config


@pytest.mark.process
def test_one_queue_at_a_time_even_if_it_left_a_study_behind(tmp_path):
    code = (
        "import subprocess, sys, time; from pathlib import Path; from experiments import queue\n"
        "with queue.locked(Path(sys.argv[1])) as lock:\n"
        "    child = subprocess.Popen(['sleep', '60'], pass_fds=(lock,))\n"
        "    print(child.pid, flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    left = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    try:
        with pytest.raises(queue.Wrong, match="a queue runs in"), queue.locked(tmp_path):
            pass
    finally:
        os.kill(left, signal.SIGKILL)
    for _ in range(100):
        try:
            with queue.locked(tmp_path):
                return
        except queue.Wrong:
            time.sleep(0.1)
    pytest.fail("the lock stays although nobody holds it")


@pytest.mark.process
def test_the_tree_stays_at_one_commit_and_clean(tmp_path, monkeypatch):
    def git(*arguments):
        subprocess.run(["git", *arguments], cwd=tmp_path / "r", check=True, capture_output=True)

    (tmp_path / "r").mkdir()
    git("init", "-q")
    git("config", "user.email", "a@example.org")
    git("config", "user.name", "A")
    (tmp_path / "r" / "file").write_text("1")
    git("add", ".")
    git("commit", "-qm", "one")
    monkeypatch.setattr(queue, "ROOT", tmp_path / "r")
    q = queue.Queue([], tmp_path / "state")
    tree = q.tree()
    first = queue.commit(tree)
    (tmp_path / "r" / "file").write_text("2")
    git("commit", "-qam", "two")
    assert queue.commit(q.tree()) == first
    assert (tree / "file").read_text() == "1"
    with pytest.raises(queue.Wrong, match="no commit nonsense"):
        queue.Queue([], tmp_path / "state", "nonsense").tree()
    assert queue.commit(queue.Queue([], tmp_path / "state", "HEAD").tree()) != first
    assert (tree / "file").read_text() == "2"
    (tree / "file").write_text("3")
    with pytest.raises(queue.Wrong, match="were changed"):
        q.tree()
    monkeypatch.setattr(queue, "git", lambda *_: None)
    with pytest.raises(queue.Wrong, match="--commit or JAXEFF_COMMIT"):
        q.tree()
    assert queue.Queue([], tmp_path / "state", "abc").tree() == tmp_path / "r"


def test_a_run_of_some_parts_is_not_one_of_all():
    content = json.loads((queue.RUNS / "analog_order.json").read_text())
    assert queue.asks_for(queue.Entry("analog_order", "analog", 1, ("--parts", "order")), content)
    assert not queue.asks_for(queue.Entry("analog", "analog", 1), content)
