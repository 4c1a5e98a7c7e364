"""The source's claims, tables and figures, from the rows."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import kendalltau

from experiments import harness as h
from experiments.analog import chips, source
from experiments.harness import Report, Row, Table

SEQUENCE_COLUMNS = ("mse", "error", "noise", "software", "on_chip", "after_loop")
ACTIVE = (8, 32, 128)
CONTROLS = {"permuted alike": "mse_ratio", "shuffled anew": "mse_over_shuffled"}
"""Transformers that see times which are permuted as in the source, and ours, by their column."""
PAIRS = (
    ("on_chip", "ordered", "non-ordered"), ("on_chip", "ordered", "order-free"),
    ("on_chip", "ordered", "white box"), ("after_loop", "ordered", "no model"),
)  # fmt: skip
"""Models of sequences that are compared: where, and which is to be the better one."""
PLACES = {"on_chip": "on the chip", "after_loop": "after the loop"}
LIMIT = source.ORDERED / source.UNORDERED
fidelity = partial(h.where, kind="fidelity")


def strategies(report: Report) -> list[Row]:
    """Selects a row per data set and strategy, its accuracies over chips."""
    own = h.where(kind="training")
    means = h.summary(
        own, "data", "strategy", chips=lambda rows: f"{len(rows)} synthetic",
        epochs=lambda rows: rows[0]["epochs"], seconds=h.average("seconds"),
        software=h.average("software"), on_chip=h.average("on_chip"),
        worst=h.least("on_chip"), best=h.most("on_chip"),
    )  # fmt: skip
    theirs = {name: dict(zip(("source_software", "source_on_chip"), found, strict=True))
              for name, found in source.STRATEGIES.items()}  # fmt: skip
    return [{**row, **theirs[row["strategy"]]} for row in means(report)]


def through_sequences(report: Report) -> list[Row]:
    """Selects a row per model of sequences, its figures over chips."""
    rows = h.where(kind="sequence")
    means = h.summary(
        rows, "model", "data", chips=lambda rows: f"{len(rows)} synthetic",
        **{column: h.average(column) for column in SEQUENCE_COLUMNS},
    )  # fmt: skip
    theirs = {name: {f"source_{k}": v for k, v in found._asdict().items()}
              for name, found in source.SEQUENCES.items()}  # fmt: skip
    return [{**row, **theirs[row["model"]]} for row in means(report)]


def model_orders(**which: Any) -> h.Selection:
    """Selects a row per number of active rows: on how many chips the models rank as expected."""

    def rows(report: Report) -> Iterator[Row]:
        each = h.pivot(h.where(**which), ("active", "device"), "model", "error")(report)
        for n in (32, 128) if each else ():
            own = [row for row in each if row["active"] == n]
            right = sum(row["linear"] > row["columnar"] > row["white box"] for row in own)
            yield {"active": n, "right": right, "chips": len(own)}

    return rows


def order_effects(report: Report) -> Iterator[Row]:
    """Selects what knowing the order gains over each control, on chips and on order-free ones."""
    for control, column in CONTROLS.items():
        for ordered in (True, False):
            found = [row.get(column) for row in h.where(kind="order", ordered=ordered)(report)]
            if ratios := [ratio for ratio in found if ratio]:
                ratio, error = float(np.mean(ratios)), h.error(ratios)
                name = (
                    f"chips (at most {LIMIT:.2f})" if ordered else "order-free chips (1 within .1)"
                )
                yield {
                    "count": len(ratios), "name": name, "ratio": ratio, "control": control,
                    "good": ratio <= LIMIT if ordered else abs(ratio - 1) <= 0.1,
                    "spread": "" if error is None else f", standard error {error:.3f}",
                    "theirs": LIMIT if ordered and control == "permuted alike" else None,
                }  # fmt: skip


def retraining(report: Report) -> Iterator[Row]:
    """Selects one row: what retraining of the images' networks shows."""
    rows = [row for row in strategies(report) if row["data"] == report.config["data"]]
    on_chip = {row["strategy"]: row["on_chip"] for row in rows}
    for plain in (row for row in rows if row["strategy"] == "plain"):
        theirs = [source.STRATEGIES[name][1] for name in source.SOFTWARE_ROWS]
        tau = kendalltau(theirs, [on_chip[name] for name in source.SOFTWARE_ROWS]).statistic
        short = on_chip.get("representation + loop 1/30")
        yield {
            "kept": plain["on_chip"] / plain["software"], "tau": float(tau),
            "incremental": on_chip["representation, incremental"] - on_chip["representation"],
            "short": None if short is None else short - on_chip["loop"],
        }  # fmt: skip


def sequence_gains(report: Report) -> Iterator[Row]:
    """Selects pairs of sequence models: the same networks and chips, hence a standard error."""
    for column, *names in PAIRS:
        first, second = (
            {r["device"]: r[column] for r in h.where(kind="sequence", model=name)(report)}
            for name in names
        )
        ahead = [first[device] - second[device] for device in first.keys() & second.keys()]
        theirs = [getattr(source.SEQUENCES[name], column) for name in names]
        if ahead:
            error = h.error(ahead)
            yield {
                "place": PLACES[column], "better": names[0], "worse": names[1],
                "ahead": float(np.mean(ahead)),
                "spread": "" if error is None else f" (standard error {error:.1f})",
                "theirs": None if None in theirs else theirs[0] - theirs[1],
            }  # fmt: skip


def drift(report: Report) -> list[Row]:
    """Selects one row: the share of what drift took that recalibration restores."""
    rows = h.where(kind="drift")(report)
    lost = sum(row["fresh"] - row["drifted"] for row in rows)
    regained = sum(row["recalibrated"] - row["drifted"] for row in rows)
    share = regained / lost if lost > 0 else None
    return [{"share": share, "enough": share is not None and share >= 0.9}] if rows else []


def worst(**which: Any) -> h.Selection:
    """Selects the chips' largest error over the noise floor, by the number of active rows."""
    found = h.summary(h.where(**which), "active", worst=h.most("ratio"))
    return lambda report: [row for row in found(report) if row["active"] in ACTIVE]


claim = partial(h.Claim, needs="default")
CLAIMS = (
    claim(
        "white box over the noise floor, order-free chips, {active} rows (largest of chips)",
        "worst", h.at_most(1.3), None, worst(kind="fidelity", ordered=False, model="white box"),
    ),
    claim(
        "the same where every synapse has a curve of its own, which the white box can't hold, "
        "{active} rows",
        "worst", h.at_most(1.3), None, worst(kind="fidelity, own curves", model="white box"),
    ),
    claim(
        "the same on chips of circuits in time, which no model's form holds, {active} rows",
        "worst", h.at_most(1.3), None, worst(kind="fidelity, circuits", model="white box"),
    ),
    claim(
        "chips where linear > columnar > white box, {active} rows", "right", h.equals("chips"),
        "all", model_orders(kind="fidelity", ordered=True), shown="{right} of {chips}",
    ),
    claim(
        "chips of circuits where linear > columnar > white box, {active} rows", "right",
        h.equals("chips"), "all", model_orders(kind="fidelity, circuits"),
        shown="{right} of {chips}",
    ),
    claim(
        "MSE ordered over {control}, mean of {count} {name}{spread}", "good", h.true,
        lambda row: row["theirs"], order_effects, shown="ratio",
    ),
    claim(
        "plain on the chips over digital (at most .5)", "kept", h.at_most(0.5), 12.3 / 80.8,
        retraining,
    ),
    claim(
        "Kendall's tau of the six software rows (at least .8)", "tau", h.at_least(0.8), 1.0,
        retraining,
    ),
    claim(
        "incremental noise above a representation without, per cent", "incremental", h.above(0),
        41.0 - 26.4, retraining,
    ),
    claim(
        "representation and 1/30 of the loop above the whole loop, per cent", "short",
        h.at_least(0), 69.7 - 66.8, retraining,
    ),
    claim(
        "networks through sequences, {place}: {better} above {worse}, per cent{spread}", "ahead",
        h.above(0), lambda row: row["theirs"], sequence_gains,
    ),
    h.Claim(
        "a step through the white box over a quantized one (at most 3)", "ratio", h.at_most(3),
        source.WHITE_BOX_STEP, h.where(kind="step"),
    ),
    claim(
        "share of what drift took that recalibration restores (at least .9)", "enough", h.true,
        None, drift, shown="share",
    ),
)  # fmt: skip


def strategy_tables(report: Report) -> list[Table]:
    """Makes a table of strategies for every data set."""
    columns = ("strategy", "chips", "epochs", "seconds", "software", "on_chip", "worst", "best")
    title = "{}: retraining for synthetic chips, accuracy in %"
    return [
        Table.from_rows(title.format(data), rows, columns)
        for (data,), rows in h.grouped(strategies(report), "data").items()
    ]


def model_errors(report: Report) -> list[Row]:
    """Selects a row per model, kind of chips and number of active rows: means over chips."""
    means = {name: h.average(name) for name in ("error", "noise", "ratio")}
    return [
        {"model": model, "chips": "synthetic" if ordered else "synthetic, order-free", **row}
        for ordered in (True, False)
        for model in chips.MODELS
        for row in h.summary(fidelity(model=model, ordered=ordered), "active", **means)(report)
        if row["active"] in ACTIVE
    ]


TABLES = (
    strategy_tables,
    h.Listing("errors of models in counts", of=model_errors),
    h.Listing(
        "networks through models of sequences, accuracy in %",
        ("model", "chips", "data", *SEQUENCE_COLUMNS), through_sequences,
    ),
    h.Listing(
        "effects of order in counts",
        (
            "chip", "rms", "control", "noise", "mse_time", "mse_permuted", "mse_shuffled",
            "mse_none", "mse_ratio", "mse_over_shuffled",
        ),
        h.where(kind="order"),
    ),
    h.Listing(
        "drift: accuracy in %", ("data", "chip", "hours", "fresh", "drifted", "recalibrated"),
        h.where(kind="drift"),
    ),
    h.Listing(
        "seconds of a training step", ("data", "chip", "quantized", "white box", "ratio"),
        h.where(kind="step"),
    ),
)  # fmt: skip


def column(report: Report) -> Iterator[h.Panel]:
    """Draws counts against the ideal sum, the table's, and its spline; noise over active rows."""
    arrays: Mapping[str, Any] = report.arrays
    if "column/counts" not in arrays:
        return
    counts = arrays["column/counts"]
    for name, title in {
        "ideal": "ideal sum", "table": "sum of the table", "spline": "spline of that sum"
    }.items():  # fmt: skip
        x = arrays[f"column/{name}"]

        def compare(axis: Axes, x: Any = x) -> None:
            ends = [min(x.min(), counts.min()), max(x.max(), counts.max())]
            axis.plot(ends, ends, "k--", lw=1, label="identity")
            axis.plot(x, counts, ".", ms=3, alpha=0.6, label="read-outs")

        rms = np.sqrt(np.mean((x - counts) ** 2))
        yield h.painted(
            f"{title}: rms {rms:.2f}", compare, xlabel=f"{title} [counts]",
            ylabel="synthetic chip, order-free [counts]",
        )  # fmt: skip

    def noise(axis: Axes) -> None:
        active = arrays["noise/active"]
        low, middle, high = np.percentile(arrays["noise/deviation"], (5, 50, 95), axis=1)
        axis.fill_between(active, low, high, alpha=0.3, label="5 to 95 % of columns")
        axis.plot(active, middle, "o-", label="median column")

    yield h.painted(
        "read-out noise (synthetic)", noise, xlabel="active rows",
        ylabel="standard deviation of repeats [counts]",
    )  # fmt: skip


def errors(report: Report) -> Iterator[Row]:
    """Selects mean errors of models over the active rows, and the noise, by kind of chips."""
    titles = {True: "synthetic chips", False: "their order-free controls"}
    for ordered, title in titles.items():
        own = fidelity(ordered=ordered)
        means = h.summary(own, "active", "model", error=h.average("error"))(report)
        floors = h.summary(own, "active", error=h.average("noise"))(report)
        for row in sorted(means, key=lambda row: row["active"]):
            yield {**row, "title": title, "style": "o-"}
        for row in sorted(floors, key=lambda row: row["active"]):
            yield {**row, "title": title, "model": "noise", "style": "k:"}


def transformers(report: Report) -> Iterator[Row]:
    """Selects the mean squared errors of each chip's transformers by what they know."""
    names = {
        "time": "true order", "permuted": "permuted alike", "shuffled": "shuffled anew",
        "none": "no order",
    }  # fmt: skip
    for position, name in names.items():
        for row in h.having("mse_ratio")(report):
            chip = row["chip"].replace(", ", ",\n")
            yield {"chip": chip, "knows": name, "mse": row[f"mse_{position}"]}


def _powers(axis: Axes, report: Report) -> None:
    active = sorted({row["active"] for row in fidelity()(report)})
    axis.set_xscale("log", base=2)
    axis.set_xticks(active, [str(n) for n in active])
    axis.set_ylim(0)


_accuracies = partial(h.Dots, axes={"xlabel": "accuracy [%]", "xlim": (0, 100)})
PLOTS = (
    h.Plot("column", column, size=(4.25, 4)),
    h.Plot(
        "models",
        h.Curves(
            "active", "error", errors, "{model}", "{title}", style="{style}",
            axes={"xlabel": "active rows", "ylabel": "rms error [counts]"}, then=_powers,
        ),
        h.Bars(
            "chip", "mse", transformers, "{knows}", "transformers of a column",
            axes={"ylabel": "mean squared error [counts²]"},
        ),
        size=(5, 4.2),
    ),
    h.Plot(
        "sequences",
        _accuracies(
            "model",
            {
                "on_chip": "synthetic chips, trained through the model",
                "after_loop": "synthetic chips, then in the loop",
                "source_on_chip": "source, real chip, other task",
                "source_after_loop": "source, then in the loop",
            },
            through_sequences, facet="{data}, networks through models of sequences",
        ),
        size=(8.5, 4),
    ),
    h.Plot(
        "training",
        _accuracies(
            "strategy",
            {
                "on_chip": "synthetic chips", "worst": "worst chip", "best": "best chip",
                "software": "software", "source_on_chip": "source, real chip, other task",
            },
            strategies, facet="{data}, retraining for synthetic chips",
        ),
        size=(6.5, 6),
    ),
)  # fmt: skip
