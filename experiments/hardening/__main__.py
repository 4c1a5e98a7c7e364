"""Quantization-aware and noisy training as ways to harden a network, alone and combined.

    python -m experiments.hardening [--fast | --full] [--json PATH]

1. quantization-aware training without noise, by bit width and scale of the activations: accuracy
   without noise against the midpoint noise level (T2226-2257);
2. noisy training at several levels: accuracy where training and inference noise match, and its
   midpoint beside that of a network trained without noise (T2265-2283);
3. both combined.

Noise is additive, Gaussian, fresh for every element, at every slot of the source's accounting. All
levels and scales of a kind are one compiled sweep. Finished networks are kept, so is the running
one by the epoch: a run that was killed goes on. Source: T2176-2349, arXiv 2501.14531.
"""

from pathlib import Path
from typing import Annotated

import typer

from experiments.hardening import figure, judging, networks, recipe, training
from experiments.report import make_console, show_rows
from experiments.trainable import load_images

DIFFERENCES = (
    "the source trains 500 epochs on 50,000 images; `config` says what was run here",
    "the noise of our short noisy trainings grows during half of the training (incremental noise, "
    "which the source uses for VGG-11 alone): from scratch they would hardly start to learn",
    "midpoints are those of a logistic of the level's logarithm, the source's of the level itself",
    "VGG-11 (full size) is trained without dropout",
    "with a constant scale, gradients pass where activations are clamped (straight-through)",
    "a dynamic scale is a moving average over batches that stays fixed at evaluation",
    "weights of all layers but the last have a range per output channel, dense ones too",
)
TABLES = {
    "quantization": ("network", "bits", "scaling", "peak", "source_peak", "mu", "source_mu"),
    "architectures": ("network", "property", "ours", "source"),
    "matched": ("network", "scaling", "bits", "scale", "peak", "mu", "mu_std", "message"),
}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    fast: Annotated[bool, typer.Option("--fast", help="A minute or two, on digits")] = False,
    full: Annotated[bool, typer.Option("--full", help="As the source, on an accelerator")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; results/hardening.json if unset")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for figures and finished networks")] = Path(
        "results"
    ),
    seed: Annotated[int, typer.Option(help="Seed of everything")] = 0,
) -> None:
    """Train by every method, test under noise, compare."""
    if fast and full:
        raise typer.BadParameter("--fast and --full exclude each other.")
    console = make_console()
    study = recipe.choose(fast, full)
    size = study.size
    name = f"hardening{'' if size.name == 'default' else '-' + size.name}"
    images = load_images(size.data, size.images, size.test_images)
    rows = training.run_all(console, seed, study.families, images, size, results / name)
    judging.add_midpoints(rows, size.levels)
    matched = judging.matched_curves(rows, size.levels)
    tables = {
        "quantization": judging.quantization_table(rows),
        "architectures": judging.architecture_table(
            rows, matched, lambda network: networks.build(network, images.shape)
        ),
        "matched": matched,
    }
    config = {**size.as_dict(), "seed": seed}
    extra = {"tables": tables, "differences": list(DIFFERENCES)}
    report = training.report("hardening", config, rows, extra)
    judging.check(report, rows, matched)
    path = report.save(json or results / f"{name}.json")
    picture = figure.draw(rows, matched, size, results / f"{name}.png")

    for title, columns in TABLES.items():
        show_rows(console, title, tables[title], columns)
    report.show_checks(console)
    for difference in DIFFERENCES:
        console.print(f"- {difference}")
    console.print(f"[bold]{path}[/bold], [bold]{picture}[/bold]")


if __name__ == "__main__":
    app()
