"""What Klein's thesis reports (tables 4.1 and 4.2), and what is found beside it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments import harness as h
from experiments import margins
from experiments.galen.recipe import AGENTS, BLIND, NAMES
from experiments.harness import Report, Row

FLOAT = {"accuracy": 0.930, "ms": 330.0, "macs": 4.75e10, "bops": 4.86e13}
SOURCE = {
    ("pruning", 0.3): {"macs": 1.42e10, "bops": 1.45e13, "ms": 98.0, "accuracy": 0.930},
    ("quantization", 0.3): {"macs": 4.75e10, "bops": 8.23e11, "ms": 98.0, "accuracy": 0.925},
    ("joint", 0.3): {"macs": 4.35e10, "bops": 9.42e11, "ms": 99.0, "accuracy": 0.932},
    ("pruning", 0.2): {"macs": 9.24e9, "bops": 9.45e12, "ms": 66.0, "accuracy": 0.924},
    ("quantization", 0.2): {"macs": 4.75e10, "bops": 4.01e11, "ms": 57.0, "accuracy": 0.450},
    ("joint", 0.2): {"macs": 2.82e10, "bops": 6.74e11, "ms": 64.0, "accuracy": 0.928},
}
"""By agent and share of the latency."""
SENSITIVITY = {
    "joint, blind": {"macs": 1.68e10, "bops": 8.10e11, "share": 0.200, "accuracy": 0.9266},
    "joint": {"macs": 2.82e10, "bops": 6.75e11, "share": 0.194, "accuracy": 0.9277},
}
"""At a share of 0.2."""
DIFFERENCES = (
    "the thesis: ResNet-18 on a Raspberry Pi 4; here the network and data of `config`, timed on "
    "one core of this machine (x86). Compare shares of the latency, not milliseconds",
    "the thesis' baseline is untuned (7 % of the core's peak); ours is this compiler's float32, "
    "so the same share is harder to reach. `of_untuned` is the share of a build for a processor "
    "that the compiler knows nothing of",
    "latencies in a search are sums of kernels' times from a table with nodes, filled by "
    "measuring; the best candidate is then measured end to end, and moved a layer at a time until "
    "it lands. `told` and `took` are shares by the table and by the clock of the first one",
    "below --full: far fewer episodes, so that the agent makes many updates an episode, and a few "
    "steps of retraining in the place of an epoch, after which running statistics are settled",
    "where layers in float or of other widths read the same array, it is written once more: the "
    "table has one time per number for that, and doesn't know of sums of floats and codes",
    "all seeds of a search share one trained network",
    "with `--latency modelled` shares are of cycles of a static model of the kernels' main loops "
    "on `processor`, which bounds times from below: the table is filled by it, the best candidate "
    "modelled as a whole; `here` is the share of this machine's time, "
    "which the search wasn't told",
)
NEAR = 0.05
"""Of a target, that results land within."""
LANDED = 0.2
"""Of a target, within which a search has met it."""
SAME = 0.001
"""Accuracy by which a library may differ from what the search computes."""
COLLAPSED = 0.5
"""Share of the whole network's accuracy below which one has collapsed (the thesis': .48)."""
HOLDS = 0.95
"""Share of it that counts as held (the thesis': .994 and more)."""


def whole(report: Report) -> Row:
    """Finds the network in float32."""
    return h.where(part="float")(report)[0]


def ended(report: Report) -> list[Row]:
    """Selects the searches that found something."""
    return [r for r in h.where(part="search")(report) if r.get("reward") is not None]


def searches(report: Report) -> list[Row]:
    """Selects every searcher at every target: means over seeds, and errors."""
    figures = []
    searches = h.where(part="search")(report)
    for (name, target), same in h.grouped(searches, "searcher", "target").items():
        done = [row for row in same if row.get("reward") is not None]
        columns = ("reward", "accuracy", "ratio", "macs", "bops", "seconds")
        figures.append({
            "searcher": name, "target": target, "seeds": len(done),
            **{key: h.mean(row[key] for row in done) for key in columns},
            "error": h.error(row["reward"] for row in done),
            "each": {key: [row[key] for row in done] for key in ("reward", "accuracy")},
            "message": next((row["message"] for row in same if "message" in row), ""),
        })  # fmt: skip
    return sorted(figures, key=lambda row: (-row["target"], NAMES.index(row["searcher"])))


def finals(report: Report) -> list[Row]:
    """Selects results that were trained, compiled and measured, with the first measurement."""
    told = report.config.get("latency")
    how = "modelled" if told == "modelled" else "measured"
    return [
        row | {
            "how": how, "told_latency": told != "operations",
            "name": f"{row['searcher']} at {row['target']:g}, seed {row['seed']}",
            **{f"first_{key}": next(iter(row[key]), None) for key in ("told", "took")},
        }
        for row in h.where(part="final")(report) if "share" in row
    ]  # fmt: skip


def _beside(report: Report, row: Row, theirs: Row) -> Row:
    """Shares of the whole network's work, ours and the thesis'."""
    base, ratios = whole(report), {}
    for name in ("macs", "bops"):
        ratios[name] = row[name] / base[name]
        ratios[f"source_{name}"] = theirs[name] / FLOAT[name] if theirs else None
    return ratios


def agents(report: Report) -> list[Row]:
    """Selects the agents of table 4.1, as shares of the whole network's numbers."""
    base, candidates = whole(report), []
    for row in finals(report):
        if row["searcher"] in AGENTS:
            theirs = SOURCE.get((row["searcher"], row["target"]), {})
            candidates.append({
                "agent": row["searcher"], "c": row["target"], "seed": row["seed"],
                **_beside(report, row, theirs),
                "latency": row["share"], "of_untuned": row["share"] * base["share_of_generic"],
                "source_latency": theirs["ms"] / FLOAT["ms"] if theirs else None,
                "accuracy": row["library"], "source_accuracy": theirs.get("accuracy"),
            })  # fmt: skip
    return candidates


def blind(report: Report) -> list[Row]:
    """Selects searches with and without sensitivities, at the smallest share (table 4.2)."""
    comparisons, least = [], min(report.config["targets"])
    for row in searches(report):
        if row["searcher"] in SENSITIVITY and row["target"] == least and row["seeds"]:
            theirs = SENSITIVITY[row["searcher"]]
            comparisons.append({
                "searcher": row["searcher"], **_beside(report, row, theirs),
                "latency": row["ratio"] * row["target"], "source_latency": theirs["share"],
                "accuracy": row["accuracy"], "source_accuracy": theirs["accuracy"],
                "reward": row["reward"], "error": row["error"],
            })  # fmt: skip
    return comparisons


def _gain(row: Row, other: Row, of: str) -> tuple[float | None, float | None]:
    """What a row gains over another, and what it has to; neither with one seed each."""
    tie = margins.margin(row["each"][of], other["each"][of])
    return (None if tie is None else float(row[of] - other[of])), tie


def distances(report: Report) -> Iterator[Row]:
    """Selects how far the table's sums are from times end to end."""
    pairs = [pair for r in finals(report) for pair in zip(r["told"], r["took"], strict=True)]
    if pairs:
        yield {"apart": float(np.median([abs(told / took - 1) for told, took in pairs]))}


def collapses(report: Report) -> Iterator[Row]:
    """Selects accuracies at the thesis' shares: quantization alone loses its own at the least."""
    base = whole(report)["validation"]
    for row in searches(report):
        theirs = SOURCE.get((row["searcher"], row["target"]))
        if theirs is not None:
            their_share = theirs["accuracy"] / FLOAT["accuracy"]
            wanted = their_share < COLLAPSED
            # A budget that was missed is no collapse: nothing was compressed to it.
            landed = row["seeds"] and abs(row["ratio"] - 1) <= LANDED
            share = row["accuracy"] / base if landed else None
            right = share is not None and (share < COLLAPSED if wanted else share >= HOLDS)
            yield {
                **row, "does": "collapses" if wanted else "holds", "source": their_share,
                "share": share or "missed the latency", "passed": right,
            }  # fmt: skip


def against(report: Report) -> Iterator[Row]:
    """Selects what the joint agent's reward gains on every other searcher's."""
    for rows in h.grouped(searches(report), "target").values():
        joint = next((row for row in rows if row["searcher"] == "joint"), None)
        if joint and joint["seeds"]:
            for row in rows:
                if row["searcher"] not in ("joint", BLIND):
                    entry = {**row, "gain": row["message"], "source": "> 0", "passed": False}
                    if row["seeds"]:
                        gain, tie = _gain(joint, row, "reward")
                        entry["gain"] = gain
                        if gain is not None and tie is not None:
                            entry |= {"source": f"> {tie:.3f}, two errors", "passed": gain > tie}
                    yield entry


def seeing(report: Report) -> Iterator[Row]:
    """Selects what sensitivities gain the joint agent at the least share."""
    least = min(report.config["targets"])
    of = {row["searcher"]: row for row in searches(report) if row["target"] == least}
    if all(of.get(name, {}).get("seeds") for name in ("joint", BLIND)):
        gain, tie = _gain(of["joint"], of[BLIND], "accuracy")
        yield {"target": least, "gain": gain, "tie": tie}


def layers(report: Report) -> Iterator[Row]:
    """Selects what the policies of some searchers look like, layer by layer.

    Every mean over layers is of one policy, so that policies of several seeds and budgets give its
    error: those of three seeds at one budget would have to differ by whole bits.
    """
    of = {name: [r for r in ended(report) if r["searcher"] == name] for name in NAMES}

    def halves(row: Row) -> float:
        values = row["channels"]
        middle = len(values) // 2
        return float(np.mean(values[:middle]) - np.mean(values[middle:-1]))

    def ends(row: Row) -> float:
        bits = row["weights"]
        return float(np.mean([bits[0], bits[-1]]) - np.mean(bits[1:-1]))

    for name, what, value in (
        ("pruning", "channels kept in the first half of layers, less those in the second", halves),
        ("quantization", "bits of activations less those of weights",
         lambda row: float(np.mean(row["activations"]) - np.mean(row["weights"]))),
        ("quantization", "weight bits of the first and last layer less the others'", ends),
    ):  # fmt: skip
        yield from _beyond(f"{name}: {what}", 1, [value(row) for row in of[name]])
    for name, column, amount in (
        ("pruning first", "bits",
         lambda r: float(np.mean(np.add(r["weights"], r["activations"])) / 2)),
        ("quantization first", "channels", lambda r: float(np.mean(r["channels"]))),
    ):  # fmt: skip
        pair = [[amount(row) for row in of[one]] for one in (name, "joint")]
        what = f"{column} left to the second stage, less the joint agent's"
        yield from _beyond(f"{name}: {what}", -1, *pair)


def _beyond(what: str, sign: int, *samples: list[float]) -> Iterator[Row]:
    """A row of a mean or difference that is to have a sign, by two errors over policies."""
    if all(samples) and (tie := margins.margin(*samples)) is not None:
        first, *second = (float(np.mean(one)) for one in samples)
        ours = first - sum(second)
        yield {"claim": f"{what}, by two errors ({tie:.2g})", "ours": ours,
               "source": "> 0" if sign > 0 else "< 0", "passed": sign * ours > tie}  # fmt: skip


def _passed(row: Row, _: Any) -> bool:
    return bool(row["passed"])


def _source(row: Row) -> Any:
    return row["source"]


claim = partial(h.Claim, needs="default")
CLAIMS = (
    claim(
        "{name}: {how} latency over the target's, less 1",
        lambda row: row["share"] / row["target"] - 1, h.near(0, NEAR), f"within {NEAR}", finals,
        # Bit operations are no time: a search that is told them is asked for no latency.
        when=lambda row: row["searcher"] in AGENTS and row["told_latency"],
    ),
    h.Claim(
        "{name}: accuracy of the library apart from the search's",
        lambda row: abs(row["library"] - row["searched"]), h.below(SAME + 1e-9), f"<= {SAME}",
        finals,
    ),
    claim(
        "median distance of the table's sums from times end to end", "apart", h.at_most(NEAR),
        "<= .05", distances,
    ),
    claim(
        "{searcher} at {target:g} {does}: accuracy over the whole network's", "share", _passed,
        _source, collapses,
    ),
    claim("joint agent at {target:g}: reward beyond {searcher}'s", "gain", _passed, _source,
          against),
    claim("{claim}", "ours", _passed, _source, layers),
    claim(
        "accuracy that sensitivities gain the joint agent at {target:g}, beyond two errors "
        "({tie:.3f})",
        "gain", h.above("tie"),
        SENSITIVITY["joint"]["accuracy"] - SENSITIVITY[BLIND]["accuracy"], seeing,
    ),
)  # fmt: skip
TABLES = (
    h.Listing("float", ("subject", "ms", "share_of_generic", "accuracy", "validation"),
              h.where(part="float")),
    h.Listing(
        "agents, trained and measured; shares of the whole network's",
        ("agent", "c", "seed", "macs", "bops", "latency", "of_untuned", "accuracy"), agents,
    ),
    h.Listing(
        "every searcher at one budget, in the search",
        ("searcher", "target", "seeds", "reward", "error", "accuracy", "ratio", "seconds",
         "message"),
        searches,
    ),
    h.Listing("sensitivities off and on, in the search", of=blind),
    h.Listing(
        "every result, trained and measured",
        {
            **{name: name for name in ("searcher", "target", "seed")},
            "told": "first_told", "took": "first_took",
            **{name: name for name in ("share", "here", "searched", "library")},
        },
        finals,
    ),
)  # fmt: skip
COLOURS = dict(zip(NAMES, (*(f"C{i}" for i in range(10)), "k"), strict=True))
BITS = {"weights": "weight bits", "activations": "activation bits"}


def _sites(report: Report) -> list[str]:
    return [site.replace("stage", "s") for site in whole(report)["sites"]]


def _policies(report: Report) -> Iterator[Row]:
    """Selects the layers of the best policies, of the agents and the default searcher."""
    shown = [row for row in ended(report) if row["searcher"] in (*AGENTS, "knapsack")]
    for (target, name), rows in h.grouped(shown, "target", "searcher").items():
        best = max(rows, key=lambda row: row["reward"])
        for i, site in enumerate(_sites(report)):
            bits = {column: min(best[column][i], 32) for column in BITS}
            place = {"title": f"{name} at {target:g}", "site": site}
            yield {**place, "channels": best["channels"][i], **bits}


def _upright(axis: Axes, report: Report) -> None:
    axis.tick_params(axis="x", rotation=60, labelsize=8)


def _rewards(report: Report) -> Iterator[Row]:
    """Selects the best reward so far, mean over seeds."""
    searches = sorted(ended(report), key=lambda r: (-r["target"], NAMES.index(r["searcher"])))
    for (target, name), rows in h.grouped(searches, "target", "searcher").items():
        curves = np.array([row["rewards"] for row in rows], float)  # NaN where there is none
        best = np.fmax.accumulate(curves, axis=1).mean(0)
        style = COLOURS[name] + ("-" if name in AGENTS else "--")
        yield {
            "title": f"c = {target:g}", "searcher": name, "style": style, "best": best.tolist(),
            "episodes": list(range(1, len(best) + 1)),
        }  # fmt: skip


def _front(report: Report) -> list[Row]:
    """Selects accuracy in the search over the share of the latency."""
    return [
        row | {
            "latency": row["ratio"] * row["target"],
            "style": COLOURS[row["searcher"]] + ("s" if row["searcher"] in AGENTS else "o"),
        }
        for row in sorted(ended(report), key=lambda row: NAMES.index(row["searcher"]))
    ]  # fmt: skip


def _best(axis: Axes, report: Report) -> None:
    """Draws the front, and the accuracy of the whole network."""
    points = sorted((row["latency"], row["accuracy"]) for row in _front(report))
    best = np.maximum.accumulate([accuracy for _, accuracy in points])
    axis.step([share for share, _ in points], best, where="post", color="grey", lw=0.8)
    axis.axhline(whole(report)["validation"], color="black", lw=0.6, ls=":")


def _heat(report: Report) -> Iterator[h.Panel]:
    """Makes a panel per method: how much each layer's compression hurts."""
    (row,) = h.where(part="sensitivity")(report)
    for name in ("pruning", "weights", "activations"):

        def paint(axis: Axes, name: str = name) -> None:
            table = np.log10(1e-4 + np.array(row[name]))
            shown = axis.imshow(table.T, origin="lower", aspect="auto", vmin=-4, vmax=1)
            axis.set_xticks(range(len(table)), _sites(report), rotation=60, fontsize=8)
            axis.set_yticks([0, len(row["strengths"]) - 1], ["none", "most"])
            if name == "activations":
                axis.figure.colorbar(shown, ax=axis)

        yield h.Panel(f"{name}: log10 of nats", paint)


PLOTS = (
    h.Plot("sensitivity", _heat, size=(3.7, 3.4)),
    h.Plot(
        "rewards",
        h.Curves("episodes", "best", _rewards, "{searcher}", "{title}", style="{style}",
                 axes={"ylim": (-3, 1), "xlabel": "episode", "ylabel": "best reward so far"}),
    ),
    h.Plot(
        "front",
        h.Curves("latency", "accuracy", _front, "{searcher}", style="{style}", then=_best,
                 axes={"xlabel": "share of float32's latency, as searches are told",
                       "ylabel": "accuracy in the search"}),
        size=(6.4, 4.6),
    ),
    h.Plot(
        "policies",
        h.Bars("site", {"channels": "channels kept"}, _policies, facet="{title}",
               axes={"ylim": (0, 1.05)}, then=_upright),
        h.Bars("site", BITS, _policies, facet="{title}", then=_upright,
               axes={"yscale": "log", "ylim": (0.8, 40), "yticks": (1, 8, 32),
                     "yticklabels": (1, 8, 32)}),
        columns=4, size=(3.4, 2),
    ),
)  # fmt: skip
