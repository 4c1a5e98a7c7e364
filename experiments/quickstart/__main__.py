"""The main job, end to end: a trained LeNet-5 that knows what it doesn't know, on an ARM processor.

    python -m experiments.quickstart [--data mnist|digits] [--fast] [--json PATH]

1. trains LeNet-5, once as a point estimate and once by stochastic variational inference (SVI);
2. turns the posterior into a network that propagates means and variances in a single pass;
3. exports and compiles both, and SVI with 30 drawn weights, for this machine and an ARM Cortex-A72;
4. checks every compiled version against JAX, the ARM ones on an emulated processor;
5. reports accuracy, likelihood, calibration, out-of-domain detection and latency.

Training can be killed and started again: it goes on from its last epoch. Source: the probabilistic
forward pass, arXiv 2511.23440.
"""

from pathlib import Path
from typing import Annotated

import jax
import typer

from experiments.quickstart import compiled, evaluation, figure, latency, recipe, training
from experiments.report import Report, make_console, show_rows

COLUMNS = ("method", "accuracy", "nll", "ece", "auroc", "latency_ms", "max_abs_error")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    data: Annotated[
        str, typer.Option(help="mnist (needs JAXEFF_DATA) or digits (embedded); auto prefers mnist")
    ] = "auto",
    fast: Annotated[
        bool, typer.Option("--fast", help="A minute or two: few epochs, few test images")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; results/quickstart-DATA.json if unset")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for figures and checkpoints")] = Path(
        "results"
    ),
    seed: Annotated[int, typer.Option(help="Seed of training and sampling")] = 0,
    resume: Annotated[
        bool, typer.Option(help="Go on from an interrupted run's checkpoints")
    ] = True,
    arm: Annotated[
        bool, typer.Option(help="Compile for a Cortex-A72 and check it under emulation")
    ] = True,
) -> None:
    """Train, propagate, compile, check and compare: the whole road in one command."""
    console = make_console()
    settings = recipe.choose(data, fast)
    name = f"quickstart-{settings.data}{'-fast' if fast else ''}"
    key = jax.random.key(seed)
    console.rule(f"quickstart: LeNet-5 on {settings.data}")

    sets = recipe.load(settings)
    console.print(
        f"{len(sets.train_labels):,} training images, {len(sets.test_labels):,} test images, "
        f"{len(sets.ood_images):,} out-of-domain images ({settings.ood})"
    )
    models = training.train(key, settings, sets, results / name, resume, console)
    outcome = evaluation.evaluate(key, settings, sets, models)
    libraries = compiled.compile_all(key, settings, sets, models, arm, console)
    compiled.measure(key, settings, sets, models, libraries, outcome, console)
    timings = latency.measure(key, settings, sets, models, libraries, console)
    for method, timing in timings.items():
        outcome.methods.setdefault(method, {}).update(
            latency_ms=timing["ms"], latency_spread_ms=timing["spread"]
        )

    report = Report("quickstart", {**settings.as_dict(), "seed": seed})
    report.rows = [{"method": m, **values} for m, values in outcome.methods.items()]
    report.extra = {"dataset": settings.data, "methods": outcome.methods}
    evaluation.check(report, outcome, settings)
    path = report.save(json or results / f"{name}.json")
    picture = figure.draw(outcome, settings, results / f"{name}.png")

    show_rows(console, f"LeNet-5 on {settings.data}, batch {settings.batch}", report.rows, COLUMNS)
    report.show_checks(console)
    console.print(f"[bold]{path}[/bold], [bold]{picture}[/bold]")


if __name__ == "__main__":
    app()
