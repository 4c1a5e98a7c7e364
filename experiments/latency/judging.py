"""The figures to reach, each held against what was measured in the same rounds."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from experiments.harness import Report
from experiments.latency import modelled, source
from experiments.latency.contest import OURS
from experiments.latency.operators import DEFAULT
from experiments.latency.pooling import BY_ROWS, GENERIC

Row = Mapping[str, Any]
OVER_DETERMINISTIC = {"mlp": 3.0, "lenet5": 3.0}
OVER_XLA = {
    "moments": {"mlp": 0.5, "lenet5": 0.25},
    "deterministic": {"mlp": 0.4, "lenet5": 0.18},
    "multihead": {"mlp": 0.4, "lenet5": 0.18},
}
UNTUNED_OVER_TUNED = 2.0
PYRO_OVER_MOMENTS = {"mlp": 600, "lenet5": 120}
PYRO_BATCH = 10
DRAWN_OVER_MOMENTS = 6.0
AGREEMENT = 1e-5
OF_PEAK = {"convolutions": 0.6, "dense layers": 0.75}
IN_ORDER, MODEL_ERROR = 0.9, 0.5
OVER_OTHERS = ("onnxruntime", "litert")


Claim = Callable[..., None]


def judge(report: Report) -> None:
    """Adds a check per target and place; those that need an engine that isn't here are left out.

    Few rounds decide no timing.
    """
    rows, claim = report.rows, partial(report.check, needs="default")
    for row in rows:
        if row["table"] == "main":
            _judge_main(row, claim)
    for row in rows:
        if row["table"] == "curve":
            _judge_curve(row, claim)
        if row["table"] == "ensembles":
            _judge_ensembles(row, rows, claim)
        if row["table"] == "pooling":
            _judge_pooling(row, claim)
    _judge_operators(rows, claim)
    _judge_others(rows, claim)
    _judge_models([row for row in rows if row["table"] == "modelled"], report, claim)
    errors = [row["error"] for row in rows if row["engine"] in OURS and "error" in row]
    if errors:
        worst, words = max(errors), f"{len(errors)} compiled results within {AGREEMENT} of JAX"
        report.check(words, None, worst, worst <= AGREEMENT)


def best(rows: Iterable[Row], **wanted: Any) -> Row | None:
    """The row of our best engine with these entries."""
    fitting = [r for r in rows if all(r.get(k) == v for k, v in wanted.items())]
    return next((r for e in OURS for r in fitting if r["engine"] == e), None)


def _judge_main(row: Row, claim: Claim) -> None:
    model, method, engine, batch = (row[k] for k in ("model", "method", "engine", "batch"))
    where = f"{model}, batch {batch}, {row['threads']} thread(s)"

    def most(what: str, column: str, limit: float, theirs: float | None = None) -> None:
        if (ours := row.get(column)) is not None:
            claim(f"{where}: {what}: at most {limit:g}", theirs, ours, ours <= limit)

    def least(what: str, limit: float, theirs: float | None = None) -> None:
        if (ours := row.get("over_moments")) is not None:
            claim(f"{where}: {what}: at least {limit:g}", theirs, ours, ours >= limit)

    if engine in OURS:
        # Where tuning was done, it is held to the targets, and the default to the tuned.
        if engine == "tvm" or "over_tuned" not in row:
            if method in OVER_XLA:
                most(f"{method} over XLA", "over_xla", OVER_XLA[method][model])
            if method == "moments":
                theirs = source.main_ratio(model, batch, "deterministic", "moments", "tvm")
                limit = OVER_DETERMINISTIC[model]
                most("moments over deterministic", "over_deterministic", limit, theirs)
        elif method in OVER_XLA:
            most(f"{method}, untuned over tuned", "over_tuned", UNTUNED_OVER_TUNED)
    elif method == "moments" and engine not in ("xla", *OURS):
        least(f"moments of {engine} over ours", 1.0)
    elif (method, engine) == ("svi30", "xla"):
        least("30 drawn samples, jitted, over moments", DRAWN_OVER_MOMENTS)
    elif (method, engine, batch) == ("svi30", "pyro", PYRO_BATCH):
        theirs = source.main_ratio(model, batch, "moments", "svi30", "pyro")
        least("30 samples in Pyro over moments", PYRO_OVER_MOMENTS[model], theirs)


def _judge_curve(row: Row, claim: Claim) -> None:
    limits = {1: source.FASTER_AT_ONE, 256: source.FASTER_AT_256}.get(row["batch"])
    if limits is None or row["engine"] != "pyro" or "over_moments" not in row:
        return
    words = f"{row['model']}, batch {row['batch']}: 30 samples in Pyro over moments"
    ours, span = row["over_moments"], f"{limits[0]} to {limits[1]}"
    claim(f"{words}: at least {limits[0]}", span, ours, ours >= limits[0])


def _judge_pooling(row: Row, claim: Claim) -> None:
    place = row["implementation"], row["part"], row["engine"]
    if row["implementation"] == BY_ROWS:
        theirs = source.POOLING[place] / source.POOLING[(GENERIC, *place[1:])]
        words = f"max pooling by rows over the generic one, {row['part']}, {row['engine']}"
        ours = row["over_generic"]
        claim(f"{words}: at most {theirs:.3g}", theirs, ours, ours <= theirs)


def _judge_operators(rows: Iterable[Row], claim: Claim) -> None:
    rows = list(rows)
    for row in rows:
        if row["table"] == "forms" and row["form"] == "separate, variances":
            words = f"dense {row['layer']}: joint with second moments is the faster form"
            claim(words, "yes", row["over_joint"], row["over_joint"] >= 1)
    manual = [row for row in rows if row["table"] == "optimizations"]
    if manual:
        theirs = max(without / with_it for without, with_it in source.OPTIMIZATIONS)
        best_of = {row["optimizations"]: row["speedup"] for row in manual}
        default = best_of.pop(DEFAULT)
        ours = max(best_of.values())
        words = f"the best optimizations of the dense operator: at least {theirs:.3g} times faster"
        claim(words, theirs, ours, ours >= theirs)
        words = "the default schedule over the best of them: at most 1"
        claim(words, None, ours / default, ours / default <= 1)


def _judge_others(rows: Iterable[Row], claim: Claim) -> None:
    """Our best engine over what else people would deploy with."""
    main = [row for row in rows if row["table"] == "main"]
    for row in main:
        if row["engine"] not in OVER_OTHERS or row["method"] not in ("deterministic", "moments"):
            continue
        place = {key: row[key] for key in ("model", "batch", "threads", "method")}
        if ours := best(main, **place):
            where = f"{row['model']}, batch {row['batch']}, {row['threads']} thread(s)"
            words = f"{where}: {row['method']} over {row['engine']}'s: at most 1"
            over = ours["ms"] / row["ms"]
            claim(words, None, over, over <= 1)


def _judge_models(rows: list[Row], report: Report, claim: Claim) -> None:
    """The static model against the clock, and the vectors that kernels use."""
    if not rows:
        return
    in_order, error, _ = modelled.agreement(rows)
    count = f"{len(rows)} kernels of {len({row['model'] for row in rows})} networks"
    words = f"static model and times, {count}: Spearman's correlation at least {IN_ORDER}"
    claim(words, None, in_order, in_order >= IN_ORDER)
    words = f"static model over times, {count}: median error at most {MODEL_ERROR}"
    claim(words, None, error, error <= MODEL_ERROR)
    for (model, method, kind), share in modelled.shares(rows).items():
        if model in OVER_DETERMINISTIC:
            least = OF_PEAK[kind]
            words = f"{model}, batch 10, {method}: {kind} of the core's peak: at least {least}"
            claim(words, None, share, share >= least)
    for model in dict.fromkeys(row["model"] for row in rows):
        slim = modelled.narrow(row for row in rows if row["model"] == model)
        words = f"{model}: float kernels without a vector as wide as its widest"
        report.check(words, 0, len(slim), not slim)


def _judge_ensembles(row: Row, rows: Iterable[Row], claim: Claim) -> None:
    place = {k: row[k] for k in ("table", "model", "batch", "threads", "engine")}
    if best(rows, **place | {"method": row["method"]}) is not row or row["method"] != "multihead":
        return
    where = f"{row['model']}, batch {row['batch']}"
    if (several := best(rows, **place, method="ensemble")) is not None:
        tuned = source.ENSEMBLES[row["model"], "A72"]["tuned"]
        ours, limit = several["ms"] / row["ms"], source.HEADS_FASTER[row["model"]]
        words = f"{where}: ten networks over ten heads: at least {limit}"
        claim(words, tuned[2] / tuned[1], ours, ours >= limit)
    if (moments := best(rows, **place, method="moments")) is not None:
        theirs = source.MOMENTS_AND_HEADS[row["batch"]]
        limit, ours = theirs[0] / theirs[1], moments["ms"] / row["ms"]
        words = f"{where}: moments over ten heads: no more than the source's"
        claim(words, limit, ours, ours <= limit)
