"""What a user waits for: how long transforms take to trace, compile and run, and calls of the host.

    python -m experiments.beyond.waiting --nets vit

Seconds are of a processor, of one core, so that what else the machine does costs little. Each
measurement has a process of its own.

1. Functions: the equations of a transformed function, and how long it takes to trace, to compile
   and to run, over the same of the function itself. What equal layers have in common counts once,
   and is compiled once. The least of some rounds counts; "trained" is the gradient of "quantized".
2. Calls: the first of a process, with everything that it compiles, and another one after it.
   Beside them qwix's quantization after training, with its compiled function's first call, and the
   graph of torch-pruning, where these packages are installed:

       pip install qwix; pip install torch-pruning torchvision

The thesis has no such numbers: they are what keeps growth and waiting from coming back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from experiments import harness as h
from experiments.beyond.trials import in_processes
from experiments.beyond.waiting.measures import CALLS, FUNCTIONS, NETS
from experiments.harness import SELECTS, Row, Run

Task = tuple[str, str]
"""A network and a function or a call."""

WIDE = ("moments", "linear")
"""Transforms that follow covariances."""
QUICKEST = ("noisy", "quantized", "moments", "ptq", "convert")
QUICK = [name for name in FUNCTIONS if name not in WIDE and name != "trained"]
SECONDS = {
    ("vit", "convert"): 1.0, ("resnet8", "convert"): 1.0, ("vit", "moments_check"): 10.0,
    ("vit", "calibrate_moments"): 8.0, ("resnet50", "prune_plan"): 0.95,
    ("decoder-1b", "summary"): 20.0, ("decoder-1b", "prune_plan"): 20.0,
    ("decoder-1b", "bytes"): 20.0,
}  # fmt: skip
"""What calls may take; of `prune_plan` what torch-pruning's graph does."""
CALLED = {
    "vit": ("calibrate", "convert", "ptq", "qwix", "moments_check", "calibrate_moments"),
    "resnet8": ("calibrate", "convert", "ptq", "qwix"),
    "resnet50": ("convert", "prune_plan", "torch_pruning"),
    "decoder-1b": ("summary", "prune_plan", "bytes"),
}
"""The calls that are timed, by network."""


@dataclass(frozen=True)
class Settings:
    """What is measured, how often.

    Attributes:
        rounds: How often a function is traced, compiled and run.
        nets: Names of networks; all if empty.
        names: Names of functions and calls; all if empty.
        limit: Seconds of a processor for a measurement.
    """

    rounds: h.Count
    nets: Annotated[tuple[str, ...], SELECTS] = ()
    names: Annotated[tuple[str, ...], SELECTS] = ()
    limit: Annotated[float, h.Least(1), SELECTS] = 900.0


def tasks(run: Run[Settings]) -> list[Task]:
    """Lists what is measured, by the settings."""
    nets = h.choose(run.settings.nets or tuple(NETS), tuple(NETS), "network")
    every = (*FUNCTIONS, *CALLS)
    names = h.choose(run.settings.names or every, every, "function or call")
    return [
        (net, name)
        for net in nets
        for name in names
        if name in CALLED.get(net, ()) or (name in FUNCTIONS and net != "decoder-1b")
    ]


def measure(run: Run[Settings], task: Task) -> Iterator[Row]:
    """Measures in a process of its own."""
    net, name = task
    arguments = [net, str(run.settings.rounds)]
    kind = "call" if name in CALLS else "function"
    for _, row in in_processes(
        "experiments.beyond.waiting.worker", arguments, [name], run.settings.limit
    ):
        yield {"net": net, kind: name, **row}


MEASURED = h.having("trace_ratio")
TIMED = h.having("seconds")


def _of(names: Sequence[str], selection: h.Selection) -> h.Selection:
    return lambda report: [row for row in selection(report) if row.get("function") in names]


def bounded(report: h.Report) -> list[Row]:
    """Selects the calls that have a bound."""
    return [
        {**row, "bound": SECONDS[row["net"], row["call"]]}
        for row in TIMED(report)
        if (row["net"], row["call"]) in SECONDS
    ]


def beside(report: h.Report) -> list[Row]:
    """Pairs our calls with others' of the same network."""
    seconds = {(row["net"], row["call"]): row["seconds"] for row in TIMED(report)}
    pairs = [
        (net, ours, peer)
        for ours, peer in (("ptq", "qwix"), ("calibrate", "qwix"), ("prune_plan", "torch_pruning"))
        for net in NETS
    ]
    return [
        {"net": net, "call": ours, "peer": peer, "ours": seconds[net, ours],
         "theirs": seconds[net, peer]}
        for net, ours, peer in pairs
        if (net, ours) in seconds and (net, peer) in seconds
    ]  # fmt: skip


def _claims(names: Sequence[str], whats: Sequence[str], bound: float) -> list[h.Claim]:
    return [
        h.Claim(
            f"{{net}}, {{function}}: {what} over that of f, at most {{bound:g}}",
            f"{what}_ratio", h.at_most(bound), of=_of(names, h.having(f"{what}_ratio")),
        )
        for what in whats
    ]  # fmt: skip


CLAIMS = (
    *_claims(QUICK, ("trace", "equations", "compile"), 4),
    *_claims(WIDE, ("trace", "equations", "compile"), 8),
    h.Claim(
        "{net}, {call}: seconds, at most {bound:g}", "seconds", h.at_most("bound"), of=bounded
    ),
    h.Claim(
        "{net}, {call}: seconds, at most {peer}'s", "ours", h.at_most("theirs"), of=beside,
        shown="{ours:.2f} to {theirs:.2f}",
    ),
)  # fmt: skip
TABLES = (
    h.Listing(
        "over the function's own",
        {
            "net": "{net}", "function": "{function}",
            "trace": "trace_ratio", "equations": "equations_ratio",
            "compile": "compile_ratio", "run": "run_ratio",
        },
        MEASURED,
    ),
    h.Listing("seconds of a processor", ("net", "function", "trace", "compile", "run"), MEASURED),
    h.Listing("seconds of calls", ("net", "call", "seconds", "again"), TIMED),
    h.Listing("not measured", ("net", "function", "call", "absent", "refused", "status", "words"),
              lambda report: [r for r in report.rows if "trace" not in r and "seconds" not in r]),
)  # fmt: skip
PLOTS = (
    h.Plot(
        "compiling",
        h.Dots(
            "{net} {function}", {"trace_ratio": "trace", "compile_ratio": "compile"}, MEASURED,
            guides=(1, 4), axes={"xlabel": "over that of the function itself", "xscale": "log"},
        ),
        size=(7, 8),
    ),
)  # fmt: skip

STUDY = h.Study(
    "waiting", __doc__,
    {
        "fast": Settings(1, ("vit", "resnet8"), QUICKEST),
        "default": Settings(2),
        "full": Settings(5),
    },
    (h.Part[Settings, Task](tasks, measure),), CLAIMS, PLOTS, TABLES,
    differences=("Parameters are initial values.",),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
