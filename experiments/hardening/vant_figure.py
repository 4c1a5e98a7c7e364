"""One picture: the methods compared, matched noise, and how VANT depends on its spread."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.hardening import vant_judging as judging
from experiments.harness import Report, Row
from jaxeff.hardening import ALPHA
from jaxeff.robustness.curves import draw_heatmap


def draw(report: Report) -> dict[str, Figure]:
    """Draws the six panels of the source's two figures."""
    rows, at = report.rows, report.config["levels"]
    figure, axes = plt.subplots(2, 3, figsize=(16, 8.5), layout="constrained")
    (methods, noise, spread), (area, kept, levels) = axes
    _methods(methods, rows, report.config)
    best = judging.ideal(rows, at)
    for sigma in sorted({row["sigma"] for row in judging.chosen(rows, method="noise")}):
        curve = judging.curve(rows, method="noise", sigma=sigma)
        noise.plot(at, curve, ".-", label=f"trained at {sigma:g}")
    noise.plot(at, best, "k--", label="ideal: noise that matches")
    noise.set_title("noisy training", fontsize=10)
    _spread(spread, rows, at)
    for axis, name, title in (
        (area, "rauc", "rAUC of VANT in percent"),
        (kept, "preserved", "accuracy VANT preserves at its level, in percent"),
    ):
        table, ratios, sigmas = judging.heatmap(rows, name)
        draw_heatmap(axis, table, ratios, sigmas)
        axis.set_title(f"{title}, α = {ALPHA:g}", fontsize=10)
        axis.set_xlabel("σ of training")
        axis.set_ylabel("θ / σ")
    compared = judging.comparison(rows)
    trained = [row["sigma"] for row in compared]
    for name, label, style in (
        ("rauc_noise", "noisy training", "o-"), ("rauc_vant", "VANT, θ = 0.4 σ", "o-"),
        ("rauc_best", "VANT, best θ and α", "s--"),
    ):  # fmt: skip
        levels.plot(trained, [row[name] for row in compared], style, label=label)
    levels.set_xlabel("σ of training")
    levels.set_ylabel("rAUC")
    for axis in (methods, noise, spread):
        axis.set_xlabel("noise level σ at inference")
        axis.set_ylabel("accuracy")
    return {"robustness": figure}


def _methods(axis: Axes, rows: Sequence[Row], config: Row) -> None:
    """The best network of every method, by rAUC."""
    for method in dict.fromkeys(row["method"] for row in rows):
        row = max(judging.chosen(rows, method=method), key=lambda row: row["rauc"])
        axis.plot(config["levels"], row["curve"], ".-", label=_name(row))
    axis.set_title(f"{row['network']}, {config['data']}: the best of each method", fontsize=10)


def _spread(axis: Axes, rows: Sequence[Row], at: Sequence[float]) -> None:
    """VANT at the level in the middle, by theta."""
    sigmas = sorted({row["sigma"] for row in judging.chosen(rows, method="vant")})
    sigma = sigmas[len(sigmas) // 2]
    standard = judging.curve(rows, method="noise", sigma=sigma)
    axis.plot(at, standard, "k.--", label="noisy training")
    found = judging.chosen(rows, method="vant", sigma=sigma, seed=0)
    for row in sorted(found, key=lambda row: (row["alpha"], row["theta"])):
        axis.plot(at, row["curve"], ".-", label=_name(row))
    axis.set_title(f"VANT at σ = {sigma:g}", fontsize=10)


def _name(row: Row) -> str:
    settings = {
        "noise": f"σ {row['sigma']:g}",
        "qat": f"{row['bits']} bits",
        "sam": f"ρ {row['rho']:g}",
        "vant": f"σ {row['sigma']:g}, θ {row['theta']:g}, α {row['alpha']:g}",
        "vant-normal": f"σ {row['sigma']:g}, θ {row['theta']:g}, α {row['alpha']:g}",
    }.get(row["method"], "")
    return f"{row['method']} {settings}".strip()
