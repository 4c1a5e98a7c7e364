"""The source's numbers, the claims held to them, tables and pictures."""

from collections.abc import Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.special import softmax

from experiments import harness as h
from experiments.harness import Report, Row

# Klein's thesis, table 8.2, and section 7.5.2 (MLP by MCMC and SVI, 0.958 and 0.966). Clean and
# ambiguous digits are both in domain there (section 7.4.3), hence `auroc_dirty`.
SOURCE = {
    "mlp svi": {"accuracy": 0.963, "auroc_dirty": 0.812},
    "mlp moments": {"accuracy": 0.963, "auroc_dirty": 0.858},
    "mlp mcmc": {"accuracy": 0.958, "auroc_dirty": 0.99},
    "lenet5 svi": {"accuracy": 0.987, "auroc_dirty": 0.986},
    "lenet5 moments": {"accuracy": 0.989, "auroc_dirty": 0.966},
}
SVI_OF_MCMC = 0.75
"""AUROC of the MLP by SVI that section 7.5.2 sets beside that of MCMC."""
SOURCE |= {f"mlp-long {way}": SOURCE[f"mlp {way}"] for way in ("svi", "moments")}
SOURCE_FACTOR = {"mlp": 0.3, "mlp-long": 0.3, "lenet5": 0.4}
PASSES = ("mlp", "mlp-long", "lenet5")
DOMAINS = {"clean": "C0", "ambiguous": "C1", "ood": "C3"}


def figures(report: Report) -> dict[str, Row]:
    """Finds the rows by method."""
    return {row["method"]: row for row in report.rows}


def gaps(report: Report) -> Iterator[Row]:
    """Selects how far moment passes are from sampling, here and in the source."""
    for name in PASSES:
        passed, sampled = (figures(report)[f"{name} {way}"] for way in ("moments", "svi"))
        known, beside = (SOURCE[f"{name} {way}"] for way in ("moments", "svi"))
        for metric, bound in (("accuracy", 0.003), ("auroc_dirty", 0.02), ("auroc", 0.02)):
            theirs = abs(known[metric] - beside[metric]) if metric in known else None
            gap = abs(passed[metric] - sampled[metric])
            yield {"name": name, "metric": metric, "bound": bound, "gap": gap, "source": theirs}


def factors(report: Report) -> Iterator[Row]:
    """Selects logit variances without a factor, by both readings of the weights."""
    for name in PASSES:
        own = [r for r in report.extra["sweep"] if (r["network"], r["factor"]) == (name, 1)]
        ratios = {row["reading"]: row["variance_ratio"] for row in own}
        # Two standard errors of the variance of so many draws.
        drawn = max(r["samples"] for r in report.extra["samples"] if r["network"] == name)
        error = 2 * (2 / drawn) ** 0.5
        yield {"name": name, "error": error, **ratios}


def gains(report: Report) -> Iterator[Row]:
    """Selects what MCMC gains over SVI of the same images; of all images, which isn't alike."""
    found = figures(report)
    for metric, inside in (("auroc_dirty", "Dirty-MNIST"), ("auroc", "clean digits alone")):
        for other in ("mlp-subset", "mlp-long", "mlp"):
            alike = other == "mlp-subset"
            yield {
                "gain": found["mlp mcmc"][metric] - found[f"{other} svi"][metric], "inside": inside,
                "images": "the same images" if alike else "all images, which are more",
                "epochs": report.extra["trainings"][other]["epoch"] + 1,
            }  # fmt: skip


claim = partial(h.Claim, needs="default")  # the embedded digits decide none of them
CLAIMS = (
    *(
        claim(
            f"LeNet-5 by SVI: {metric} at least {floor}", metric, h.at_least(floor),
            SOURCE["lenet5 svi"][metric], h.where(method="lenet5 svi"),
        )
        for metric, floor in (("accuracy", 0.985), ("auroc_dirty", 0.95))
    ),
    claim(
        "{name}: {metric} of the moment pass at factor 1 within {bound} of SVI's", "gap",
        h.at_most("bound"), itemgetter("source"), gaps,
    ),
    claim(
        "{name}: logit variance at factor 1 over SVI's, 1 within {error:.2f}: two errors of the "
        "draws (source: needs the factor)",
        "right", h.near(1, "error"), lambda row: SOURCE_FACTOR[row["name"]], factors,
    ),
    claim(
        "{name}: the same with exp(raw) for the variance is ten times too large or more",
        "misread", h.above(10), of=factors,
    ),
    claim(
        "MLP: AUROC of MCMC over that of SVI of {images} ({epochs} epochs) by 0.1 or more, in "
        "domain {inside}", "gain", h.at_least(0.1),
        lambda row: SOURCE["mlp mcmc"]["auroc_dirty"] - SVI_OF_MCMC, gains,
    ),
    claim(
        "MLP by MCMC: R-hat of predictions at most 1.05", "max_rhat", h.at_most(1.05),
        of=lambda report: [report.extra["chains"]],
    ),
)  # fmt: skip

TABLES = (
    h.Listing(
        "methods",
        (
            "method", "accuracy", "accuracy_ambiguous", "nll", "ece", "auroc_dirty", "auroc",
            "auroc_aleatoric", "max_rhat",
        ),
    ),
    h.Listing(
        "calibration factor",
        (
            "network", "reading", "factor", "variance_ratio", "accuracy", "nll", "auroc_dirty",
            "auroc",
        ),
        h.extra("sweep"),
    ),
)  # fmt: skip


def _image(image: np.ndarray, axis: Axes) -> None:
    axis.imshow(image, cmap="gray_r")
    axis.axis("off")


def digits(report: Report) -> Iterator[h.Panel]:
    """Draws ambiguous digits, least to most uncertain."""
    shown = (report.arrays[f"data/{name}"] for name in ("images", "probs"))
    for image, probs in zip(*shown, strict=True):
        likely = np.argsort(probs)[::-1][:2]
        yield h.Panel("\n".join(f"{c}: {probs[c]:.0%}" for c in likely), partial(_image, image))


def _spread(
    title: str, values: Mapping[str, Any], low: float, high: float, **options: Any
) -> h.Panel:
    drawn = h.histograms(values, np.linspace(low, high, 51), **options)
    return h.painted(title, drawn, xlabel="nats", ylabel="density")


def entropies(report: Report) -> Iterator[h.Panel]:
    """Draws how the ensemble's entropies of ambiguous digits are spread."""
    data = report.config["data"]
    values = {part: report.arrays[f"data/{part}"] for part in ("training", "test")}
    ends = data["smallest_entropy"], data["largest_entropy"]
    yield _spread("entropy of the ensemble", values, *ends)


def spread(report: Report) -> Iterator[h.Panel]:
    """Draws uncertainty of the three sets, as Klein's thesis, figure 8.3: a line per method."""
    for method in (f"{name} {way}" for name in PASSES for way in ("svi", "moments")):
        for part in ("total", "aleatoric", "epistemic"):
            values = {d: report.arrays[f"{method}/{d}/{part}"] for d in DOMAINS}
            top = max(float(np.quantile(v, 0.999)) for v in values.values())
            yield _spread(f"{method}: {part}", values, 0, top, log=True)


def scatter(report: Report) -> Iterator[h.Panel]:
    """Draws both kinds of uncertainty of every image, as Klein's thesis, figures 7.11 and 8.4."""
    for row in report.rows:

        def draw(axis: Axes, method: str = row["method"]) -> None:
            for domain, color in DOMAINS.items():
                parts = (f"{method}/{domain}/{part}" for part in ("aleatoric", "epistemic"))
                points = (report.arrays[part][:2000] for part in parts)
                axis.plot(*points, ".", color=color, ms=2, alpha=0.4, label=domain, rasterized=True)

        yield h.painted(
            "{method}: accuracy {accuracy:.1%}, AUROC {auroc_dirty:.3f}".format(**row), draw,
            xlabel="softmax entropy / nats", ylabel="mutual information / nats",
        )  # fmt: skip


def counted(report: Report) -> list[Row]:
    """Selects figures by the number of samples, beside the moment pass."""
    found = figures(report)
    flat = {
        name: {f"{column} of moments": value for column, value in found[f"{name} moments"].items()}
        for name in PASSES
    }
    return [flat[row["network"]] | row for row in report.extra["samples"]]


def swept(report: Report) -> Iterator[Row]:
    """Selects the sweep of factors, beside the sampled network."""
    found = figures(report)
    for row in report.extra["sweep"]:
        yield row | {"of": {"right": "softplus(raw)²", "misread": "exp(raw)"}[row["reading"]]}
        if row["reading"] == "right":
            same = {"network": row["network"], "factor": row["factor"], "variance_ratio": 1.0}
            yield {**found[f"{row['network']} svi"], **same, "of": "SVI"}


def examples(network: str, report: Report) -> Iterator[h.Panel]:
    """Draws an image of each domain: its logits' samples, their Gaussian, and the moment pass."""
    rng = np.random.default_rng(0)
    for domain in DOMAINS:
        place = f"example/{network}/{domain}"
        logits, mean, var = (report.arrays[f"{place}/{of}"] for of in ("sampled", "mean", "var"))
        values = {
            "SVI": logits,
            "its Gaussian": rng.normal(logits.mean(0), logits.std(0), logits.shape),
            "moment pass": rng.normal(mean, np.sqrt(var), logits.shape),
        }
        probabilities = {k: softmax(v, -1) for k, v in values.items()}
        yield h.Panel(domain, partial(_image, report.arrays[f"example/{domain}"]))
        yield h.Panel("logits", partial(_strips, values))
        yield h.Panel("probabilities", partial(_strips, probabilities))


def _strips(values: Mapping[str, np.ndarray], axis: Axes) -> None:
    for i, (label, own) in enumerate(values.items()):
        places = np.broadcast_to(np.arange(own.shape[-1]) + 0.25 * (i - 1), own.shape).ravel()
        axis.plot(places, own.ravel(), ".", ms=2, alpha=0.4, label=label)
    axis.set(xticks=range(own.shape[-1]), xlabel="class")


def _beside_moments(columns: Mapping[str, str], label: str) -> h.Curves:
    moments = {f"{column} of moments": f"{of}, moment pass" for column, of in columns.items()}
    return h.Curves(
        "samples", {**columns, **moments}, counted, facet="{network}", style=".-",
        axes={"xscale": "log", "xlabel": "samples", "ylabel": label},
    )  # fmt: skip


PLOTS = (
    h.Plot("data", digits, columns=8, size=(1, 1.3)),
    h.Plot("entropies", entropies),
    h.Plot("scatter", scatter, columns=3, size=(4.2, 3.6)),
    h.Plot("histograms", spread, columns=3, size=(4, 2.8)),
    h.Plot(  # as Klein's thesis, figure 8.2
        "samples",
        _beside_moments({f"sme_{d}": d for d in DOMAINS}, "mean softmax entropy / nats"),
        _beside_moments({f"mi_{d}": d for d in DOMAINS}, "mean mutual information / nats"),
        _beside_moments({"auroc_dirty": "SVI"}, "AUROC of mutual information"),
        _beside_moments({"accuracy": "SVI"}, "accuracy"),
        columns=len(PASSES), size=(4, 3.2),
    ),
    h.Plot(
        "calibration",
        *(
            h.Curves(
                "factor", column, swept, "{of}", "{network}", style=".-",
                axes={"xscale": "log", "xlabel": "calibration factor", "ylabel": label, **scale},
            )
            for column, label, scale in (
                ("variance_ratio", "logit variance, moments / SVI", {"yscale": "log"}),
                ("auroc_dirty", "AUROC", {}),
                ("accuracy", "accuracy", {}),
                ("nll", "negative log-likelihood / nats", {}),
            )
        ),
        columns=len(PASSES), size=(4, 3.2),
    ),
    *(
        h.Plot(f"examples-{name}", partial(examples, name), columns=3, size=(4.3, 2.6))
        for name in PASSES
    ),
)  # fmt: skip
