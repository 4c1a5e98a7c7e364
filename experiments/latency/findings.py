"""What the study claims, prints and draws."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from experiments import harness as h
from experiments.harness import Report, Row
from experiments.latency import source
from experiments.latency.contest import OURS
from experiments.latency.operators import DEFAULT, switched
from experiments.latency.profiling import ORDER, OVERHEAD

OVER_DETERMINISTIC = 3.0
OVER_XLA = {
    "moments": {"mlp": 0.5, "lenet5": 0.25},
    "deterministic": {"mlp": 0.4, "lenet5": 0.18},
    "multihead": {"mlp": 0.4, "lenet5": 0.18},
}
UNTUNED_OVER_TUNED = 2.0
SIMPLE = ("ReLU", "max pool")
"""Operators that cost next to nothing in a deterministic network."""
TUNING_COSTS = 0.05
"""What a tuned kernel may lose over the default one: candidates are measured on a busy machine."""
KNOWN_BATCHES = frozenset(source.MOMENTS_AND_HEADS)
DRAWN_OVER_MOMENTS = 6.0
AGREEMENT = 1e-5
LABELS = {
    "tvm": "TVM, tuned", "tvm_untuned": "TVM", "onnxruntime": "ONNX Runtime", "xla": "XLA",
    "numpyro_jit": "NumPyro, jitted", "numpyro": "NumPyro", "pyro": "Pyro",
}  # fmt: skip
"""Engines in the order of columns and bars; others are the slower forms of one of these."""
ENGINES = [*LABELS]
COLOURS = dict(zip(ENGINES, ("C3", "C1", "C0", "C2", "C6", "C5", "C4"), strict=True))
METHODS = {
    "deterministic": "deterministic", "multihead": "ten heads", "moments": "moment pass",
    "ensemble": "ten networks", "svi30": "30 samples",
}  # fmt: skip
TITLES = {
    "mlp": "MLP 784-100-100-10", "lenet5": "LeNet-5", "sine": "noisy sine, MLP",
    "lenet5_valid": "LeNet-5, unpadded",
}  # fmt: skip
PLACE = ("model", "batch", "threads", "method")
WHERE = "{model}, batch {batch}, {threads} thread(s)"

MAIN, CURVE, ENSEMBLES, PROFILE, OPTIMIZATIONS, ARM = (
    h.where(table=name)
    for name in ("main", "curve", "ensembles", "profile", "optimizations", "arm")
)


def best(rows: Iterable[Row], **wanted: Any) -> Row | None:
    """The row of our best engine with these entries."""
    fitting = [r for r in rows if all(r.get(k) == v for k, v in wanted.items())]
    return next((r for e in OURS for r in fitting if r["engine"] == e), None)


def _over_others(report: Report) -> Iterator[Row]:
    """Selects what else people would deploy with, and our best engine's time over theirs."""
    for row in MAIN(report):
        ours = best(MAIN(report), **{key: row[key] for key in PLACE})
        single = row["method"] in ("deterministic", "moments")
        if ours and single and row["engine"] == "onnxruntime":
            yield {**row, "over": ours["ms"] / row["ms"]}


def _heads(report: Report) -> Iterator[Row]:
    """Selects ten heads by our engines, with ten networks and the moment pass over them."""
    rows = ENSEMBLES(report)
    for row in rows:
        if row["method"] == "multihead" and row["engine"] in OURS:
            place = {key: row[key] for key in ("model", "batch", "threads", "engine")}
            for method in ("ensemble", "moments"):
                if other := best(rows, **place, method=method):
                    yield {**row, method: other["ms"] / row["ms"]}


def _growing(report: Report) -> Iterator[Row]:
    """Selects how the moment pass over ten heads grows from one image to the largest batch."""
    for table in (ENSEMBLES(report), ARM(report)):
        rows = [row for row in table if row["model"] == "lenet5_valid"]
        for (engine,), same in h.grouped(rows, "engine").items():
            if engine not in (*OURS, "cortex-a72", "cortex-a76"):  # the thesis has no A53 of these
                continue
            by = {(row["batch"], row["method"]): row for row in same}
            ratios = {
                batch: ratio for batch in sorted(KNOWN_BATCHES)
                if (ratio := _over_heads_at(by, batch)) is not None
            }  # fmt: skip
            if len(ratios) > 1:
                first, last = min(ratios), max(ratios)
                core = engine if engine.startswith("cortex") else "cortex-a72"
                theirs = [source.moments_over_heads(b, core) for b in (first, last)]
                yield {
                    "engine": engine, "from": first, "to": last,
                    "grown": ratios[last] / ratios[first],
                    "first": ratios[first], "last": ratios[last],
                    "half": theirs[1] / theirs[0] / 2, "theirs": theirs,
                }  # fmt: skip


def _over_heads_at(by: Mapping[tuple[int, str], Row], batch: int) -> float | None:
    """The moment pass over ten heads, in time or in modelled cycles."""
    moments, heads = (by.get((batch, method)) for method in ("moments", "multihead"))
    if moments is None or heads is None:
        return None
    ratio = moments.get("cycles_over_multihead") or moments["ms"] / heads["ms"]
    return float(ratio)


def _spent(report: Report) -> Iterator[Row]:
    """Selects what dense layers, and what ReLU and max pool, have of each untuned moment pass."""
    rows = [row for row in PROFILE(report) if row["engine"] == "tvm_untuned"]
    for (model,), operators in h.grouped(rows, "model").items():
        shares = {kind: share for kind, share in kinds(operators).items() if kind != OVERHEAD}
        theirs, most = source.SHARES[model], max(shares, key=lambda kind: shares[kind])
        simple = sum(shares.get(kind, 0.0) for kind in SIMPLE)
        yield {
            "model": model, "most": most, "their_most": max(theirs, key=lambda kind: theirs[kind]),
            "simple": simple, "their_simple": sum(theirs.get(kind, 0.0) for kind in SIMPLE),
        }  # fmt: skip


def _manual(report: Report) -> Iterator[Row]:
    """Selects what the optimizations of the dense operator gain, one by one, and the default's.

    The thesis' 5.06 is of all but tiling: a maximum over eleven variants would gain something by
    chance.
    """
    rows = OPTIMIZATIONS(report)
    if rows:
        lines = {(row["optimization"], row["others"]): row["speedup"] for row in switched(rows)}
        theirs = dict(zip(lines, source.OPTIMIZATIONS, strict=True))
        ours = {row["optimizations"]: row["speedup"] for row in rows}
        without, with_it = theirs["all but tiling", ""]
        yield {
            "all": lines["all but tiling", ""], "theirs": without / with_it,
            "over": lines["all but tiling", ""] / ours[DEFAULT],
            "alone": lines["vectorization", "off"], "together": lines["tiling", "on"],
            **{name: one / two for name, (one, two) in (
                ("their_alone", theirs["vectorization", "off"]),
                ("their_together", theirs["tiling", "on"]),
            )},
        }  # fmt: skip


def _errors(report: Report) -> Iterator[Row]:
    """Selects the largest deviation of our compiled results."""
    ours = [r["error"] for r in report.rows if r["engine"] in OURS and "error" in r]
    if ours:
        yield {"worst": max(ours), "count": len(ours)}


def _sampled_by_source(row: Row) -> float | None:
    return source.main_ratio(row["model"], row["batch"], "svi30", "moments")


def _moments_by_source(row: Row) -> float | None:
    return source.moments_over_one(row["model"], row["batch"], row["engine"])


def _heads_by_source(row: Row) -> float:
    return source.moments_over_heads(row["batch"], row["engine"])


def _ours(row: Row) -> bool:
    """Where tuning was done, it is held to the targets, and the default to the tuned."""
    untuned = row["engine"] == "tvm_untuned" and "over_tuned" not in row
    return row["method"] in OVER_XLA and (row["engine"] == "tvm" or untuned)


def _tuned(row: Row) -> bool:
    return row["method"] in OVER_XLA and row["engine"] == "tvm_untuned" and "over_tuned" in row


def _is(**columns: Any) -> Any:
    return lambda row: all(row[key] == value for key, value in columns.items())


FASTER = {1: source.FASTER_AT_ONE, 256: source.FASTER_AT_256}
claim = partial(h.Claim, needs="default")  # few rounds decide no timing
CLAIMS = (
    claim(
        f"{WHERE}: {{method}} over XLA: at most {{bound:g}}", "over_xla",
        h.at_most(lambda row: OVER_XLA[row["method"]][row["model"]]), of=MAIN, when=_ours,
    ),
    claim(
        f"{WHERE}: moments over deterministic: at most {{bound:g}}", "over_deterministic",
        h.at_most(OVER_DETERMINISTIC),
        lambda row: source.main_ratio(row["model"], row["batch"], "moments", "deterministic"), MAIN,
when=lambda row: _ours(row) and row["method"] == "moments",
    ),
    claim(
        f"{WHERE}: {{method}}, untuned over tuned: at most {UNTUNED_OVER_TUNED:g}, and tuning "
        f"costs no more than {TUNING_COSTS:.0%}", "over_tuned",
        lambda row, over: 1 - TUNING_COSTS <= over <= UNTUNED_OVER_TUNED, of=MAIN, when=_tuned,
    ),
    claim(
        f"{WHERE}: moments, untuned over tuned: half of what tuning gains in the thesis, or more",
        "over_tuned", h.at_least(lambda row: (1 + source.TUNING[row["model"]]) / 2),
        lambda row: source.TUNING[row["model"]], MAIN,
        when=lambda row: _tuned(row) and row["method"] == "moments",
    ),
    h.Claim(
        "{engine}: moments of LeNet-5 over ten heads grow from batch {from} to {to} at least half "
        "as much as in the thesis", "grown", h.at_least("half"),
        lambda row: "{:.1f} to {:.1f}".format(*row["theirs"]), _growing,
        shown="{first:.1f} to {last:.1f}",
    ),
    claim(
        f"{WHERE}: moments of {{engine}} over ours: at least {{bound:g}}", "over_moments",
        h.at_least(1.0), of=MAIN,
        when=lambda row: row["method"] == "moments" and row["engine"] not in ("xla", *OURS),
    ),
    claim(
        f"{WHERE}: 30 drawn samples, jitted, over moments: at least {{bound:g}}", "over_moments",
        h.at_least(DRAWN_OVER_MOMENTS), of=MAIN, when=_is(method="svi30", engine="xla"),
    ),
    claim(
        f"{WHERE}: 30 samples in NumPyro, jitted, over moments: at least {{bound:g}}",
        "over_moments", h.at_least(DRAWN_OVER_MOMENTS), of=MAIN, when=_is(engine="numpyro_jit"),
    ),
    claim(
        f"{WHERE}: 30 samples in Pyro over moments: at least the thesis'",
        "over_moments", h.at_least(_sampled_by_source), _sampled_by_source, MAIN,
        when=lambda row: row["engine"] == "pyro" and _sampled_by_source(row) is not None,
    ),
    claim(
        "{model}, batch {batch}: 30 samples in Pyro over moments: at least {bound}",
        "over_moments", h.at_least(lambda row: FASTER[row["batch"]][0]),
        lambda row: "{} to {}".format(*FASTER[row["batch"]]),
        CURVE, when=lambda row: row["engine"] == "pyro" and row["batch"] in FASTER,
    ),
    claim(
        "{model}, batch {batch}: ten networks over ten heads: at least {bound}", "ensemble",
        h.at_least(lambda row: source.HEADS_FASTER[row["model"]]),
        lambda row: source.networks_over_heads(row["model"]), _heads,
    ),
    claim(
        "{model}, batch {batch}: moments over ten heads: no more than the thesis'", "moments",
        h.at_most(lambda row: source.moments_over_heads(row["batch"])),
        lambda row: source.moments_over_heads(row["batch"]), _heads,
    ),
    claim(
        "{model}, untuned: what takes most of the moment pass", "most", h.equals("their_most"),
        "{their_most}", _spent,
    ),
    claim(
        "{model}, untuned: share of ReLU and max pool, half of the thesis' to twice", "simple",
        lambda row, share: 0.5 <= share / row["their_simple"] <= 2,
        lambda row: row["their_simple"], _spent,
    ),
    claim(
        "all optimizations of the dense operator but tiling: at least {bound:.3g} times faster",
        "all", h.at_least("theirs"), lambda row: row["theirs"], _manual,
    ),
    claim("vectorization alone makes it slower (times faster)", "alone", h.below(1),
          lambda row: row["their_alone"], _manual),
    claim("so does tiling where the others are on", "together", h.below(1),
          lambda row: row["their_together"], _manual),
    claim("the default schedule over all but tiling: at most {bound}", "over", h.at_most(1),
          of=_manual),
    claim(
        f"{WHERE}: {{method}} over {{engine}}'s: at most {{bound}}", "over", h.at_most(1),
        of=_over_others,
    ),
    h.Claim(
        "{model}, batch {batch}, {engine} modelled: cycles of moments over deterministic: no more "
        "than the thesis' times",
        "cycles_over_deterministic", h.at_most(_moments_by_source), _moments_by_source, ARM,
        when=lambda row: row["method"] == "moments" and _moments_by_source(row) is not None,
    ),
    h.Claim(
        "{model}, batch {batch}, {engine} modelled: cycles of moments over ten heads: no more than "
        "the thesis' times",
        "cycles_over_multihead", h.at_most(_heads_by_source), _heads_by_source, ARM,
        when=lambda row: row["method"] == "moments" and "cycles_over_multihead" in row
        and row["engine"] != "cortex-a53",  # of which the thesis has none
    ),
    h.Claim(
        "{model}, batch {batch}, {engine} modelled: cycles of ten networks over ten heads: at "
        "least {bound}",
        "cycles_over_multihead", h.at_least(lambda row: source.HEADS_FASTER[row["model"]]),
        lambda row: source.networks_over_heads(row["model"]), ARM,
        when=lambda row: row["method"] == "ensemble",
    ),
    h.Claim("{count} compiled results within {bound} of JAX", "worst", h.at_most(AGREEMENT),
            of=_errors),
)  # fmt: skip


def _shortened(length: int) -> Any:
    def short(row: Row) -> str:
        name: str = row["operator"]
        return name if len(name) <= length else f"{name[: length - 1]}…"

    return short


def _main(report: Report) -> list[Row]:
    """Selects milliseconds by engine, beside the thesis'."""
    lines = h.pivot(MAIN, PLACE, "engine", "ms", ENGINES)(report)
    known = source.MAIN
    return [
        line | {"A72": known.get((line["model"], line["batch"]), {}).get(line["method"])}
        for line in lines
    ]


def _ensembles(report: Report) -> Iterator[Row]:
    """Selects milliseconds of ensembles by engine, beside the thesis'."""
    for line in h.pivot(ENSEMBLES, PLACE, "engine", "ms", ENGINES)(report):
        cells = source.ENSEMBLES.get(line["model"])
        if cells and line["method"] in source.ENSEMBLE_METHODS and line["batch"] >= 128:
            at = source.ENSEMBLE_METHODS.index(line["method"])
            line |= {"A72_naive": cells["naive"][at], "A72_tuned": cells["tuned"][at]}
        elif line["model"] == "lenet5_valid":
            both = source.MOMENTS_AND_HEADS[line["batch"]]
            line |= {"A72_tuned": both[line["method"] == "multihead"]}
        yield line


def _per_image(report: Report) -> list[Row]:
    """Selects the curve's rows of named engines, with what plots say of them."""
    return [
        {
            **row, "per_image": row["ms"] / row["batch"], "title": TITLES[row["model"]],
            "label": f"{METHODS[row['method']]}, {LABELS[row['engine']]}",
            "style": COLOURS[row["engine"]] + ("o-" if row["method"] == "moments" else "s--"),
        }
        for row in CURVE(report)
        if row["engine"] in LABELS
    ]  # fmt: skip


def _sampled(report: Report) -> list[Row]:
    return [row for row in _per_image(report) if row["method"] == "svi30"]


def _profiles(report: Report) -> list[h.Table]:
    """Lists operators and shares of each moment pass, beside the thesis'."""
    lines = []
    columns = {name: name for name in ("operator", "kind", "calls", "ms", "share")}
    for (model, engine), own in h.grouped(PROFILE(report), "model", "engine").items():
        title = f"moment pass of {model} by {engine}, batch {own[0]['batch']}"
        rows = h.where(table="profile", model=model, engine=engine)
        lines += h.Listing(title, columns | {"operator": _shortened(60)}, rows)(report)
        beside = [
            {"kind": kind, "share": share, "A72": source.SHARES[model].get(kind)}
            for kind, share in kinds(own).items()
        ]
        lines.append(h.Table.from_rows(f"shares of {model}, the thesis' before tuning", beside))
    return lines


def kinds(rows: Iterable[Row]) -> dict[str, float]:
    """The shares of a profile by kind of operator; the overhead is never negative."""
    shares = dict.fromkeys(ORDER, 0.0)
    for row in rows:
        shares[row["kind"]] += row["share"]
    shares[OVERHEAD] = max(shares[OVERHEAD], 0.0)
    return {kind: share for kind, share in shares.items() if share or kind == OVERHEAD}


def _switches(report: Report) -> list[Row]:
    """Selects what each optimization brings, beside the thesis'."""
    rows = OPTIMIZATIONS(report)
    if not rows:
        return []
    lines = [
        ours | {"A72_without": without, "A72_with": with_it, "A72_speedup": without / with_it}
        for ours, (without, with_it) in zip(switched(rows), source.OPTIMIZATIONS, strict=True)
    ]
    (default,) = (row for row in rows if row["optimizations"] == DEFAULT)
    last = {"optimization": DEFAULT, "with_ms": default["ms"], "speedup": default["speedup"]}
    return [*lines, last]


def _operators(report: Report) -> list[h.Table]:
    """Lists the optimizations, whose title says the batch."""
    rows = OPTIMIZATIONS(report)
    if not rows:
        return []
    batch, threads = rows[0]["batch"], rows[0]["threads"]
    title = f"the dense operator of an MLP, batch {batch}, {threads} thread(s), ms"
    return h.Listing(title, of=_switches)(report)


TABLES = (
    h.Listing("milliseconds; the thesis' on a Cortex-A72, tuned (30 samples: Pyro)", of=_main),
    h.Listing("over XLA, medians of the same rounds",
              of=h.pivot(MAIN, PLACE, "engine", "over_xla", ENGINES)),
    h.Listing("over our moment pass",
              of=h.pivot(MAIN, PLACE, "engine", "over_moments", ENGINES)),
    h.Listing("milliseconds per image",
              of=h.pivot(_per_image, PLACE, "engine", "per_image", ENGINES)),
    h.Listing("30 samples over our moment pass",
              of=h.pivot(_sampled, PLACE, "engine", "over_moments", ENGINES)),
    h.Listing("ensembles, milliseconds; the thesis' on a Cortex-A72 with four threads",
              of=_ensembles),
    h.Listing(
        "millions of cycles and instructions, modelled; over the deterministic net and ten heads",
        {
            "model": "model", "batch": "batch", "method": "method", "processor": "engine",
            "cycles": lambda row: row["cycles"] / 1e6,
            "instructions": lambda row: row["instructions"] / 1e6,
            "over one": "cycles_over_deterministic",
            "thesis": lambda row: _moments_by_source(row) if row["method"] == "moments" else None,
            "over heads": "cycles_over_multihead",
        },
        ARM,
    ),
    _profiles, _operators,
)  # fmt: skip


def _bars(report: Report) -> list[Row]:
    """Selects the main table with the fewest threads, in the order of bars."""
    threads = min((row["threads"] for row in MAIN(report)), default=0)
    order, methods = [*METHODS], ENGINES.index
    rows = [r for r in MAIN(report) if r["threads"] == threads and r["engine"] in LABELS]
    rows.sort(key=lambda r: (r["batch"], order.index(r["method"]), methods(r["engine"])))
    rows.sort(key=lambda r: r["model"] != "mlp")
    return [
        row | {"title": TITLES[row["model"]], "label": LABELS[row["engine"]],
               "what": METHODS[row["method"]]}
        for row in rows
    ]  # fmt: skip


def _beside_one(report: Report) -> list[Row]:
    """Selects ten heads and ten networks over one, at the largest batch, and the thesis'."""
    checks = []
    for (model,), rows in h.grouped(ENSEMBLES(report), "model").items():
        most = max(row["batch"] for row in rows)
        one, *theirs = source.ENSEMBLES[model]["tuned"]
        for method, tuned in zip(source.ENSEMBLE_METHODS[1:], theirs, strict=True):
            place = {"place": f"{TITLES[model]}\nbatch {most}\n{METHODS[method]}"}
            checks += [
                {**place, "label": LABELS[row["engine"]], "over": row["over_deterministic"]}
                for row in sorted(rows, key=lambda row: row["engine"])
                if (row["method"], row["batch"]) == (method, most) and row["engine"] in LABELS
            ]
            checks.append({**place, "label": "thesis, A72, tuned", "over": tuned / one})
    return checks


def _over_heads(report: Report) -> list[Row]:
    """Selects the moment pass of LeNet-5 over ten heads, timed, modelled, and the thesis'."""
    rows = [row for row in ENSEMBLES(report) if row["model"] == "lenet5_valid"]
    by = {(row["engine"], row["batch"], row["method"]): row["ms"] for row in rows}
    found: list[Row] = [
        {"label": LABELS[engine], "batch": batch, "over": ms / by[engine, batch, "multihead"],
         "style": f"{COLOURS[engine]}o-"}
        for (engine, batch, method), ms in sorted(by.items())
        if method == "moments" and engine in LABELS and (engine, batch, "multihead") in by
    ]  # fmt: skip
    found += [
        {"label": f"{row['engine']}, modelled", "batch": row["batch"],
         "over": row["cycles_over_multihead"], "style": f"C{int(row['engine'][-2:]) % 7}v-"}
        for row in ARM(report)
        if (row["model"], row["method"]) == ("lenet5_valid", "moments")
    ]  # fmt: skip
    for k, (processor, style) in enumerate((("A72", "C7s--"), ("A76", "C7^:"))):
        found += [
            {"label": f"thesis, {processor}", "batch": batch, "over": ms[2 * k] / ms[2 * k + 1],
             "style": style}
            for batch, ms in source.MOMENTS_AND_HEADS.items()
        ]  # fmt: skip
    return found


def _shares(report: Report) -> list[Row]:
    """Selects a bar per engine and network, the thesis' first."""
    lines = []
    for (model,), rows in h.grouped(PROFILE(report), "model").items():
        title = f"{TITLES[model]}, batch {rows[0]['batch']}"
        lines.append({"title": title, "place": "thesis, A72, untuned", **source.SHARES[model]})
        by = {engine: own for (engine,), own in h.grouped(rows, "engine").items()}
        for engine in (engine for engine in ENGINES if engine in by):
            lines.append({"title": title, "place": f"{LABELS[engine]}, here", **kinds(by[engine])})
    return lines


def _switch_bars(report: Report) -> list[Row]:
    lines = []
    for row in _switches(report)[:-1]:
        others = f"others {row['others']}" if row["others"] else "on"
        place = {"place": f"{row['optimization']}\n{others}"}
        lines.append({**place, "here": row["speedup"], "theirs": row["A72_speedup"]})
    return lines


def _ticks(axis: Axes, batches: Iterable[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks([*batches], [str(batch) for batch in batches])


def _over_batches(axis: Axes, report: Report) -> None:
    _ticks(axis, sorted({row["batch"] for row in CURVE(report)}))


def _ranges(axis: Axes, report: Report) -> None:
    _over_batches(axis, report)
    for batch, (low, high) in FASTER.items():
        span = axis.vlines(batch, low, high, color="gray", linewidth=5, alpha=0.4)
        span.set_label("the thesis' range, Pyro" if batch == 1 else None)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}".removeprefix("0")


def _percent(share: float) -> str:
    return f"{share:.0%}" if share > 0.04 else ""


LOG = {"yscale": "log"}
TIMES = (1, 2, 5, 10, 20)
PLOTS = (
    h.Plot(
        "main",
        h.Bars("what", "ms", _bars, "{label}", "{title}, batch {batch}, {threads} thread(s)",
               axes=LOG | {"ylabel": "ms per batch"}, then=h.labelled(_short)),
        columns=3, size=(5.6, 3.8),
    ),
    h.Plot(
        "curve",
        h.Curves("batch", "per_image", _per_image, "{label}", "{title}", style="{style}",
                 axes=LOG | {"ylabel": "ms per image"}, then=_over_batches),
        h.Curves("batch", "over_moments", _sampled, "{label}", "{title}: 30 samples",
                 style="{style}", then=_ranges,
                 axes=LOG | {"ylabel": "30 samples over our moment pass", "xlabel": "batch"}),
        columns=2, size=(5.2, 3.6),
    ),
    h.Plot(
        "ensembles",
        h.Bars("place", "over", _beside_one, "{label}", then=h.labelled("%.3g"),
               axes={"ylabel": "times one deterministic network"}),
        h.Curves("batch", "over", _over_heads, "{label}", style="{style}",
                 axes=LOG | {"xlabel": "batch", "yticks": TIMES, "yticklabels": TIMES,
                             "ylabel": "moment pass over ten heads, LeNet-5"},
                 then=lambda axis, report: _ticks(axis, source.MOMENTS_AND_HEADS)),
        size=(5.6, 4),
    ),
    h.Plot(
        "profile",
        h.Stacks("place", {kind: kind for kind in ORDER}, _shares, facet="{title}",
                 axes={"xlim": (0, 1), "xlabel": "share of the moment pass"},
                 then=h.labelled(_percent, label_type="center")),
        size=(5.6, 2.6),
    ),
    h.Plot(
        "optimizations",
        h.Bars("place", {"here": "here", "theirs": "thesis, A72, 4 threads"}, _switch_bars,
               guides=(1,), then=h.labelled("%.2g"), axes=LOG | {"ylabel": "times faster with it"}),
        size=(9, 3.6),
    ),
)  # fmt: skip
