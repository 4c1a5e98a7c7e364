"""A report as a page: what its sections say in words, figures and tables, as HTML and Markdown.

Sections are plain data, so a page can be made again from a file without the model. Texts are the
same in every form; the templates beside this file only lay them out.
"""

from __future__ import annotations

import base64
import functools
import html
import io
import json
import math
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxeff.core import Table, optional, string, string_mapping, validate
from jaxeff.robustness import fit_midpoint, summarize
from jaxeff.robustness.curves import draw_curve
from jaxeff.store import reading_errors, write_atomically
from jaxeff.uncertainty import Reliability, RiskCoverage, draw_reliability, draw_risk_coverage

VERSIONS = ("jaxeff", "jax", "flax", "numpy")
COLORS = ("#00798c", "#d1495b", "#edae49", "#30638e")
"""Of what is measured, what it is compared with, and what else there is."""
_STYLE = {
    "axes.spines.top": False, "axes.spines.right": False, "font.size": 9, "axes.titlesize": 9,
    "legend.frameon": False, "svg.hashsalt": "jaxeff", "figure.constrained_layout.use": True,
}  # fmt: skip
# What a person takes in at a glance; the rest of a long table is in the JSON.
_MOST_ROWS = 40


@dataclass(frozen=True)
class Figure:
    """A drawing.

    Attributes:
        source: The picture itself, as a data URI.
        text: What it shows, for those who don't see it.
    """

    source: str
    text: str


@dataclass(frozen=True)
class Chapter:
    """A section as people read it.

    Attributes:
        name: The name in addresses of the page.
        title: The heading.
        sentences: What was found, the most important first.
        figures: Drawings.
        tables: Tables.
    """

    name: str
    title: str
    sentences: list[str]
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class Report:
    """Measurements of a model, and the page that is made of them.

    Attributes:
        title: Title of the page.
        about: Texts of the model card by their headings.
        facts: Versions, hashes, and settings of the measurements.
        sections: Measurements by the name of their section, as JSON has them; one that couldn't
            be made holds why, as `missing`.
    """

    title: str
    about: Mapping[str, str]
    facts: Mapping[str, Any]
    sections: Mapping[str, Mapping[str, Any]]

    @classmethod
    @validate(title=string, facts=string_mapping)
    def of_target(cls, title: str, facts: Mapping[str, Any]) -> Report:
        """Makes the page of a compiled library alone.

        Args:
            title: Title of the page.
            facts: Facts about the library, from `Bundle.facts()`.
        """
        target: dict[str, Any] = as_json(facts)
        return cls(title, {}, {"versions": versions()}, {"target": target})

    @property
    def html(self) -> str:
        """The page in one piece: figures and style included, nothing is fetched."""
        return _rendered("page.html.jinja", self)

    @property
    def markdown(self) -> str:
        """The same as a model card, with tables in the place of figures."""
        return _rendered("card.md.jinja", self)

    @validate()
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page, whole or not at all.

        Args:
            path: A file whose name says the form: `.html`, `.md` or `.json`.

        Returns:
            The file.

        Raises:
            ValueError: The name ends otherwise.
        """
        path = Path(path)
        forms: dict[str, Callable[[], str]] = {
            ".html": lambda: self.html,
            ".md": lambda: self.markdown,
            ".json": lambda: json.dumps(self._data(), indent=1) + "\n",
        }
        if path.suffix not in forms:
            raise ValueError(
                f"a report is written as {', '.join(forms)}, not as {path.suffix or 'no kind'}: "
                f"rename {path.name}"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, forms[path.suffix]())
        return path

    @classmethod
    @validate()
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Reads what `save` wrote as `.json`.

        Args:
            path: The file.

        Raises:
            CheckpointError: It is damaged, or no report.
        """
        with reading_errors(path):
            data = json.loads(Path(path).read_text())
            return cls(data["title"], data["about"], data["facts"], data["sections"])

    @property
    def highlights(self) -> dict[str, tuple[str, str]]:
        """The most important figures, each with what to know about it, by what they are of."""
        return dict(_highlights(self.sections))

    @property
    def parts(self) -> list[Chapter]:
        """The sections as people read them."""
        return [_part(name, section) for name, section in self.sections.items()]

    def __repr__(self) -> str:
        rows = [(name, *texts) for name, texts in self.highlights.items()]
        return str(Table(("", "value>", ""), rows, title=self.title))

    def _repr_html_(self) -> str:
        """Shows the page in a notebook, in a frame of its own."""
        page = html.escape(self.html, quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="700" frameborder="0"></iframe>'

    def _data(self) -> dict[str, Any]:
        """Returns it as plain data."""
        names = ("title", "about", "facts", "sections")
        return {name: getattr(self, name) for name in names}


def _rendered(template: str, page: Report) -> str:
    """Fills a template; what models and people name is escaped."""
    # Loaded where a page is written: measurements and their tables need no templates.
    jinja2 = optional("jinja2", "a page of jaxeff.report", "report")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxeff.reporting", ""),
        autoescape=lambda name: ".html" in (name or ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    colors = {"main": COLORS[0], "other": COLORS[1]}
    return environment.get_template(template).render(page=page, parts=page.parts, colors=colors)


def versions() -> dict[str, str]:
    """Lists the versions that a page was made with."""
    installed = {name: metadata.version(name) for name in VERSIONS}
    return {**installed, "python": platform.python_version(), "backend": jax.default_backend()}


def as_json(value: Any) -> Any:
    """Makes plain data of nested numbers and arrays: NaN and infinity become None."""
    if isinstance(value, Mapping):
        return {str(name): as_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    if hasattr(value, "tolist"):
        return as_json(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def percent(share: float | None) -> str:
    """Formats a share with three digits; nothing for None."""
    return "" if share is None else f"{100 * share:.3g} %"


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return ""
    text = f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def _highlights(sections: Mapping[str, Any]) -> Iterable[tuple[str, tuple[str, str]]]:
    """Yields what is shown first, of the sections that were measured."""
    known = {name: of for name, of in sections.items() if "missing" not in of}
    if of := known.get("predictions"):
        inside = of["inside"]
        if "accuracy" in inside:
            yield "accuracy", (percent(inside["accuracy"]), f"of {inside['examples']:,} inputs")
            yield "calibration error", (percent(inside["ece"]), "0 is best")
        if "auroc" in of:
            yield "out of domain", (f"{of['auroc']:.3f}", f"AUROC by {of['score']}; .5 is chance")
    if of := known.get("layers"):
        yield "parameters", (f"{of['params']:,}", f"{of['size']:,} bytes")
        yield "multiply-accumulates", (f"{of['macs']:,}", "for one input")
        yield "activations", (f"{of['peak']:,} bytes", "at a time, for one input")
    if of := known.get("noise"):
        value = _number(of["midpoint"]) or "not reached"
        yield "noise tolerated", (value, f"half of the accuracy; first in {of['worst']}")
    if of := known.get("bits"):
        enough = f"{of['needed']} bits" if of["needed"] else f"above {max(of['widths'])} bits"
        yield "bits needed", (enough, f"within a point; first in {of['worst']}")
    if of := known.get("channels"):
        share = max((r["share"] for r in of["curve"] if _keeps(r, of)), default=0.0)
        worst = f"; first in {', '.join(_sites_of_worst(of))}" if of["worst"] else ""
        yield "channels to spare", (percent(share), f"within a point, untrained{worst}")
    if of := known.get("moments"):
        yield "variances", ("right" if of["agrees"] else "off", "of moments, by moments_check")
    if of := known.get("target"):
        if total := sum(call["cycles"] or 0 for call in of["calls"]):
            yield "cycles", (f"{total:,.0f}", f"on {of['name']}, modelled")
        if of.get("milliseconds") is not None:
            yield "latency", (_number(of["milliseconds"], "ms"), "measured on this machine")
        for what, size in of["sizes"].items():
            if what in ("code", "parameters", "workspace"):
                yield f"{what} on the target", (f"{size:,} bytes", of["name"])


def _keeps(row: Mapping[str, Any], of: Mapping[str, Any]) -> bool:
    """Tells whether a row's accuracy is within a point of the whole model's."""
    return bool(row["accuracy"] >= of["float"] - 0.01)


def _sites_of_worst(of: Mapping[str, Any]) -> list[str]:
    """Finds the layers of the group of channels that costs most."""
    return next(row["sites"] for row in of["rows"] if row["group"] == of["worst"])


def _part(name: str, section: Mapping[str, Any]) -> Chapter:
    title, describe = _PARTS.get(name, (name.capitalize(), None))
    if "missing" in section or describe is None:
        return Chapter(
            name, title, [f"Not measured: {section.get('missing', 'an unknown section')}."]
        )
    return describe(Chapter(name, title, []), section)


def _layers(part: Chapter, of: Mapping[str, Any]) -> Chapter:
    heaviest = max(of["rows"], key=lambda row: row["macs"])
    fullest = max(of["rows"], key=lambda row: row["live"])
    part.sentences.extend([
        f"{len(of['rows'])} layers have {of['params']:,} parameters in {of['size']:,} bytes and "
        f"multiply {of['macs']:,} times for one input.",
        f"Most is multiplied in {heaviest['site']} ({percent(heaviest['macs'] / of['macs'])}); "
        f"most activations are there at a time in {fullest['site']}, {fullest['live']:,} bytes."
        if of["macs"] else "Nothing is multiplied with weights.",
    ])  # fmt: skip
    rows = [
        (row["site"], row["kind"], "x".join(map(str, row["shape"])), *(
            f"{row[name]:,}" if row[name] else "" for name in ("params", "macs", "bytes", "live")
        ), _widths(row))
        for row in of["rows"]
    ]  # fmt: skip
    total = ("total", "", "", *(f"{of[name]:,}" for name in ("params", "macs", "size", "peak")), "")
    part.tables.append(Table(
        ("layer", "kind", "output", "parameters>", "MACs>", "bytes>", "live bytes>", "bits>"),
        rows[:_MOST_ROWS], total, _rest(rows),
    ))  # fmt: skip
    return part


def _widths(row: Mapping[str, Any]) -> str:
    if row["weight_bits"] is None:
        return ""
    return f"{row['weight_bits']:.3g} x {row['activation_bits']:.3g}"


def _rest(rows: Sequence[Any]) -> str:
    left = len(rows) - _MOST_ROWS
    return f"and {left} more, in the JSON form of this report" if left > 0 else ""


def _noise(part: Chapter, of: Mapping[str, Any]) -> Chapter:
    half = (
        f"Half of the accuracy is lost at additive noise of {_number(of['midpoint'])}."
        if of["midpoint"] is not None
        else f"There is no level at which half of the accuracy is lost: {of['message']}."
    )
    part.sentences.extend([
        f"{half} Noise is a standard deviation in the units of each layer's values, everywhere at "
        "once.",
        f"{of['worst']} suffers most: alone, it tolerates the least noise before predictions change"
        " by a bit.",
    ])  # fmt: skip
    known = [row for row in of["rows"] if row["level"] is not None and row["spread"]]
    if known:
        weakest = min(known, key=lambda row: row["level"] / row["spread"])
        part.sentences.append(
            f"In proportion to the spread of its own values, {weakest['site']} does: "
            f"{_relative(weakest)} of it."
        )
    levels = np.asarray(of["levels"], float)
    curve = summarize(levels, _floats(of["draws"]))

    def draw(axes: Any) -> None:
        midpoint = fit_midpoint(levels, curve.draws)
        draw_curve(axes, curve, midpoint, label="noise everywhere", color=COLORS[0])
        axes.set_ylim(0, 1.02)
        axes.legend()

    rows = sorted(of["rows"], key=lambda row: math.inf if row["level"] is None else row["level"])

    def draw_layers(axes: Any) -> None:
        shown = rows[:12][::-1]
        highest = max(of["levels"])
        axes.barh(
            [row["site"] for row in shown],
            [highest if row["level"] is None else row["level"] for row in shown],
            color=[COLORS[1] if row["site"] == of["worst"] else COLORS[0] for row in shown],
        )
        axes.set_xlabel("noise tolerated by the layer alone")

    part.figures.append(_figure(draw, "Accuracy over the level of additive noise in all layers"))
    part.figures.append(_figure(draw_layers, "Noise that each layer tolerates alone"))
    cells = [
        (row["site"], _tolerated(row, of), _relative(row), _number(row["spread"])) for row in rows
    ]
    columns = ("layer", "noise tolerated>", "of its values' spread>", "spread of its values>")
    part.tables.append(Table(columns, cells[:_MOST_ROWS], caption=_rest(cells)))
    return part


def _tolerated(row: Mapping[str, Any], of: Mapping[str, Any]) -> str:
    return f"above {max(of['levels']):.3g}" if row["level"] is None else _number(row["level"])


def _relative(row: Mapping[str, Any]) -> str:
    if row["level"] is None or not row["spread"]:
        return ""
    return percent(row["level"] / row["spread"])


def _measured(of: Mapping[str, Any]) -> str:
    """Says what an accuracy is of; reports of earlier versions don't know."""
    inputs = f" of the first {of['examples']:,} inputs" if "examples" in of else ""
    means = (
        ", with each parameter's mean in the place of its posterior" if of.get("at_means") else ""
    )
    return f"{inputs}{means}"


def _bits(part: Chapter, of: Mapping[str, Any]) -> Chapter:
    enough = (
        f"{of['needed']} bits in all layers are within a point of {percent(of['float'])}, the "
        f"accuracy in floats{_measured(of)}."
        if of["needed"]
        else f"No width up to {max(of['widths'])} bits is within a point of {percent(of['float'])}."
    )
    part.sentences.extend([
        f"{enough} Nothing was calibrated or trained: grids are those of each array's own range "
        "(`compression.bit_policy` makes the spec).",
        f"{of['worst']} suffers most in {of['worst_width']} bits, the others left alone.",
    ])  # fmt: skip
    damage = _floats(of["weights"]) + _floats(of["activations"])

    def draw(axes: Any) -> None:
        axes.plot(of["widths"], of["accuracies"], "o-", color=COLORS[0], label="all layers")
        axes.axhline(of["float"], color=COLORS[1], ls="--", lw=1, label="floats")
        axes.set(xlabel="bits of weights and inputs", ylabel="accuracy", ylim=(0, 1.02))
        axes.legend()

    def draw_layers(axes: Any) -> None:
        for site, row in zip(of["sites"][:10], damage, strict=False):
            worst = site == of["worst"]
            axes.plot(
                of["widths"], np.maximum(row, 1e-8), marker=".", label=site,
                color=COLORS[1] if worst else None, lw=2 if worst else 1,
            )  # fmt: skip
        axes.set(xlabel="bits of this layer alone", ylabel="divergence, nats", yscale="log")
        axes.legend(fontsize=7)

    part.figures.append(_figure(draw, "Accuracy over bits of all weights and inputs"))
    part.figures.append(_figure(draw_layers, "Divergence of predictions over bits of each layer"))
    columns = ["layer", *(f"{width} bits>" for width in of["widths"])]
    rows = [
        (site, *(f"{value:.2g}" for value in row))
        for site, row in zip(of["sites"], damage, strict=True)
    ]
    accuracies = ("accuracy, all layers", *map(percent, of["accuracies"]))
    caption = "divergence from the predictions in floats, in nats, of one layer in so few bits"
    shown = Table(
        columns, rows[:_MOST_ROWS], accuracies, "\n".join(filter(None, (caption, _rest(rows))))
    )
    part.tables.append(shown)
    return part


def _channels(part: Chapter, of: Mapping[str, Any]) -> Chapter:
    share = max((row["share"] for row in of["curve"] if _keeps(row, of)), default=0.0)
    part.sentences.append(
        f"{percent(share)} of the channels of every layer can go for at most a point of accuracy, "
        "without training afterwards; those with the smallest weights go first."
    )
    if of["worst"]:
        sites = ", ".join(_sites_of_worst(of))
        part.sentences.append(f"{sites} suffers most where half of its channels go, alone.")

    def draw(axes: Any) -> None:
        shares = [0.0, *(row["share"] for row in of["curve"])]
        accuracies = [of["float"], *(row["accuracy"] for row in of["curve"])]
        axes.plot(shares, accuracies, "o-", color=COLORS[0])
        axes.set(xlabel="share of channels removed", ylabel="accuracy", ylim=(0, 1.02))

    part.figures.append(_figure(draw, "Accuracy over the share of channels that are removed"))
    part.tables.append(Table(
        ("channels removed", "accuracy>", "parameters left>", "MACs left>"),
        [(percent(row["share"]), percent(row["accuracy"]), f"{row['params']:,}",
          f"{row['macs']:,}") for row in of["curve"]],
    ))  # fmt: skip
    alone = sorted(of["rows"], key=lambda row: row["accuracy"])
    rows = [
        (", ".join(row["sites"]), f"{row['channels']:,}", percent(row["accuracy"])) for row in alone
    ]
    caption = f"half of these channels alone; with all of them {percent(of['base'])}"
    columns = ("layers", "channels>", "accuracy>")
    part.tables.append(Table(columns, rows[:_MOST_ROWS], caption=caption))
    return part


def _predictions(part: Chapter, of: Mapping[str, Any]) -> Chapter:
    sets = {"in domain": of["inside"], "out of domain": of.get("outside")}
    sets = {name: judged for name, judged in sets.items() if judged}
    inside = of["inside"]
    if "accuracy" in inside:
        part.sentences.append(
            f"{percent(inside['accuracy'])} of {inside['examples']:,} inputs are classified right; "
            f"confidence is off by {percent(inside['ece'])} on average (expected calibration "
            f"error). Uncertainty is measured as {of['score']}."
        )
    if "auroc" in of:
        part.sentences.append(
            f"An input out of domain is more uncertain than one in domain in {percent(of['auroc'])}"
            f" of pairs (AUROC; 50 % is chance). Where 95 % of inputs out of domain are found, "
            f"{percent(of['fpr95'])} of those in domain are refused, too."
        )

    curves = {}
    for name, judged in sets.items():
        if "accuracy" not in judged:
            continue

        def draw(axes: Any, judged: Mapping[str, Any] = judged) -> None:
            draw_reliability(axes, Reliability(*map(_floats, judged["reliability"].values())))
            axes.legend()

        part.figures.append(_figure(draw, f"Accuracy over confidence, {name}"))
        curves[name] = RiskCoverage(*map(_floats, judged["risk"].values()))
    if "risk_of_both" in of:
        label = "both, out of domain " + ("as labelled" if len(curves) > 1 else "always wrong")
        curves[label] = RiskCoverage(*map(_floats, of["risk_of_both"].values()))
    if curves:

        def draw_risks(axes: Any) -> None:
            draw_risk_coverage(axes, curves)
            axes.legend()

        text = "Share of wrong predictions over the share of inputs that are accepted"
        part.figures.append(_figure(draw_risks, text))
    if len(sets) > 1:
        scores = {name: _floats(judged["scores"]) for name, judged in sets.items()}
        draw_scores = functools.partial(_draw_histograms, scores=scores, of=of["score"])
        part.figures.append(
            _figure(draw_scores, f"Histograms of {of['score']}, in and out of domain")
        )
    names = {
        "examples": "inputs", "accuracy": "accuracy", "nll": "negative log-likelihood, nats",
        "ece": "expected calibration error", "brier": "Brier score", "aurc": "area under the risk",
        "confidence": "mean confidence",
    }  # fmt: skip
    rows = [
        (text, *(_number(judged.get(name)) for judged in sets.values()))
        for name, text in names.items()
    ]
    part.tables.append(Table(("", *(f"{name}>" for name in sets)), rows))
    return part


def _draw_histograms(axes: Any, scores: Mapping[str, np.ndarray], of: str) -> None:
    """Draws the scores of sets of inputs in common bins; `of` is what they are, in nats."""
    edges = np.histogram_bin_edges(np.concatenate([*scores.values()]), 30)
    for color, (name, values) in zip(COLORS, scores.items(), strict=False):
        axes.hist(values, edges, density=True, alpha=0.6, color=color, label=name)
    axes.set(xlabel=f"{of}, nats", ylabel="density")
    axes.legend()


def _moments(part: Chapter, of: Mapping[str, Any]) -> Chapter:
    part.sentences.extend([of["advice"], *of["verdict"].splitlines()])
    rows = [(row["site"], _number(row["ratio"])) for row in of["rows"]]
    if rows:
        columns = ("layer where independence is assumed", "variance, divided by the true one>")
        part.tables.append(Table(columns, rows[:_MOST_ROWS], caption=_rest(rows)))
    return part


def _target(part: Chapter, of: Mapping[str, Any]) -> Chapter:
    part.sentences.append(f"Compiled for {of['name']} ({of['machine']}). {of['check']}.")
    part.sentences.extend(filter(None, (of["note"], of["verdict"])))
    calls = of["calls"]
    total = sum(call["cycles"] or 0 for call in calls)
    if total:
        slowest = max(calls, key=lambda call: call["cycles"] or 0)
        part.sentences.append(
            f"A call takes {total:,.0f} cycles by a static model, "
            f"{percent(slowest['cycles'] / total)} of them in {slowest['kernel']}."
        )

        def draw(axes: Any) -> None:
            shown = calls[:20][::-1]
            # Kernels may run more than once: places, not names, tell bars apart.
            axes.barh(range(len(shown)), [call["cycles"] or 0 for call in shown], color=COLORS[0])
            axes.set_yticks(range(len(shown)), [_short(call["kernel"]) for call in shown])
            axes.set_xlabel("cycles")

        part.figures.append(_figure(draw, "Cycles of each call of a kernel"))
    if calls:
        names = [name for name in _CALLS if any(call.get(name) is not None for call in calls)]
        rows = [(call["kernel"], *(_amount(call.get(name)) for name in names)) for call in calls]
        sums = ("total", *(_amount(_total(calls, name)) for name in names))
        columns = ("kernel, in order", *(f"{_CALLS[name]}>" for name in names))
        part.tables.append(Table(columns, rows[:_MOST_ROWS], sums, _rest(rows)))
    sizes = [(name.replace("_", " "), f"{size:,}") for name, size in of["sizes"].items()]
    if sizes:
        part.tables.append(Table(("memory", "bytes>"), sizes))
    files = [(name, f"{file['size']:,}", file["sha256"][:16]) for name, file in of["files"].items()]
    part.tables.append(Table(("file of the bundle", "bytes>", "SHA-256, its beginning"), files))
    return part


def _spotter(part: Chapter, of: Mapping[str, Any]) -> Chapter:
    part.sentences.extend([
        f"It tells {of['words']} words and {len(of['classes']) - of['words']} other classes apart: "
        f"{percent(of['accuracy'])} of {of['recordings']:,} recordings of others are right.",
        f"In a stream of one word a second {percent(of['heard'])} of the words are heard, and "
        f"{percent(of['wrong'])} of what is said there is wrong; {of['alarms']} times in "
        f"{of['minutes']:.1f} minutes of other words and noise it hears one of its words: "
        f"{of['alarms_per_hour']:.0f} an hour.",
        f"Sets hold the truth for {percent(of['coverage'])} ({percent(of['asked'])} were asked), "
        f"with {of['set']:.2f} classes on average. Drowning in noise, the last third's coverage is "
        f"{percent(of['fixed_last'])}; where the truth is told, {percent(of['online_last'])}.",
        f"On a {of['target']} it takes {of['flash']:,} bytes of flash, {of['ram']:,} of RAM and "
        f"{of['instructions'] / 1e6:.1f} million instructions for a second of sound; "
        f"{of['same']:,} of {of['steps']:,} emulated steps decide as JAX does.",
    ])  # fmt: skip
    if (learns := of.get("learning")) is not None:
        part.sentences.extend(_learning(learns))
    shares = {
        "coverage, first third, threshold of the beginning": "fixed_first",
        "coverage, last third, threshold of the beginning": "fixed_last",
        "coverage, first third, followed": "online_first",
        "coverage, last third, followed": "online_last",
    }
    rows = [(text, percent(of[name])) for text, name in shares.items()]
    rows.append(("deviation of a logit, mean", _number(of["deviation"])))
    part.tables.append(Table(("of it", "measured>"), rows))
    head = (
        "coverage asked>", "measured>", "classes in a set>", "words heard>", "wrong of those said>",
        "false alarms an hour>",
    )  # fmt: skip
    levels = [
        (percent(at["asked"]), percent(at["coverage"]), f"{at['set']:.2f}", percent(at["heard"]),
         percent(at["wrong"]), f"{at['alarms_per_hour']:.0f}")
        for at in of["levels"]
    ]  # fmt: skip
    part.tables.append(Table(head, levels))
    names = ("code", "parameters", "workspace", "arrays", "stack")
    part.tables.append(Table(("memory", "bytes>"), [(name, f"{of[name]:,}") for name in names]))
    return part


def _learning(of: Mapping[str, Any]) -> list[str]:
    """Says what came of telling a word, and of noise."""

    def alarm(name: str) -> str:
        return "no alarm" if of[name] is None else f"an alarm after {of[name]:.0f} seconds"

    return [
        f"Told {of['told']} recordings of {of['word']} that it hears wrong, {of['passes']} times "
        f"each, it hears {of['right']} of them right; of others of this word "
        f"{percent(of['word_after'])}, and {percent(of['word_before'])} before; of all other "
        f"classes {percent(of['others_after'])}, and {percent(of['others_before'])} before.",
        f"In white noise that rises over {of['seconds']} seconds to a deviation of "
        f"{of['loudest']:,.0f} there is {alarm('alarm_in_noise')}; without it "
        f"{alarm('alarm_dry')}, and in {of['usual']:,} seconds of other speakers "
        f"{alarm('alarm_usual')}.",
    ]


_CALLS = {
    "instructions": "instructions", "cycles": "cycles", "milliseconds": "ms",
    "parameters": "bytes of parameters", "live": "live bytes",
}  # fmt: skip


def _amount(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _total(calls: Sequence[Mapping[str, Any]], name: str) -> float:
    values = [call.get(name) or 0 for call in calls]
    # Memory of one call is used again by the next.
    return max(values) if name == "live" else sum(values)


def _short(name: str) -> str:
    return name if len(name) <= 28 else f"{name[:27]}…"


_PARTS: Mapping[str, tuple[str, Callable[[Chapter, Mapping[str, Any]], Chapter] | None]] = {
    "spotter": ("The spotter", _spotter),
    "layers": ("Layers", _layers),
    "predictions": ("How sure it is, and how right", _predictions),
    "noise": ("Noise", _noise),
    "bits": ("Bits", _bits),
    "channels": ("Channels", _channels),
    "moments": ("Variances of moments", _moments),
    "target": ("On the target", _target),
}


def _floats(values: Any) -> Any:
    """Makes an array of what JSON has, where None stands for what is no number."""
    return np.asarray(values, float)


def _figure(draw: Callable[[Any], None], text: str) -> Figure:
    """Draws onto axes of its own; the same data give the same bytes."""
    # Loaded where something is drawn; importing it takes longer than a small model.
    what, extra = "a figure of jaxeff.report", "report"
    matplotlib = optional("matplotlib", what, extra)
    canvases = optional("matplotlib.figure", what, extra)
    cycle = optional("cycler", what, extra).cycler(color=COLORS)
    with matplotlib.rc_context({**_STYLE, "axes.prop_cycle": cycle}):
        canvas = canvases.Figure(figsize=(4.4, 3.0))
        draw(canvas.subplots())
        file = io.StringIO()
        canvas.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    data = base64.b64encode(file.getvalue().encode()).decode()
    return Figure(f"data:image/svg+xml;base64,{data}", text)
