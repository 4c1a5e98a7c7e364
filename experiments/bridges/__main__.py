"""Bridges between inference methods: what MCMC and SVI can do for each other.

    python -m experiments.bridges [--fast] [--json PATH]

The source proposes them and has no numbers (T5166-5169: "high-quality MCMC posteriors can serve as
a teacher model to regularize or initialize SVI, priors learned by SVI can accelerate MCMC"). On two
moons and the noisy sine, with the long NUTS run as reference:

- MCMC with a short warm-up that starts at draws from the prior, around trained weights, or at draws
  from an SVI posterior: R-hat and effective samples, per gradient and per second;
- SVI that starts at trained weights, at the moments of MCMC's draws or around the best of them;
- MCMC distilled into an SVI posterior: by the cross-entropy to its mean prediction, or by the
  energy score between predictions draw by draw.

Runs are kept beside the JSON: one that was killed goes on where it stopped.
"""

import shutil
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from experiments.bridges import figure, problems
from experiments.bridges.methods import Comparison
from experiments.bridges.recipe import FAST, FULL
from experiments.report import Report, make_console, show_rows
from jaxeff.bayes import CollapseWarning, ConvergenceWarning

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
QUALITY = ("method", "nll", "auroc", "epistemic_outside", "distance_to_mcmc", "loss")
SAMPLING = ("method", "rhat", "ess", "gradients", "ess_per_1000_gradients", "ess_per_second")


@app.command()
def main(
    fast: Annotated[bool, typer.Option("--fast", help="Small networks and short runs")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; results/bridges.json if unset")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for the figure")] = Path("results"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Run everything again")] = False,
) -> None:
    """Compare what each method gains from another."""
    console = make_console()
    settings = FAST if fast else FULL
    name = f"bridges{'-fast' if fast else ''}"
    path = json or results / f"{name}.json"
    kept = path.with_suffix(".runs")
    if fresh:
        shutil.rmtree(kept, ignore_errors=True)
    # Collapsed and short runs are among what is compared; the tables show them.
    warnings.simplefilter("ignore", CollapseWarning)
    warnings.simplefilter("ignore", ConvergenceWarning)

    report = Report("bridges", settings.as_dict())
    comparisons = []
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("", total=None)

        def started(problem: str, method: str) -> None:
            progress.update(bar, description=f"{problem}: {method}")

        for make in (problems.moons, problems.sine):
            comparison = Comparison(make(settings), settings, kept, started)
            comparison.run()
            comparisons.append(comparison)
            report.rows += comparison.rows
    judge(report)
    report.save(path)
    picture = figure.draw(comparisons, results / name / "epistemic.png")

    for comparison in comparisons:
        title = comparison.problem.name
        show_rows(console, f"{title}: predictions", comparison.rows, QUALITY)
        sampled = [row for row in comparison.rows if "rhat" in row]
        show_rows(console, f"{title}: samplers", sampled, SAMPLING)
    report.show_checks(console)
    console.print(f"[bold]{path}[/bold], [bold]{picture}[/bold]")


def judge(report: Report) -> None:
    """Hold the bridges to what they are for; the source has no numbers."""
    by_name = {(row["problem"], row["method"]): row for row in report.rows}
    for problem in ("moons", "sine"):
        reference = by_name[problem, "mcmc"]
        usual, kept = (
            by_name[problem, f"distilled: {how}"] for how in ("mean", "draws, mean_field")
        )
        share = kept["epistemic_outside"] / reference["epistemic_outside"]
        report.check(
            f"{problem}: distilling draws keeps epistemic uncertainty", None, share, share > 0.5
        )
        share = usual["epistemic_outside"] / reference["epistemic_outside"]
        report.check(f"{problem}: distilling the mean loses it", None, share, share < 0.5)
        closer = kept["distance_to_mcmc"] / by_name[problem, "svi"]["distance_to_mcmc"]
        report.check(f"{problem}: distance to MCMC, distilled over SVI", None, closer, closer < 1)


if __name__ == "__main__":
    app()
