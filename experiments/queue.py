"""Long runs, one after the other, in the order in which they are worth their time.

    python -m experiments.queue docs/results/queue.toml            # goes on where it stopped
    python -m experiments.queue docs/results/queue.toml --status   # what is done and what is left
    python -m experiments.queue docs/results/queue.toml --publish  # what is done of the rest
    python -m experiments.queue docs/results/queue.toml --collect FOLDER  # results made elsewhere

The list has an entry per run: its `name` among the kept runs, the `study`, its `arguments`, the CPU
`hours` it should take, and whether it needs an `accelerator`. Runs are made at the lowest priority
in a worktree that stays at one commit; each finished task is in its study's journal, so that a
queue that was killed loses at most the task it was in, and none is run twice. A complete run
becomes a kept run, and its journal is packed into docs/results/journals/, from where a queue on
another machine takes its tasks over. Runs of one study and the same settings share their tasks.

The queue itself never starts JAX: studies run, and are published, in processes of their own.
"""

import argparse
import contextlib
import fcntl
import io
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from experiments.__main__ import MODULES, load
from experiments.harness import journals
from experiments.harness.command import Order, Refused, find_options, read
from experiments.harness.report import COMMIT, COMMIT_VARIABLE, LEFT, MADE
from experiments.harness.run import make_console
from experiments.harness.staleness import VERSION
from experiments.harness.study import stem
from jaxeff.core import Table
from jaxeff.data import VARIABLE
from jaxeff.store import CheckpointError, Journal, add_line, read_lines, repair_lines

ROOT = Path(__file__).parents[1]
RUNS, JOURNALS = (ROOT / "docs" / "results" / name for name in ("runs", "journals"))


class Wrong(Exception):
    """What the queue can't do; its message is all that the user sees."""


@dataclass(frozen=True)
class Entry:
    """A run of the list."""

    name: str  # of the kept run
    study: str  # the module, as `python -m experiments.<study>` has it
    hours: float  # of CPU time, as estimated
    arguments: tuple[str, ...] = ()  # of the study's command line
    accelerator: bool = False  # whether it needs one
    waits: str = ""  # for something that its study lacks; it is left out until then
    why: str = ""  # what it is to show

    @property
    def stem(self) -> str:
        """The name of the study's results, which entries that share tasks have in common."""
        return stem(load(self.study).name, self.order)

    @property
    def order(self) -> Order:
        """What the study is asked for.

        Raises:
            Wrong: It can't be asked for that.
        """
        study, said = load(self.study), io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                return read(study.name, study.about, study.sizes, self.arguments)
        except (SystemExit, Refused) as error:
            raise Wrong(f"{self.name}: {said.getvalue().strip() or error}") from error

    @property
    def journal(self) -> Path:
        """Where its tasks are packed."""
        return JOURNALS / f"{self.stem}{journals.SUFFIX}"


def entries(path: Path) -> list[Entry]:
    """Reads a list of runs.

    Raises:
        Wrong: An entry is wrong, or two have one name.
    """
    try:
        listed = tomllib.loads(path.read_text()).get("run", [])
        entries = [Entry(**{**one, "arguments": tuple(one.get("arguments", ()))}) for one in listed]
    except (OSError, TypeError, tomllib.TOMLDecodeError) as error:
        raise Wrong(f"{path}: {error}") from error
    names = [entry.name for entry in entries]
    for entry in entries:
        if names.count(entry.name) > 1:
            raise Wrong(f"{path}: two runs are called {entry.name}")
        if entry.study not in MODULES and not entry.waits:
            raise Wrong(f"{path}: {entry.name}: there is no study {entry.study}")
    return entries


@dataclass(frozen=True)
class Queue:
    """A list of runs, and where they are made."""

    listed: list[Entry]
    state: Path  # folder of the worktree, the results and the logs
    commit: str = ""  # at which runs are made; if empty that of before, or the current one
    lock: tuple[int, ...] = ()  # file descriptor of the lock that keeps other queues away

    @property
    def results(self) -> Path:
        """Folder of all results."""
        return self.state / "results"

    @property
    def ready(self) -> list[Entry]:
        """Entries that can be run."""
        return [entry for entry in self.listed if not entry.waits]

    @property
    def spent(self) -> Path:
        """File of what each process has taken."""
        return self.state / "spent.jsonl"

    def tree(self) -> Path:
        """The folder that studies run in: a clean worktree at one commit.

        Raises:
            Wrong: There is no such commit, or the worktree was changed.
        """
        if not git(ROOT, "rev-parse", "--git-dir"):
            if not os.environ.get(COMMIT_VARIABLE, self.commit):
                raise Wrong(f"no git repository: name the commit by --commit or {COMMIT_VARIABLE}")
            return ROOT
        tree = self.state / "tree"
        wanted = git(ROOT, "rev-parse", "--verify", f"{self.commit or 'HEAD'}^{{commit}}")
        if not wanted:
            raise Wrong(f"there is no commit {self.commit}")
        if not tree.exists():
            git(ROOT, "worktree", "prune")
            if git(ROOT, "worktree", "add", "--detach", str(tree), wanted) is None:
                raise Wrong(f"git can't make a worktree in {tree}")
        elif self.commit and git(tree, "checkout", "--detach", wanted) is None:
            raise Wrong(f"{tree} can't be set to {self.commit}: files in it were changed")
        if changed := git(tree, "status", "--porcelain"):
            raise Wrong(f"files in {tree} were changed:\n{changed}")
        return tree

    def content(self, entry: Entry) -> dict[str, Any]:
        """The kept run of an entry; nothing if there is none."""
        path = RUNS / f"{entry.name}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def is_done(self, entry: Entry) -> bool:
        """Tells whether an entry is a kept run, all of it and with its arguments."""
        content = self.content(entry)
        if not content or content.get(LEFT) or not asks_for(entry, content):
            return False
        return bool(content.get(VERSION) == load(entry.study).version)

    def run(self, entry: Entry, *extra: str) -> int:
        """Runs an entry's study, at the lowest priority.

        Returns:
            The exit status.
        """
        tree = self.tree()
        for folder in (self.results, self.state / "logs"):
            folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", f"experiments.{entry.study}", *entry.arguments]
        command += ["--results", str(self.results.absolute()), *extra]
        work, version = self.results / entry.stem / "work", load(entry.study).version
        if (work / journals.ROWS).exists():
            identity, _ = journals.read_work(work)
            if identity.get("version", 1) != version:
                command += ["--fresh"]
        if (
            entry.journal.exists()
            and journals.unpack(entry.journal)[0].get("version", 1) == version
        ):
            command += ["--take", str(entry.journal)]
        environment = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'export'}"}
        if self.commit:
            environment.setdefault(COMMIT_VARIABLE, self.commit)
        if data := os.environ.get(VARIABLE):
            environment[VARIABLE] = str(Path(data).absolute())
        began = time.time()
        with (self.state / "logs" / f"{entry.name}.log").open("ab") as log:
            # It holds the queue's lock as well: a queue that was killed leaves it behind, and no
            # second one may begin the same tasks beside it.
            process = subprocess.Popen(
                command, cwd=tree, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, pass_fds=self.lock, start_new_session=True,
            )  # fmt: skip
            # Linux shares the processor among sessions first, whatever priorities are in them: a
            # session of its own with the lowest one leaves the others alone.
            with contextlib.suppress(OSError):
                Path(f"/proc/{process.pid}/autogroup").write_text("19")
            try:
                status, used = _end(process)
            except BaseException:  # the queue is told to end
                process.terminate()
                status, used = _end(process)
                raise
            finally:
                repair_lines(self.spent)
                add_line(self.spent, {
                    "name": entry.name, "status": status, "began": round(began),
                    "cpu_seconds": round(used.ru_utime + used.ru_stime, 1), COMMIT: commit(tree),
                })  # fmt: skip
        return status

    def publish(self, entry: Entry) -> None:
        """Makes what an entry's study has left a kept run, and packs its journal.

        Raises:
            Wrong: It can't be published.
        """
        path = self.results / f"{entry.stem}.json"
        command = [sys.executable, "-m", "experiments.publish", str(path.absolute())]
        command += ["--name", entry.name]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if ended.returncode:
            raise Wrong(f"{entry.name} can't be published: {ended.stderr.strip()}")
        self.pack(entry)

    def pack(self, entry: Entry) -> None:
        """Packs the tasks that an entry's study has finished."""
        work = self.results / entry.stem / "work"
        if (work / journals.ROWS).exists():
            identity, done = journals.read_work(work)
            if done:
                journals.pack(entry.journal, identity, done)

    def go(self, accelerator: bool, only: Sequence[str]) -> list[str]:
        """Runs what isn't done, one after the other.

        Args:
            accelerator: Whether there is one: then what needs it runs, and else what doesn't.
            only: Names of entries; all if empty.

        Returns:
            What failed.
        """
        # All of them now: hours later the files of this checkout may be others, which don't fit the
        # modules that this process holds.
        for entry in self.ready:
            load(entry.study)
        failed = []
        for entry in self.ready:
            if entry.accelerator != accelerator or (only and entry.name not in only):
                continue
            if self.is_done(entry):
                continue
            print(f"{time.strftime('%H:%M')} {entry.name}", flush=True)
            try:
                status = self.run(entry)
            finally:
                self.pack(entry)  # whatever comes next, another machine can go on from here
            try:
                if status:
                    log = self.state / "logs" / f"{entry.name}.log"
                    raise Wrong(f"{entry.name}: it ended with {status}, see {log}")
                self.publish(entry)
            except Wrong as error:
                failed.append(str(error))
        return failed

    def publish_unfinished(self) -> list[str]:
        """Publishes what is done of every run that was begun.

        Returns:
            What couldn't be.
        """
        failed = []
        for entry in self.ready:
            if self.is_done(entry) or not self.done(entry):
                continue
            try:
                if status := self.run(entry, "--kept"):
                    raise Wrong(f"{entry.name} can't be reported yet: it ended with {status}")
                self.publish(entry)
            except Wrong as error:
                failed.append(str(error))
        return failed

    def collect(self, folder: Path) -> list[str]:
        """Takes over results that were made elsewhere, and packs their journals.

        Args:
            folder: A folder of results, this queue's own too. It isn't changed, and its runs may
                go on.

        Returns:
            What was collected.

        Raises:
            Wrong: No run of the list is in it.
        """
        names = []
        elsewhere = folder.resolve() != self.results.resolve()
        for entry in self.ready:
            source, finished = folder / entry.stem, folder / f"{entry.stem}.json"
            if not (source / "work" / journals.ROWS).exists() and not finished.exists():
                continue
            if elsewhere:
                _merge(source, self.results / entry.stem)
            content = json.loads(finished.read_text()) if finished.exists() else {}
            # One that is older than versions of studies is reported again, from its rows.
            if VERSION in content and not content.get(LEFT) and asks_for(entry, content):
                if elsewhere:
                    shutil.copyfile(finished, self.results / finished.name)
                self.publish(entry)
            else:
                self.pack(entry)
            names.append(entry.name)
        if not names:
            raise Wrong(f"{folder} has no results of a run of the list")
        return names

    def done(self, entry: Entry) -> list[journals.Done]:
        """The finished tasks that an entry shares, here and in its packed journal."""
        finished: dict[str, journals.Done] = {}
        if entry.journal.exists():
            _, packed = journals.unpack(entry.journal)
            finished |= {json.dumps(one.task): one for one in packed}
        work = self.results / entry.stem / "work"
        if (work / journals.ROWS).exists():
            _, here = journals.read_work(work)
            finished |= {json.dumps(one.task): one for one in here}
        return [*finished.values()]

    def hours_left(self, entry: Entry, hours: float, ratio: float) -> float:
        """Estimates what a run still takes, in CPU hours.

        By what finished tasks took that are most like the ones left, where the run has said what
        it is going to make. Else by the list's estimate: of a run that isn't begun, times what
        estimates of others were off.

        Args:
            entry: The run.
            hours: What it took so far.
            ratio: Of measured and estimated hours, of runs that are done.
        """
        plan = self.results / entry.stem / "work" / journals.PLAN
        if plan.exists():
            said = {"experiment": load(entry.study).name, **json.loads(plan.read_text())}
            seconds = journals.seconds_left(said["tasks"], self.done(entry))
            if seconds and asks_for(entry, said):
                return seconds / 3600
        begun = hours or entry.accelerator
        return max(entry.hours - hours, 0.1 * entry.hours) if begun else entry.hours * ratio

    def status(self) -> Table:
        """Says what is done and what is left, in hours of CPU time."""
        taken: dict[str, float] = {}
        if self.spent.exists():
            for one in read_lines(self.spent):
                taken[one["name"]] = taken.get(one["name"], 0.0) + one["cpu_seconds"] / 3600
        rows, total, counted = [], [0.0, 0.0, 0.0], set()
        off = [taken[one.name] / one.hours for one in self.ready
               if one.name in taken and self.is_done(one)]  # fmt: skip
        ratio = statistics.median(off) if off else 1.0
        for entry in self.ready + [one for one in self.listed if one.waits]:
            if entry.waits:
                what = " ".join((entry.study, *entry.arguments))
                waiting = (entry.name, what, f"waits for {entry.waits}", "", "")
                rows.append((*waiting, f"{entry.hours:.2f}", f"{entry.hours:.2f}"))
                total = [total[0], total[1] + entry.hours, total[2] + entry.hours]
                continue
            content, tasks = self.content(entry), self.done(entry)
            makers = content.get(MADE) or journals.makers(tasks)
            shared = entry.stem in counted
            # What other machines took is in the journal, what a killed task took here in `spent`.
            hours = sum(one["cpu_seconds"] for one in makers) / 3600 * (not shared)
            hours = max(hours, taken.get(entry.name, 0.0))
            counted.add(entry.stem)
            done = self.is_done(entry)
            left = 0.0 if done else self.hours_left(entry, hours, ratio)
            state = "done" if done else "begun" if tasks or hours else ""
            if content.get(LEFT):
                state = f"published, {content[LEFT]} tasks left"
            if entry.accelerator and not done:
                state = f"{state or 'to be done'} (accelerator)"
            rows.append((
                entry.name, " ".join((entry.study, *entry.arguments)), state, str(len(tasks) or ""),
                f"{hours:.2f}", f"{entry.hours:.2f}", f"{left:.2f}",
            ))  # fmt: skip
            total = [a + b for a, b in zip(total, (hours, entry.hours, left), strict=True)]
        heads = ("run", "study", "state", "tasks>", "spent h>", "estimate h>", "left h>")
        title = f"CPU hours; runs take {ratio:.2g} times what the list estimates, in the median"
        sums = ("", "", "", "", *(f"{one:.2f}" for one in total))
        return Table(heads, rows, total=sums, title=title)


def asks_for(entry: Entry, content: dict[str, Any]) -> bool:
    """Tells whether a run's JSON is of an entry's size and of the settings that it names."""
    study, order = load(entry.study), entry.order
    wanted: dict[tuple[str, ...], Any] = {("size",): order.size, ("seed",): order.seed}
    for option in find_options(type(order.settings)):
        value = option.value(order.settings)
        if value != option.value(study.sizes[order.size]):
            wanted[option.path] = journals.identity_of(value)
        elif option.selects and value == () and content["config"].get(option.path[0]):
            return False  # some of the tasks, where the entry asks for all
    for path, value in wanted.items():
        there: Any = content["config"]
        for name in path:
            there = there.get(name) if isinstance(there, dict) else None
        if journals.identity_of(there) != value:
            return False
    return bool(content["experiment"] == study.name)


def git(folder: Path, *arguments: str) -> str | None:
    """What git says; None where it fails or isn't there."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        run = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        )
        return run.stdout.strip()
    return None


def commit(folder: Path) -> str:
    """The commit of a folder."""
    return git(folder, "rev-parse", "--short=8", "HEAD") or os.environ.get(COMMIT_VARIABLE, "")


def _end(process: subprocess.Popen[bytes]) -> tuple[int, resource.struct_rusage]:
    """Waits for a process; its exit status, and what it and its children took."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used


def _merge(source: Path, target: Path) -> None:
    """Copies a run's folder; of tasks that are in both, the rows that are there stay."""
    identity, done = journals.read_work(source / "work")
    kept = shutil.ignore_patterns(journals.ROWS, journals.SPENT)
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=kept)
    rows, spent = (Journal(target / "work" / n, identity) for n in (journals.ROWS, journals.SPENT))
    for one in done:
        if one.task not in rows:
            rows.add(one.task, one.rows)
            if one.spent:
                spent.add(one.task, one.spent)


@contextlib.contextmanager
def locked(state: Path) -> Iterator[int]:
    """Keeps other queues away, as long as the descriptor that it yields is open anywhere.

    Raises:
        Wrong: There is one.
    """
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Wrong(f"a queue runs in {state}, or a study that it has left behind") from error
        yield file.fileno()


def _stop(_: int, __: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another one mustn't cut the end short
    sys.exit("stopped; the same command goes on")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Raises:
        SystemExit: With a message where something can't be done, or failed.
    """
    parser = argparse.ArgumentParser(
        prog="experiments.queue", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("list", type=Path, help="the list of runs")
    parser.add_argument("--status", action="store_true", help="say what is done and what is left")
    parser.add_argument(
        "--publish", action="store_true", help="publish what is done of runs that aren't complete"
    )
    parser.add_argument(
        "--collect", type=Path, metavar="FOLDER", help="take over results that were made elsewhere"
    )
    parser.add_argument("--only", nargs="+", default=(), metavar="RUN", help="of the list")
    parser.add_argument(
        "--accelerator", action="store_true", help="run what needs one, and nothing else"
    )
    parser.add_argument(
        "--commit", default="", help="at which runs are made [that of before, or the current one]"
    )
    parser.add_argument(
        "--state", type=Path, default=ROOT / "results" / "queue",
        help="folder of the worktree, the results and the logs [results/queue]",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        queue = Queue(entries(options.list), options.state.absolute(), options.commit)
        if unknown := sorted({*options.only} - {entry.name for entry in queue.listed}):
            raise Wrong(f"{options.list} has no run {', '.join(unknown)}")
        if options.status:
            make_console().print(queue.status())
            return
        with locked(queue.state) as descriptor:
            queue = replace(queue, lock=(descriptor,))
            signal.signal(signal.SIGTERM, _stop)
            if options.collect:
                print(*queue.collect(options.collect), sep="\n")
                return
            os.nice(19)
            failed = (
                queue.publish_unfinished() if options.publish
                else queue.go(options.accelerator, options.only)
            )  # fmt: skip
    except (Wrong, CheckpointError) as error:
        sys.exit(str(error))
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
