"""Bayesian networks that meet truly ambiguous digits: MCMC, SVI and the moment pass on Dirty-MNIST.

    python -m experiments.dirty_mnist [--fast] [--json PATH] [--results FOLDER]

1. builds Dirty-MNIST, or reads it from its cache;
2. trains an MLP (784-100-10) and LeNet-5 by SVI, and samples the MLP by Hamiltonian Monte Carlo;
3. tells clean digits, ambiguous digits and Fashion-MNIST apart by softmax entropy (aleatoric) and
   mutual information (epistemic), for each of them and for the moment pass;
4. sweeps the moment pass' calibration factor, to measure what it should be and find out where the
   source's 0.3 and 0.4 come from;
5. varies the number of samples of SVI.

``--fast`` does it with the embedded digits. Training and chains can be killed and started again.
Source: chapters 5 and 6 of the dissertation; arXiv 2511.23440.
"""

from pathlib import Path
from typing import Annotated

import jax
import typer

from experiments.dirty_mnist import recipe, study
from experiments.report import make_console, show_rows

COLUMNS = (
    "method", "accuracy", "accuracy_ambiguous", "nll", "ece", "auroc", "auroc_dirty",
    "auroc_aleatoric", "max_rhat",
)  # fmt: skip
SWEEP = (
    "network", "reading", "factor", "variance_ratio", "accuracy", "nll", "auroc", "auroc_dirty"
)  # fmt: skip
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    fast: Annotated[
        bool, typer.Option("--fast", help="Embedded digits, few epochs: a minute or two")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; results/dirty_mnist.json if unset")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for figures and checkpoints")] = Path(
        "results"
    ),
    cache: Annotated[
        Path | None, typer.Option(help="Folder of the data set; the user's cache if unset")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of training and sampling")] = 0,
    resume: Annotated[
        bool, typer.Option(help="Go on from an interrupted run's checkpoints")
    ] = True,
) -> None:
    """Compare MCMC, SVI and the moment pass on Dirty-MNIST."""
    console = make_console()
    settings = recipe.FAST if fast else recipe.Settings()
    name = f"dirty_mnist{'-fast' if fast else ''}"
    console.rule(name)
    sets = recipe.load(settings, cache, console.print)
    key = jax.random.key(seed)
    found = study.run(key, settings, sets, results / name, resume, console)
    report = study.report(found, settings, seed)
    path = report.save(json or results / f"{name}.json")
    pictures = study.draw(found, settings, sets, results / name)

    show_rows(console, "methods", report.rows, COLUMNS)
    show_rows(console, "calibration factor", report.extra["sweep"], SWEEP)
    report.show_checks(console)
    console.print(f"[bold]{path}[/bold]", *pictures)


if __name__ == "__main__":
    app()
