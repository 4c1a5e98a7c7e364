"""Variance-aware noisy training (VANT): robustness to noise whose level drifts.

    python -m experiments.vant [--fast | --full] [--network NAME] [--json PATH]

1. noisy training at several levels: the envelope of the curves is the ideal, where training and
   inference noise match;
2. VANT over the spread theta and the calibration alpha, in both published forms: rAUC and preserved
   accuracy;
3. baselines: no hardening, quantization-aware training, adaptive SAM.

Noise is additive, Gaussian, at every slot. LeNet-5 with batch norm stands in for the source's
ResNet-18, which has it too: under other noise than in training the running statistics are wrong,
and accuracy peaks at the trained level. `--network lenet5` shows what is left of that without.

Trainings of a kind are one compiled sweep. Finished networks are kept, so is the running one by the
epoch: a run that was killed goes on. Source: T2352-2474, arXiv 2503.16183.
"""

from pathlib import Path
from typing import Annotated

import typer

from experiments.hardening import networks, training
from experiments.report import make_console, show_rows
from experiments.trainable import load_images
from experiments.vant import figure, judging, recipe

DIFFERENCES = (
    "the source trains ResNet-18 for 400 epochs; `config` and the rows say what was run here",
    "noise grows during the first part of every noisy training (the source's: a quarter of it)",
    "the spread is given relative to the level, where the source's heatmaps have absolute ones",
    "the ideal is interpolated between the levels that were trained at",
    "a dynamic scale (QAT) is a moving average over batches that stays fixed at evaluation",
)
COLUMNS = (
    "method", "bits", "rho", "sigma", "theta", "alpha", "peak", "rauc", "preserved", "diverged",
)  # fmt: skip
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    fast: Annotated[bool, typer.Option("--fast", help="A minute or two, on digits")] = False,
    full: Annotated[bool, typer.Option("--full", help="As the source, on an accelerator")] = False,
    network: Annotated[
        str | None,
        typer.Option(help="lenet5-bn, lenet5, vgg11 or resnet18, not with --fast"),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; results/vant-NETWORK.json if unset")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for figures and finished networks")] = Path(
        "results"
    ),
    seed: Annotated[int, typer.Option(help="Seed of everything")] = 0,
) -> None:
    """Train with fixed and with varying noise, test over noise levels, compare."""
    if fast and full:
        raise typer.BadParameter("--fast and --full exclude each other.")
    console = make_console()
    if network not in (None, *networks.NAMES):
        raise typer.BadParameter(f"{network!r}: choose {', '.join(networks.NAMES)}")
    study = recipe.choose(fast, full, network)
    size = study.size
    name = f"vant-{study.network}{'' if size.name == 'default' else '-' + size.name}"
    images = load_images(size.data, size.images, size.test_images)
    rows = training.run_all(console, seed, study.families, images, size, results / name)
    judging.add_robustness(rows, size.levels)

    config = {**size.as_dict(), "network": study.network, "seed": seed}
    comparison = judging.comparison(rows)
    extra = {
        "ideal": judging.ideal(rows, size.levels),
        "tables": {"comparison": comparison},
        "differences": list(DIFFERENCES),
    }
    report = training.report("vant", config, rows, extra)
    judging.check(report, rows, size)
    path = report.save(json or results / f"{name}.json")
    picture = figure.draw(rows, size, results / f"{name}.png")

    show_rows(console, "all networks", report.rows, COLUMNS)
    show_rows(console, "rAUC of noisy training and of VANT", comparison)
    report.show_checks(console)
    for difference in DIFFERENCES:
        console.print(f"- {difference}")
    console.print(f"[bold]{path}[/bold], [bold]{picture}[/bold]")


if __name__ == "__main__":
    app()
