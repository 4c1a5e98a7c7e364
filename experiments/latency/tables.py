"""The tables that are printed, ours beside the source's."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.harness import Report, Table
from experiments.latency import modelled, source
from experiments.latency.operators import DEFAULT, switched
from experiments.latency.profiling import ORDER, OVERHEAD

Row = Mapping[str, Any]
ENGINES = (
    "tvm", "tvm_untuned", "onnxruntime", "litert", "iree", "xla", "pyro", "numpyro_jit", "numpyro",
)  # fmt: skip
"""In the order of columns and bars; other engines are the slower forms of one of these."""
PLACE = ("model", "batch", "threads", "method")


def tables(report: Report) -> list[Table]:
    """Every table that there are rows for."""
    found = {name: [r for r in report.rows if r["table"] == name] for name in _TABLES}
    return [table for name, rows in found.items() if rows for table in _TABLES[name](rows)]


def _machine(rows: Sequence[Row]) -> list[Table]:
    lines = [
        {
            "threads": row["threads"],
            "call": f"{row['method']} by {row['engine']}",
            "GMAC/s": row["macs"] / row["ms"] / 1e6 if row["macs"] else None,
            "us": 1e3 * row["ms"],
        }
        for row in rows
    ]
    return [Table.from_rows("what the machine does", lines)]


def _main(rows: Sequence[Row]) -> list[Table]:
    lines = [line | _source(line) for line in _by_engine(rows)]
    title = "milliseconds; the source's on a Cortex-A72, tuned (30 samples: Pyro)"
    return [
        Table.from_rows(title, lines),
        Table.from_rows("over XLA, medians of the same rounds", _by_engine(rows, "over_xla")),
        Table.from_rows("over our moment pass", _by_engine(rows, "over_moments")),
    ]


def _curve(rows: Sequence[Row]) -> list[Table]:
    per_image = [{**row, "ms": row["ms"] / row["batch"]} for row in rows]
    sampled = [row for row in rows if row["method"] == "svi30"]
    return [
        Table.from_rows("milliseconds per image", _by_engine(per_image)),
        Table.from_rows("30 samples over our moment pass", _by_engine(sampled, "over_moments")),
    ]


def _ensembles(rows: Sequence[Row]) -> list[Table]:
    lines = []
    for line in _by_engine(rows):
        cells = source.ENSEMBLES.get((line["model"], "A72"))
        if cells and line["method"] in source.ENSEMBLE_METHODS and line["batch"] >= 128:
            at = source.ENSEMBLE_METHODS.index(line["method"])
            line |= {"A72_naive": cells["naive"][at], "A72_tuned": cells["tuned"][at]}
        elif line["model"] == "lenet5_valid":
            both = source.MOMENTS_AND_HEADS[line["batch"]]
            line |= {"A72_tuned": both[line["method"] == "multihead"]}
        lines.append(line)
    title = "ensembles, milliseconds; the source's on a Cortex-A72 with four threads"
    return [Table.from_rows(title, lines)]


def _profile(rows: Sequence[Row]) -> list[Table]:
    found = []
    places = dict.fromkeys((row["model"], row["engine"]) for row in rows)
    for model, engine in places:
        own = [row for row in rows if (row["model"], row["engine"]) == (model, engine)]
        lines = [{**row, "operator": _shortened(row["operator"])} for row in own]
        title = f"moment pass of {model} by {engine}, batch {own[0]['batch']}"
        found.append(Table.from_rows(title, lines, ("operator", "kind", "calls", "ms", "share")))
        shares = kinds(own)
        theirs = source.SHARES[model]
        beside = [{"kind": k, "share": v, "A72": theirs.get(k)} for k, v in shares.items()]
        found.append(Table.from_rows(f"shares of {model}, the source's before tuning", beside))
    return found


def _forms(rows: Sequence[Row]) -> list[Table]:
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(row["layer"], {"dense layer": row["layer"]})
        line[row["form"]] = row["ms"]
    title = f"forms of the dense operator, batch {rows[0]['batch']}, ms"
    return [Table.from_rows(title, [*lines.values()])]


def _optimizations(rows: Sequence[Row]) -> list[Table]:
    theirs = [
        dict(zip(("A72_without", "A72_with"), ms, strict=True)) for ms in source.OPTIMIZATIONS
    ]
    lines = [a | b for a, b in zip(switched(rows), theirs, strict=True)]
    for line in lines:
        line["A72_speedup"] = line["A72_without"] / line["A72_with"]
    threads = rows[0]["threads"]
    title = f"the dense operator of an MLP, batch {rows[0]['batch']}, {threads} thread(s), ms"
    (default,) = (row for row in rows if row["optimizations"] == DEFAULT)
    last = {"optimization": DEFAULT, "with_ms": default["ms"], "speedup": default["speedup"]}
    return [Table.from_rows(title, [*lines, last])]


def _pooling(rows: Sequence[Row]) -> list[Table]:
    lines = [
        {**row, "A72": source.POOLING[row["implementation"], row["part"], row["engine"]]}
        for row in rows
    ]
    title = f"max pooling in the moment pass of LeNet-5, batch {rows[0]['batch']}, ms"
    columns = ("part", "implementation", "engine", "ms", "over_generic", "A72")
    return [Table.from_rows(title, lines, columns)]


def _modelled(rows: Sequence[Row]) -> list[Table]:
    lines = [{**row, "operator": _shortened(row["operator"], 36)} for row in rows]
    columns = (
        "model", "method", "operator", "ms", "least_ms", "of_peak", "cycles", "per_cycle", "width",
        "in_widest", "spills", "loads_per_multiply", "bytes", "level",
    )  # fmt: skip
    title = f"kernels by the clock, and by a static model of {rows[0]['core']}"
    several = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        if len(own) > 2:
            order, error, clock = modelled.agreement(own)
            several.append(
                {"method": method, "kernels": len(own), "Spearman": order, "median error": error}
                | {"clock fitted, GHz": clock}
            )
    of_peak = [
        {"model": model, "method": method, "kind": kind, "of the peak": share}
        for (model, method, kind), share in modelled.shares(rows).items()
    ]
    return [
        Table.from_rows(title, lines, columns),
        Table.from_rows("how the model and the clock agree", several),
        Table.from_rows("multiply-accumulates, padding included, over the core's peak", of_peak),
    ]


def kinds(rows: Iterable[Row]) -> dict[str, float]:
    """The shares of a profile by kind of operator; the overhead is never negative."""
    shares = dict.fromkeys(ORDER, 0.0)
    for row in rows:
        shares[row["kind"]] += row["share"]
    shares[OVERHEAD] = max(shares[OVERHEAD], 0.0)
    return {kind: share for kind, share in shares.items() if share or kind == OVERHEAD}


def _by_engine(rows: Sequence[Row], value: str = "ms") -> list[dict[str, Any]]:
    """A line per model, batch, threads and method, a column per engine."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    there = [e for e in ENGINES if any(r["engine"] == e and r.get(value) for r in rows)]
    for row in rows:
        if row["engine"] in there and value in row:
            place = tuple(row[key] for key in PLACE)
            empty = dict(zip(PLACE, place, strict=True)) | dict.fromkeys(there)
            lines.setdefault(place, empty)[row["engine"]] = row[value]
    return list(lines.values())


def _source(line: Row) -> dict[str, float | None]:
    engine = "pyro" if line["method"] == "svi30" else "tvm"
    return {"A72": source.main_ms(line["model"], line["method"], engine, line["batch"], "A72")}


def _shortened(name: str, length: int = 60) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


_TABLES = {
    "machine": _machine,
    "main": _main,
    "curve": _curve,
    "ensembles": _ensembles,
    "profile": _profile,
    "pooling": _pooling,
    "modelled": _modelled,
    "forms": _forms,
    "optimizations": _optimizations,
}
