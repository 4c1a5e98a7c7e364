"""The thesis' claims, tables and figures, from the rows."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import kendalltau

from experiments import harness as h
from experiments import margins
from experiments.analog import chips, source
from experiments.harness import Report, Row, Table

SEQUENCE_COLUMNS = ("mse", "error", "noise", "software", "on_chip", "after_loop")
ACTIVE = (8, 32, 128)
PAIRS = (
    ("on_chip", "ordered", "non-ordered"), ("on_chip", "ordered", "white box"),
    ("after_loop", "ordered", "no model"),
)  # fmt: skip
"""Models of sequences that are compared: where, and which is to be the better one."""
ALIKE = (("after_loop", "ordered", "non-ordered"), ("after_loop", "ordered", "white box"))
"""Those whose networks are alike after a loop."""
STRATEGY_PAIRS = (
    ("representation, incremental", "representation", 5.0),
    ("representation + one epoch", "representation, incremental", 10.0),
    ("representation + loop 1/30", "loop", 0.0),
)
"""Strategies that are compared, and per cent that the first gains at least; two errors as well."""
SHORT_LOOPS = ("representation + one epoch", "representation + loop 1/6")
AS_GOOD = 2.0
"""Per cent that what is as good may be off; the thesis' short loop is by 1.9."""
PLACES = {"on_chip": "on the chip", "after_loop": "after the loop"}
LIMIT = source.ORDERED / source.UNORDERED
DESTROYED = {"shuffled": "an order shuffled anew for every vector", "none": "none"}
"""Controls that leave nothing of the order. One permutation for all vectors leaves all of it."""
fidelity = partial(h.where, kind="fidelity")


def strategies(report: Report) -> list[Row]:
    """Selects a row per data set and strategy, its accuracies over chips."""
    of_training = h.where(kind="training")
    means = h.summary(
        of_training, "data", "strategy", chips=len, epochs=lambda rows: rows[0]["epochs"],
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
        rows, "model", "data", chips=len,
        **{column: h.average(column) for column in SEQUENCE_COLUMNS},
    )  # fmt: skip
    theirs = {name: {f"source_{k}": v for k, v in found._asdict().items()}
              for name, found in source.SEQUENCES.items()}  # fmt: skip
    return [{**row, **theirs[row["model"]]} for row in means(report)]


def model_orders(report: Report) -> Iterator[Row]:
    """Selects on how many chips the models rank as expected, by form and active rows."""
    for form in (chips.ORDERED_CHIP, chips.CIRCUITS):
        each = h.pivot(fidelity(form=form), ("active", "device"), "model", "error")(report)
        for n in (32, 128) if each else ():
            at_n = [row for row in each if row["active"] == n]
            right = sum(row["linear"] > row["columnar"] > row["white box"] for row in at_n)
            yield {"form": form, "active": n, "right": right, "chips": len(at_n)}


def order_effects(report: Report) -> Iterator[Row]:
    """Selects what knowing the order gains, on chips and on order-free ones."""
    for form in (chips.ORDERED_CHIP, chips.ORDER_FREE):
        ordered = form == chips.ORDERED_CHIP
        rows = h.where(kind="order", form=form)(report)
        for how, words in DESTROYED.items() if rows else ():
            ratios = [row[f"ratio_{how}"] for row in rows]
            ratio, error = float(np.mean(ratios)), h.error(ratios)
            yield {
                "count": len(ratios), "ratio": ratio, "other": words,
                "name": f"{form} chips ({f'at most {LIMIT:.2f}' if ordered else '1 within .1'})",
                "good": ratio <= LIMIT if ordered else abs(ratio - 1) <= 0.1,
                "spread": "" if error is None else f", standard error {error:.3f}",
                "theirs": LIMIT if ordered else None,
            }  # fmt: skip


def _each_chip(report: Report, column: str, **which: Any) -> list[tuple[object, float]]:
    return [(row["device"], row[column]) for row in h.where(**which)(report)]


def retraining(report: Report) -> Iterator[Row]:
    """Selects one row: what retraining of the images' networks shows."""
    rows = [row for row in strategies(report) if row["data"] == report.config["data"]]
    on_chip = {row["strategy"]: row["on_chip"] for row in rows}
    for plain in (row for row in rows if row["strategy"] == "plain"):
        theirs = [source.STRATEGIES[name][1] for name in source.SOFTWARE_ROWS]
        tau = kendalltau(theirs, [on_chip[name] for name in source.SOFTWARE_ROWS]).statistic
        yield {"kept": plain["on_chip"] / plain["software"], "tau": float(tau)}


def _gain(report: Report, better: str, other: str) -> Row | None:
    """What a strategy gains on the same chips, two errors of it, and the thesis' gain."""
    gains = margins.paired(*(
        _each_chip(report, "on_chip", kind="training", data=report.config["data"], strategy=one)
        for one in (better, other)
    ))  # fmt: skip
    if (tie := margins.margin(gains)) is None:
        return None
    theirs = [source.STRATEGIES[name][1] or 0.0 for name in (better, other)]
    return {
        "better": better, "gain": float(np.mean(gains)), "tie": tie, "chips": len(gains),
        "theirs": theirs[0] - theirs[1],
    }  # fmt: skip


def strategy_gains(report: Report) -> Iterator[Row]:
    """Selects pairs of strategies on the same chips, with two errors over chips."""
    for better, other, least in STRATEGY_PAIRS:
        if row := _gain(report, better, other):
            yield {**row, "other": other, "least": max(least, row["tie"])}


def short_loops(report: Report) -> Iterator[Row]:
    """Selects how much worse than a loop throughout a short one may be, by the lower bound."""
    for short in SHORT_LOOPS:
        if row := _gain(report, short, "loop"):
            yield {**row, "short": short, "bound": row["gain"] - row["tie"]}


def sequence_gains(pairs: Any, report: Report) -> Iterator[Row]:
    """Selects pairs of sequence models: the same networks and chips, hence an error over chips."""
    for column, *names in pairs:
        first, second = (_each_chip(report, column, kind="sequence", model=name) for name in names)
        ahead = margins.paired(first, second)
        theirs = [getattr(source.SEQUENCES[name], column) for name in names]
        if (tie := margins.margin(ahead)) is not None:
            gain = float(np.mean(ahead))
            yield {
                "place": PLACES[column], "better": names[0], "worse": names[1], "ahead": gain,
                "tie": tie, "apart": abs(gain) + tie, "chips": len(ahead),
                "theirs": None if None in theirs else theirs[0] - theirs[1],
            }  # fmt: skip


def worst(**which: Any) -> h.Selection:
    """Selects the chips' largest error over the noise floor, by the number of active rows."""
    fidelities = h.summary(fidelity(**which), "active", worst=h.most("ratio"))
    return lambda report: [row for row in fidelities(report) if row["active"] in ACTIVE]


claim = partial(h.Claim, needs="default")
CLAIMS = (
    claim(
        "white box over the noise floor, order-free chips, {active} rows (largest of chips)",
        "worst", h.at_most(1.3), None, worst(form=chips.ORDER_FREE, model="white box"),
    ),
    claim(
        "the same on chips of circuits in time, which no model's form holds, {active} rows",
        "worst", h.at_most(1.3), None, worst(form=chips.CIRCUITS, model="white box"),
    ),
    claim(
        "{form}: chips where linear > columnar > white box, {active} rows", "right",
        h.equals("chips"), "all", model_orders, shown="{right} of {chips}",
    ),
    claim(
        "MSE in the true order over {other}, mean of {count} {name}{spread}", "good", h.true,
        lambda row: row["theirs"], order_effects, shown="ratio",
    ),
    claim(
        "plain on the chips over digital (at most .3)", "kept", h.at_most(0.3), 12.3 / 80.8,
        retraining,
    ),
    claim(
        "Kendall's tau of the six software rows (at least .8)", "tau", h.at_least(0.8), 1.0,
        retraining,
    ),
    claim(
        "{better} above {other}, per cent, mean of {chips} chips, by {least:.1f} (two errors "
        "{tie:.1f})",
        "gain", h.above("least"), lambda row: row["theirs"], strategy_gains,
    ),
    claim(
        f"{{short}} is as good as the loop throughout, per cent, {{chips}} chips, the lower bound "
        f"of what it gains (at least -{AS_GOOD:.0f})",
        "bound", h.at_least(-AS_GOOD), lambda row: row["theirs"], short_loops,
    ),
    claim(
        "networks through sequences, {place}: {better} above {worse}, per cent, mean of {chips} "
        "chips, by two errors ({tie:.1f})",
        "ahead", h.above("tie"), lambda row: row["theirs"], partial(sequence_gains, PAIRS),
    ),
    claim(
        f"networks through sequences, {{place}}: {{better}} and {{worse}} are alike, per cent, "
        f"{{chips}} chips, what they may differ by (at most {AS_GOOD:.0f})",
        "apart", h.at_most(AS_GOOD), lambda row: abs(row["theirs"]),
        partial(sequence_gains, ALIKE),
    ),
    h.Claim(
        "a step through the white box over a quantized one (at most 3)", "ratio", h.at_most(3),
        source.WHITE_BOX_STEP, h.where(kind="step"),
    ),
)  # fmt: skip


def strategy_tables(report: Report) -> list[Table]:
    """Makes a table of strategies for every data set."""
    columns = ("strategy", "chips", "epochs", "software", "on_chip", "worst", "best")
    title = "{}: retraining for synthetic chips, accuracy in %"
    return [
        Table.from_rows(title.format(data), rows, columns)
        for (data,), rows in h.grouped(strategies(report), "data").items()
    ]


def model_errors(report: Report) -> list[Row]:
    """Selects a row per form of chips, model and number of active rows: means over chips."""
    means = {name: h.average(name) for name in ("error", "noise", "ratio")}
    rows = h.summary(fidelity(), "form", "model", "active", **means)(report)
    return [row for row in rows if row["active"] in ACTIVE]


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
            "form", "device", "rms", "control", "noise", "mse_time", "mse_permuted",
            "mse_shuffled", "mse_none", "ratio_permuted", "ratio_shuffled", "ratio_none",
        ),
        h.where(kind="order"),
    ),
    h.Listing(
        "milliseconds of a training step", ("data", "quantized", "white box", "ratio"),
        h.where(kind="step"),
    ),
)  # fmt: skip


def errors(report: Report) -> Iterator[Row]:
    """Selects mean errors of models over the active rows, and the noise, by form of chips."""
    for form in (chips.ORDERED_CHIP, chips.ORDER_FREE, chips.CIRCUITS):
        means = h.summary(fidelity(form=form), "active", "model", error=h.average("error"))(report)
        floors = h.summary(fidelity(form=form), "active", error=h.average("noise"))(report)
        points = [{**row, "style": "o-"} for row in means]
        points += [{**row, "model": "noise", "style": "k:"} for row in floors]
        for row in sorted(points, key=lambda row: row["active"]):
            yield {**row, "title": f"chips: {form}"}


def _powers(axis: Axes, report: Report) -> None:
    active = sorted({row["active"] for row in fidelity()(report)})
    axis.set_xscale("log", base=2)
    axis.set_xticks(active, [str(n) for n in active])
    axis.set_ylim(0)


_accuracies = partial(h.Dots, axes={"xlabel": "accuracy [%]", "xlim": (0, 100)})
PLOTS = (
    h.Plot(
        "models",
        h.Curves(
            "active", "error", errors, "{model}", "{title}", style="{style}",
            axes={"xlabel": "active rows", "ylabel": "rms error [counts]"}, then=_powers,
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
                "source_on_chip": "thesis, real chip, other task",
                "source_after_loop": "thesis, then in the loop",
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
                "software": "software", "source_on_chip": "thesis, real chip, other task",
            },
            strategies, facet="{data}, retraining for synthetic chips",
        ),
        size=(6.5, 6),
    ),
)  # fmt: skip
