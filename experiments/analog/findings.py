"""The source's claims, tables and figures, from the rows."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import kendalltau

from experiments import harness as h
from experiments.analog import chips
from experiments.analog.source import (
    ORDERED,
    SEQUENCES,
    SOFTWARE_ROWS,
    STRATEGIES,
    UNORDERED,
    WHITE_BOX_STEP,
)
from experiments.harness import Report, Row, Table

SEQUENCE_COLUMNS = ("mse", "error", "noise", "software", "on_chip", "after_loop")
ACTIVE = (8, 32, 128)
CONTROLS = {"permuted alike": "mse_ratio", "shuffled anew": "mse_over_shuffled"}
"""Transformers that see times which are permuted as in the source, and ours, by their column."""
fidelity = partial(h.where, kind="fidelity")


def of(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """Selects the rows that have these values."""
    return [row for row in rows if all(row.get(k) == v for k, v in wanted.items())]


def mean(rows: Sequence[Row], column: str) -> float | None:
    """Averages over chips; None without rows."""
    return h.mean(row.get(column) for row in rows)


def strategies(rows: Sequence[Row], data: str) -> list[Row]:
    """Lists a row per strategy, its accuracies over chips."""
    found = []
    for name, (software, on_chip) in STRATEGIES.items():
        own = of(rows, kind="training", data=data, strategy=name)
        if own:
            chips = [row["on_chip"] for row in own]
            found.append(
                {"strategy": name, "chips": f"{len(own)} synthetic", "epochs": own[0]["epochs"],
                 "seconds": mean(own, "seconds"),
                 "software": mean(own, "software"), "source_software": software,
                 "on_chip": float(np.mean(chips)), "source_on_chip": on_chip,
                 "worst": min(chips), "best": max(chips)}
            )  # fmt: skip
    return found


def through_sequences(report: Report) -> list[Row]:
    """Selects a row per model of sequences, its figures over chips."""
    found = []
    for name, source in SEQUENCES.items():
        own = of(report.rows, kind="sequence", model=name)
        if own:
            columns = {column: mean(own, column) for column in SEQUENCE_COLUMNS}
            theirs = {f"source_{k}": v for k, v in source._asdict().items()}
            found.append(
                {"model": name, "chips": f"{len(own)} synthetic", "data": own[0]["data"],
                 **columns, **theirs}
            )  # fmt: skip
    return found


def model_orders(report: Report) -> Iterator[Row]:
    """Selects a row per number of active rows: on how many chips the models rank as expected."""
    errors = {
        (row["device"], row["active"], row["model"]): row["error"]
        for row in fidelity(ordered=True)(report)
    }
    devices = sorted({device for device, _, _ in errors})
    for n in (32, 128) if devices else ():
        right = sum(
            errors[d, n, "linear"] > errors[d, n, "columnar"] > errors[d, n, "white box"]
            for d in devices
        )
        yield {"active": n, "right": right, "chips": len(devices)}


def order_effects(report: Report) -> Iterator[Row]:
    """Selects what knowing the order gains over each control, on chips and on order-free ones."""
    limit = ORDERED / UNORDERED
    for control, column in CONTROLS.items():
        for ordered in (True, False):
            found = [r.get(column) for r in of(report.rows, kind="order", ordered=ordered)]
            if ratios := [ratio for ratio in found if ratio]:
                ratio, error = float(np.mean(ratios)), h.error(ratios)
                bound = (
                    f"chips (at most {limit:.2f})" if ordered else "order-free chips (1 within .1)"
                )
                yield {
                    "count": len(ratios), "name": bound, "ratio": ratio, "control": control,
                    "good": ratio <= limit if ordered else abs(ratio - 1) <= 0.1,
                    "spread": "" if error is None else f", standard error {error:.3f}",
                    "theirs": limit if ordered and control == "permuted alike" else None,
                }  # fmt: skip


def retraining(report: Report) -> list[Row]:
    """Selects one row: what retraining of the images' networks shows."""
    found = {row["strategy"]: row for row in strategies(report.rows, report.config["data"])}
    if not found:
        return []
    on_chip = {name: row["on_chip"] for name, row in found.items()}
    short = on_chip.get("representation + loop 1/30")
    tau = kendalltau(
        [STRATEGIES[n][1] for n in SOFTWARE_ROWS], [on_chip[n] for n in SOFTWARE_ROWS]
    ).statistic
    return [
        {
            "kept": found["plain"]["on_chip"] / found["plain"]["software"], "tau": float(tau),
            "incremental": on_chip["representation, incremental"] - on_chip["representation"],
            "short": None if short is None else short - on_chip["loop"],
        }
    ]  # fmt: skip


def sequence_gains(report: Report) -> Iterator[Row]:
    """Selects pairs of sequence models: the same networks and chips, hence a standard error."""
    rows = of(report.rows, kind="sequence")
    for column, better, worse in (
        (
            ("on_chip", "ordered", "non-ordered"),
            ("on_chip", "ordered", "order-free"),
            ("on_chip", "ordered", "white box"),
            ("after_loop", "ordered", "no model"),
        )
        if rows
        else ()
    ):
        first, second = (
            {row["device"]: row[column] for row in of(rows, model=name)} for name in (better, worse)
        )
        ahead = [first[device] - second[device] for device in first.keys() & second.keys()]
        if not ahead:
            continue
        error = h.error(ahead)
        yield {
            "place": {"on_chip": "on the chip", "after_loop": "after the loop"}[column],
            "better": better, "worse": worse, "ahead": float(np.mean(ahead)),
            "spread": "" if error is None else f" (standard error {error:.1f})",
            "theirs": _ahead(*(getattr(SEQUENCES[name], column) for name in (better, worse))),
        }  # fmt: skip


def _ahead(better: float | None, worse: float | None) -> float | None:
    return None if better is None or worse is None else better - worse


def drift(report: Report) -> list[Row]:
    """Selects one row: the share of what drift took that recalibration restores."""
    rows = of(report.rows, kind="drift")
    lost = sum(row["fresh"] - row["drifted"] for row in rows)
    regained = sum(row["recalibrated"] - row["drifted"] for row in rows)
    share = regained / lost if lost > 0 else None
    return [{"share": share, "enough": share is not None and share >= 0.9}] if rows else []


claim = partial(h.Claim, needs="default")
CLAIMS = (
    claim(
        "white box over the noise floor, order-free chips, {active} rows (largest of chips)",
        "worst", h.at_most(1.3), None,
        h.summary(
            fidelity(ordered=False, model="white box"), "active", worst=h.most("ratio")
        ),
        when=lambda row: row["active"] in ACTIVE,
    ),
    claim(
        "the same where every synapse has a curve of its own, which the white box can't hold, "
        "{active} rows",
        "worst", h.at_most(1.3), None,
        h.summary(
            h.where(kind="fidelity, own curves", model="white box"), "active",
            worst=h.most("ratio"),
        ),
        when=lambda row: row["active"] in ACTIVE,
    ),
    claim(
        "chips where linear > columnar > white box, {active} rows", "right", h.equals("chips"),
        "all", model_orders, shown="{right} of {chips}",
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
        WHITE_BOX_STEP, h.where(kind="step"),
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
        for (data,), rows in h.grouped(strategy_rows(report), "data").items()
    ]


def model_errors(report: Report) -> list[Row]:
    """Selects a row per model, kind of chips and number of active rows: means over chips."""
    return [
        {"model": model, "chips": "synthetic" if ordered else "synthetic, order-free", "active": n,
         **{column: mean(own, column) for column in ("error", "noise", "ratio")}}
        for ordered in (True, False)
        for model in chips.MODELS
        for n in ACTIVE
        if (own := fidelity(model=model, ordered=ordered, active=n)(report))
    ]  # fmt: skip


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


def column(report: Report) -> Mapping[str, Figure]:
    """Draws counts against the ideal sum, the table's, and its spline; noise over active rows."""
    arrays: Mapping[str, Any] = report.arrays
    if "column/counts" not in arrays:
        return {}
    figure, axes = plt.subplots(1, 4, figsize=(17, 4), layout="constrained")
    counts = arrays["column/counts"]
    for axis, name, title in zip(
        axes, ("ideal", "table", "spline"),
        ("ideal sum", "sum of the table", "spline of that sum"), strict=False,
    ):  # fmt: skip
        x = arrays[f"column/{name}"]
        ends = np.array([min(x.min(), counts.min()), max(x.max(), counts.max())])
        axis.plot(ends, ends, "k--", lw=1, label="identity")
        axis.plot(x, counts, ".", ms=3, alpha=0.6, label="read-outs")
        rms = np.sqrt(np.mean((x - counts) ** 2))
        axis.set_title(f"{title}: rms {rms:.2f}", fontsize=10)
        axis.set_xlabel(f"{title} [counts]")
        axis.set_ylabel("synthetic chip, order-free [counts]")
    active, deviation = arrays["noise/active"], arrays["noise/deviation"]
    low, middle, high = np.percentile(deviation, (5, 50, 95), axis=1)
    axes[3].fill_between(active, low, high, alpha=0.3, label="5 to 95 % of columns")
    axes[3].plot(active, middle, "o-", label="median column")
    axes[3].set_xlabel("active rows")
    axes[3].set_ylabel("standard deviation of repeats [counts]")
    axes[3].set_title("read-out noise (synthetic)", fontsize=10)
    handles = [*axes[0].get_legend_handles_labels(), *axes[3].get_legend_handles_labels()]
    figure.legend(
        handles[0] + handles[2], handles[1] + handles[3], loc="outside lower center", ncols=4,
        fontsize=8,
    )  # fmt: skip
    return {"column": figure}


def strategy_rows(report: Report) -> Iterator[Row]:
    """Selects a row per data set and strategy."""
    for data in dict.fromkeys(r["data"] for r in of(report.rows, kind="training")):
        for row in strategies(report.rows, data):
            yield {**row, "data": data}


def errors(report: Report) -> Iterator[Row]:
    """Selects mean errors of models over the active rows, and the noise, by kind of chips."""
    for ordered, title in ((True, "synthetic chips"), (False, "their order-free controls")):
        own = fidelity(ordered=ordered)(report)
        for n in sorted({row["active"] for row in own}):
            at = of(own, active=n)
            for model in ("linear", "columnar", "white box"):
                value = mean(of(at, model=model), "error")
                one = {"model": model, "error": value, "style": "o-"}
                yield {"title": title, "active": n, **one}
            floor = mean(at, "noise")
            yield {"title": title, "active": n, "model": "noise", "error": floor, "style": "k:"}


def transformers(report: Report) -> Iterator[Row]:
    """Selects the mean squared errors of each chip's transformers by what they know."""
    names = {
        "time": "true order", "permuted": "permuted alike", "shuffled": "shuffled anew",
        "none": "no order",
    }  # fmt: skip
    for position, name in names.items():
        for row in of(report.rows, kind="order"):
            if row.get("mse_ratio") is not None:
                chip = row["chip"].replace(", ", ",\n")
                yield {"chip": chip, "knows": name, "mse": row[f"mse_{position}"]}


def _powers(axis: Axes, report: Report) -> None:
    active = sorted({row["active"] for row in of(report.rows, kind="fidelity")})
    axis.set_xscale("log", base=2)
    axis.set_xticks(active, [str(n) for n in active])
    axis.set_ylim(0)


PLOTS = (
    column,
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
        h.Dots(
            "model",
            {
                "on_chip": "synthetic chips, trained through the model",
                "after_loop": "synthetic chips, then in the loop",
                "source_on_chip": "source, real chip, other task",
                "source_after_loop": "source, then in the loop",
            },
            through_sequences, facet="{data}, networks through models of sequences",
            axes={"xlabel": "accuracy [%]", "xlim": (0, 100)},
        ),
        size=(8.5, 4),
    ),
    h.Plot(
        "training",
        h.Dots(
            "strategy",
            {
                "on_chip": "synthetic chips", "worst": "worst chip", "best": "best chip",
                "software": "software", "source_on_chip": "source, real chip, other task",
            },
            strategy_rows, facet="{data}, retraining for synthetic chips",
            axes={"xlabel": "accuracy [%]", "xlim": (0, 100)},
        ),
        size=(6.5, 6),
    ),
)  # fmt: skip
