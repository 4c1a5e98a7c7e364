"""How many programs the importer takes, and whether TVM then computes what XLA computes.

    python -m tests.conformance

Each case is exported by JAX, run by XLA, imported, compiled by TVM, run and compared, in a worker
process that a crash or a hang can't take the study with. The programs (`--suite programs`) are
also timed beside XLA. Every case ends as one of

- ok: equal, or floats within three units in the last place;
- rounding: floats further apart, within the tolerances of JAX's own tests;
- wrong, unsupported, import error, compile error, run error, crash, timeout;
- left out: JAX doesn't run it here, or it has a type that TVM lacks. Counted nowhere.

With `--compiler c` each is a C library, run by its example, and its results are also held to the
bits of the same kernels in TVM's runtime.

Records are kept as they come, so a run that was killed goes on where it stopped; `--retry` runs
again what didn't end well, `--fresh` everything.
"""

import collections
import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from experiments.harness import SELECTS, Found, Least, Refused, Report, Row, Run, Study, Table
from tests.conformance import suites
from tests.conformance.workers import run_cases

GOOD = ("ok", "rounding")
BAD = ("wrong", "unsupported", "import error", "compile error", "run error", "crash", "timeout")
TARGET = 2558 / 2578  # of the official cases
FAST = 2  # cases of each group
SLOWEST = 10  # shown, of the cases that are timed
TIMES = ("case", "import_s", "compile_s", "xla_ms", "tvm_ms", "ratio")


@dataclass(frozen=True)
class Settings:
    """Which cases, and how each is run.

    Attributes:
        most: Cases of each group at most.
        suite: JAX's own cases, programs as users write them, or operations at special values.
        group: Only these groups.
        match: Only cases with this in their name.
        compiler: The pipeline, plain tvm.compile, or the pipeline's kernels as a C library.
        constants: Whether arguments are written into the module.
        jobs: Worker processes.
        seconds: Time for one case.
        retry: Whether to run again what failed.
    """

    most: Annotated[int | None, Least(1), SELECTS] = None
    suite: Literal["harnesses", "programs", "values"] = "harnesses"
    group: Annotated[tuple[str, ...], SELECTS] = ()
    match: Annotated[str, SELECTS] = ""
    compiler: Literal["pipeline", "plain", "c"] = "pipeline"
    constants: bool = False
    jobs: Annotated[int, Least(1), SELECTS] = 1
    seconds: Annotated[float, Least(0), SELECTS] = 60.0
    retry: Annotated[bool, SELECTS] = False


def run(run: Run[Settings]) -> Found:
    """Runs the cases of a suite, and counts how they end."""
    settings = run.settings
    table = suites.SUITES[settings.suite]
    chosen = suites.choose(pkgutil.resolve_name(table)().values(), settings.group, settings.most)
    groups = {case.name: case.group for case in chosen if settings.match in case.name}
    if not groups:
        raise Refused(f"no case of {settings.suite} has {settings.match!r} in its name")

    def outcomes(todo: Sequence[str]) -> Iterator[tuple[str, list[Row]]]:
        how = (table, settings.compiler, settings.constants, settings.jobs, settings.seconds)
        for row in run_cases(todo, *how):
            if row["outcome"] in BAD:
                run.say(f"[red]{row['outcome']}[/red] {row['case']}")
            yield row["case"], [{"group": groups[row["case"]], **row}]

    again = lambda rows: settings.retry and rows[0]["outcome"] in BAD  # noqa: E731
    rows = run.stream([*groups], outcomes, again=again)
    counted = [row for row in rows if row["outcome"] != "left out"]
    summary = summarize(counted)
    return Found(counted, {"summary": summary, "left_out": len(rows) - len(counted)})


def summarize(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Counts the outcomes of every group, and of all together in the last row."""
    counts: dict[str, collections.Counter] = {}
    for row in rows:
        for where in (row["group"], "all"):
            counts.setdefault(where, collections.Counter())[row["outcome"]] += 1
    counts["all"] = counts.pop("all", collections.Counter())
    outcomes = [o for o in (*GOOD, *BAD) if counts["all"][o] or o in GOOD]
    return [
        {"group": where, "cases": count.total(), **{o: count[o] or None for o in outcomes}}
        for where, count in counts.items()
    ]


def judge(report: Report) -> None:
    """Holds the counts to the targets."""
    total = report.extra["summary"][-1]
    cases = total["cases"]
    good = sum(total[o] or 0 for o in GOOD)
    share = good / max(cases, 1)
    report.check(f"of {cases} cases: at least {TARGET:.1%} well", None, share, share >= TARGET)
    bad = sum(total.get(o) or 0 for o in ("crash", "timeout"))
    report.check("no crash and no hang", None, bad, bad == 0)


def tables(report: Report) -> list[Table]:
    """How the cases end, and the slowest of those that are timed."""
    timed = sorted((row for row in report.rows if "ratio" in row), key=lambda row: -row["ratio"])
    shown = [Table.from_rows("how cases end", report.extra["summary"])]
    others = [row for row in report.rows if not row.get("same_bits", True)]
    shown += (
        [Table.from_rows("C libraries of other bits", others, ("case", "ulps"))] if others else []
    )
    return shown + (
        [Table.from_rows("slowest beside XLA", timed[:SLOWEST], TIMES)] if timed else []
    )


STUDY = Study(
    "importer", __doc__,
    {"fast": Settings(most=FAST), "default": Settings(), "full": Settings()},
    (run,), (judge,), (), (tables,),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
