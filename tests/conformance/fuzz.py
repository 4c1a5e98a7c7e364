"""Damaged modules through the importer: never a crash, a hang, or an error of another kind.

    python -m tests.conformance.fuzz

Every source is imported in a child process. It is held that the child neither dies nor takes more
than 20 seconds, and that what it raises is `StableHLOParseError` or `UnsupportedOpError` with a
position. Sources that fail are written to `failures/` among its results.
"""

import collections
import itertools
import multiprocessing
import random
import re
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

from rich.progress import track

from experiments.harness import Found, Least, Report, Run, Study
from tests.conformance import sound_programs
from tests.conformance.hostile import HOSTILE_TEXTS, hostile_artifacts
from tests.conformance.mutations import damaged_artifacts, damaged_texts

SECONDS = 20.0
POSITION = re.compile(
    r"line \d+, column \d+|\d+:\d+|bytes? \d+|\d+ bytes|unknown location|\) at |public function"
    r"|valid StableHLO: .+: "
)
Source = str | bytes


def import_all(pipe: Connection) -> None:
    """Runs in the child: imports what arrives and answers how that went."""
    from jaxeff_export.importer import StableHLOParseError, UnsupportedOpError, import_stablehlo

    import_stablehlo("func.func @main() { return }")
    pipe.send("ready")
    while True:
        source = pipe.recv()
        try:
            import_stablehlo(source)
            pipe.send(("imported", ""))
        except (StableHLOParseError, UnsupportedOpError) as error:
            pipe.send((type(error).__name__, str(error)))
        except BaseException:
            pipe.send(("escaped", traceback.format_exc()[-3000:]))


class Importer:
    """A child process that imports sources; a new one when it dies or hangs."""

    def __init__(self) -> None:
        self._child: multiprocessing.process.BaseProcess | None = None

    def outcome(self, source: Source) -> tuple[str, str]:
        """How the import of `source` ends: its kind and the message."""
        if self._child is None:
            self._start()
        self._pipe.send(source)
        if not self._pipe.poll(SECONDS):
            self.stop()
            return "hung", ""
        try:
            return self._pipe.recv()
        except EOFError:
            child = self._child
            assert child is not None
            child.join()
            self._child = None
            return "crashed", f"exit status {child.exitcode}"

    def stop(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._child.kill()
            self._child.join()
            self._child = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._child = context.Process(target=import_all, args=(theirs,), daemon=False)
        self._child.start()
        theirs.close()
        assert self._pipe.recv() == "ready"


def sources(texts: int, artifacts: int, seed: int) -> Iterator[tuple[str, str, Source]]:
    """What is imported: its kind, its name, and itself."""
    rng = random.Random(seed)
    sound, binary = sound_programs.texts(), sound_programs.artifacts()
    yield from (("sound", name, text) for name, text in sound.items())
    yield from (("sound", name, data) for name, data in binary.items())
    yield from (("hostile text", name, text) for name, text in HOSTILE_TEXTS.items())
    hostile = hostile_artifacts(next(iter(binary.values())))
    yield from (("hostile artifact", name, data) for name, data in hostile.items())
    for i, text in enumerate(itertools.islice(damaged_texts(rng, list(sound.values())), texts)):
        yield "damaged text", str(i), text
    damaged = damaged_artifacts(rng, list(binary.values()))
    for i, data in enumerate(itertools.islice(damaged, artifacts)):
        yield "damaged artifact", str(i), data


def judge(kind: str, outcome: str, message: str) -> str | None:
    """What is wrong with an outcome, or None."""
    if outcome in ("crashed", "hung", "escaped"):
        return outcome
    if kind == "sound" and outcome == "StableHLOParseError":
        return "sound but refused"
    if outcome != "imported" and not POSITION.search(message):
        return "no position"
    return None


@dataclass(frozen=True)
class Settings:
    """How much is imported.

    Attributes:
        texts: Damaged texts.
        artifacts: Damaged artifacts.
    """

    texts: Annotated[int, Least(0)]
    artifacts: Annotated[int, Least(0)]


def run(run: Run[Settings]) -> Found:
    """Imports damaged modules and counts how that ends."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    wrong: dict[str, list[str]] = {}
    slowest: dict[str, float] = collections.defaultdict(float)
    importer = Importer()
    given = sources(run.settings.texts, run.settings.artifacts, run.seed)
    for kind, name, source in track(given, "importing", console=run.console):
        start = time.perf_counter()
        outcome, message = importer.outcome(source)
        slowest[kind] = max(slowest[kind], time.perf_counter() - start)
        counts[kind][outcome] += 1
        fault = judge(kind, outcome, message)
        if fault is not None:
            wrong.setdefault(kind, []).append(f"{name}: {fault}")
            keep(run.folder / "failures", f"{kind} {name} {fault}", source, message)
    importer.stop()
    rows = [
        {"kind": kind, "sources": found.total(), **found, "slowest_s": round(slowest[kind], 2)}
        for kind, found in counts.items()
    ]
    return Found(rows, {"wrong": wrong})


def check(report: Report) -> None:
    """Nothing that isn't the importer's own error."""
    for row in report.rows:
        wrong = report.extra["wrong"].get(row["kind"], [])
        claim = f"{row['kind']}: crashes, hangs, and errors that are not the importer's"
        report.check(claim, 0, len(wrong), not wrong)


def keep(folder: Path, name: str, source: Source, message: str) -> None:
    """Writes a source that failed, and what was said."""
    folder.mkdir(parents=True, exist_ok=True)
    data = source if isinstance(source, bytes) else source.encode("utf-8", "surrogatepass")
    stem = re.sub(r"\W+", "-", name)
    (folder / f"{stem}.source").write_bytes(data)
    (folder / f"{stem}.message").write_text(message)


STUDY = Study(
    "fuzz", __doc__,
    {"fast": Settings(250, 80), "default": Settings(5000, 3000), "full": Settings(50_000, 30_000)},
    (run,), (check,), (),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
