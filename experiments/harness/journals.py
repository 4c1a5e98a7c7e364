"""What a run has made so far, in one small file that can be committed: `NAME.jsonl.xz`.

The first line says which run it is of, each further one a task with its rows and, where that is
known, what it took: ``{"task": ..., "rows": ..., "spent": ...}``. A run elsewhere takes them over
with ``--take``.

What a run is going to make lies beside its rows as it goes, so that what is left can be estimated
by what like tasks have taken.

Runs and tasks are known by their numbers' first twelve digits (`identity_of`), so that a journal
can be taken over by another kind of processor.
"""

import json
import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.harness.report import plain
from jaxeff.store import CheckpointError, read_lines, require_same_run, write_atomically

ROWS, SPENT, PLAN = "rows.jsonl", "spent.jsonl", "plan.json"
"""Files of a run's folder `work`: rows by task, what each took, and which are asked for."""
SUFFIX = ".jsonl.xz"


class Done(NamedTuple):
    """A finished task."""

    task: Any  # as JSON has it
    rows: list[dict[str, Any]]  # with the commit that made them
    spent: dict[str, Any] | None  # commit, machine and CPU seconds, where they are known


def identity_of(value: Any) -> Any:
    """What tells a run or a task from others: JSON, whose numbers have twelve digits.

    Processors differ in the last digit of a power, thus in levels of a logarithmic sweep.
    """
    return _rounded(plain(value))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


def read_work(work: Path) -> tuple[dict[str, Any], list[Done]]:
    """Reads which run a folder `work` is of, and its tasks. It may be that of a running process.

    Raises:
        CheckpointError: It holds no run, or a line before the last isn't JSON.
    """
    if not (lines := read_lines(work / ROWS)):
        raise CheckpointError(f"{work / ROWS} holds no run")
    head, *records = lines
    spent: dict[str, Any] = {}
    if (work / SPENT).exists():
        costs = read_lines(work / SPENT)[1:]
        spent = {_name(one["task"]): one["rows"] for one in costs}
    return identity_of(head["run"]), _last(
        Done(identity_of(one["task"]), one["rows"], spent.get(_name(one["task"])))
        for one in records
    )


def unpack(path: Path) -> tuple[dict[str, Any], list[Done]]:
    """Reads a packed journal.

    Raises:
        CheckpointError: It isn't one.
        OSError: It can't be read.
    """
    try:
        head, *records = map(json.loads, lzma.decompress(path.read_bytes()).splitlines())
        done = [Done(identity_of(one["task"]), one["rows"], one.get("spent")) for one in records]
        return identity_of(head["run"]), done
    except (lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is no packed journal: {error}") from error


def pack(path: Path, identity: Mapping[str, Any], done: Iterable[Done]) -> None:
    """Writes a packed journal, with the tasks of the same run that lie there already.

    Args:
        path: The file.
        identity: Which run it is.
        done: Its tasks; of a task that lies there too, these rows count.

    Raises:
        CheckpointError: There lies one of another run.
    """
    before: list[Done] = []
    if path.exists():
        there, before = unpack(path)
        require_same_run(f"the tasks in {path} are", there, identity)
    lines: list[Any] = [{"run": dict(identity)}]
    for one in _last([*before, *done]):
        spent = {"spent": one.spent} if one.spent else {}
        lines.append({"task": one.task, "rows": one.rows, **spent})
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = lzma.compress(content, preset=9)
    if not path.exists() or path.read_bytes() != packed:
        write_atomically(path, packed)


def makers(done: Iterable[Done]) -> list[dict[str, Any]]:
    """Counts tasks, rows and CPU seconds by the commit and machine that made them."""
    counts: dict[tuple[Any, Any], dict[str, Any]] = {}
    for one in done:
        spent = one.spent or {}
        commits = {row.get("commit") for row in one.rows} or {spent.get("commit")}
        for commit in commits:
            place = (commit, spent.get("machine"))
            entry = counts.setdefault(
                place,
                {"commit": commit, "machine": spent.get("machine"), "tasks": 0, "rows": 0,
                 "cpu_seconds": 0.0},
            )  # fmt: skip
            entry["rows"] += sum(row.get("commit") == commit for row in one.rows)
            entry["tasks"] += 1 / len(commits)
            entry["cpu_seconds"] += spent.get("cpu_seconds", 0.0) / len(commits)
    return [
        {**entry, "tasks": round(entry["tasks"], 2), "cpu_seconds": round(entry["cpu_seconds"], 1)}
        for entry in counts.values()
    ]


def seconds_left(plan: Iterable[Any], done: Iterable[Done]) -> float | None:
    """Estimates the CPU seconds of a plan's other tasks, each by the finished ones most like it.

    Args:
        plan: Tasks that are asked for.
        done: Finished tasks, of which those count that say what they took.

    Returns:
        The seconds; None if no finished task says what it took.
    """
    done = [*done]
    finished = {_name(one.task) for one in done}
    known = [(_parts(one.task), one.spent["cpu_seconds"]) for one in done if one.spent]
    if not known:
        return None
    total = 0.0
    for task in plan:
        if _name(task) in finished:
            continue
        wanted = _parts(task)
        shared = [len(wanted & parts) for parts, _ in known]
        alike = [took for (_, took), n in zip(known, shared, strict=True) if n == max(shared)]
        total += sum(alike) / len(alike)
    return total


def _parts(task: Any, place: str = "") -> set[tuple[str, str]]:
    """What a task says, each with its place: subjects, kinds, seeds."""
    if not isinstance(task, dict | list):
        return {(place, str(task))}
    items = task.items() if isinstance(task, dict) else enumerate(task)
    return {part for name, one in items for part in _parts(one, f"{place}.{name}")}


def _last(done: Iterable[Done]) -> list[Done]:
    """Each task once, as it was added last."""
    return [*{_name(one.task): one for one in done}.values()]


def _name(task: Any) -> str:
    return json.dumps(task, sort_keys=True)
