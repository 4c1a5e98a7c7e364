"""Damaged modules through the importer: never a crash, a hang, or an error of another kind.

    python -m experiments.importer.fuzz [--fast] [--json PATH]

Every source is imported in a child process. It is held that the child neither dies nor takes more
than 20 seconds, and that what it raises is `StableHLOParseError` or `UnsupportedOpError` with a
position. Sources that fail are written to `results/fuzz-failures/`.
"""

import collections
import itertools
import multiprocessing
import random
import re
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.importer import sound_programs
from experiments.importer.hostile import HOSTILE_TEXTS, hostile_artifacts
from experiments.importer.mutations import damaged_artifacts, damaged_texts
from experiments.report import Report, make_console, show_rows

SECONDS = 20.0
POSITION = re.compile(
    r"line \d+, column \d+|\d+:\d+|bytes? \d+|\d+ bytes|unknown location|\) at |public function"
    r"|valid StableHLO: .+: "
)
Source = str | bytes

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


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


@app.command()
def main(
    fast: Annotated[bool, typer.Option("--fast", help="400 sources instead of 8,000")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; results/fuzz.json if unset")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for what fails")] = Path("results"),
    seed: Annotated[int, typer.Option(help="Of the damage")] = 0,
) -> None:
    """Import damaged modules and count how that ends."""
    console = make_console()
    texts, artifacts = (250, 80) if fast else (5000, 3000)
    report = Report("fuzz", {"fast": fast, "seed": seed, "texts": texts, "artifacts": artifacts})
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    wrong: dict[str, list[str]] = collections.defaultdict(list)
    slowest: dict[str, float] = collections.defaultdict(float)
    failures = results / "fuzz-failures"
    importer = Importer()
    with console.status("importing") as status:
        for done, (kind, name, source) in enumerate(sources(texts, artifacts, seed)):
            start = time.perf_counter()
            outcome, message = importer.outcome(source)
            slowest[kind] = max(slowest[kind], time.perf_counter() - start)
            counts[kind][outcome] += 1
            fault = judge(kind, outcome, message)
            if fault is not None:
                wrong[kind].append(f"{name}: {fault}")
                keep(failures, f"{kind} {name} {fault}", source, message)
            status.update(f"importing: {done + 1} of about {texts + artifacts}")
    importer.stop()
    for kind, found in counts.items():
        row: dict[str, Any] = {"kind": kind, "sources": found.total(), **dict(found)}
        row |= {"slowest_s": round(slowest[kind], 2)}
        report.rows.append(row)
        claim = f"{kind}: crashes, hangs, and errors that are not the importer's"
        report.check(claim, 0, len(wrong[kind]), not wrong[kind])
    report.extra["wrong"] = dict(wrong)
    show_rows(console, "How imports end", report.rows)
    path = report.save(json or results / "fuzz.json")
    report.show_checks(console)
    console.print(f"[bold]{path}[/bold]")


def keep(folder: Path, name: str, source: Source, message: str) -> None:
    """Writes a source that failed, and what was said."""
    folder.mkdir(parents=True, exist_ok=True)
    data = source if isinstance(source, bytes) else source.encode("utf-8", "surrogatepass")
    stem = re.sub(r"\W+", "-", name)
    (folder / f"{stem}.source").write_bytes(data)
    (folder / f"{stem}.message").write_text(message)


if __name__ == "__main__":
    app()
