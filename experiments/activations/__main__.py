"""What the activation function does to the uncertainty of a Bayesian network.

    python -m experiments.activations [--task sine|moons|all] [--fast] [--json PATH]

1. noisy sine: 27 activation functions, and a learned one, by NUTS in an MLP 2 x 50 with an
   aleatoric head: errors of the prediction and of the predicted noise, correlation of epistemic
   uncertainty with the sparsity of the data (EUC), and whether it tells gaps from regimes (AUROC);
   twice, with chains that start at trained networks and at draws of the prior, since where a
   posterior has several modes the start decides what is found;
2. two moons: ten of them, and the learned one, by NUTS and by SVI: accuracy, and whether mutual
   information tells what is far from the data.

All activation functions of a task run in one compiled sampler. R-hat is that of the predictions;
what has not converged is marked. Finished networks and all chains are kept: a run that was killed
goes on where it stopped, and one with more `--samples` where the chains ended. Source: T3024-3061,
T3250-3259.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from experiments.activations import figure, judging, network, recipe, trials
from experiments.activations.recipe import Settings, Trial
from experiments.activations.store import Outcome, Store
from experiments.report import Report, make_console, show_rows

TASKS = ("sine", "moons", "all")
MIXING = ("rhat_max", "rhat_share", "ess_min", "ess_median", "divergences", "converged", "seconds")


def _beside(*names: str) -> tuple[str, ...]:
    """Our column and the source's, for each."""
    return tuple(column for name in names for column in (name, f"source_{name}"))


SINE_COLUMNS = (
    ("activation", *_beside("mse_prediction", "mse_aleatoric")),
    ("activation", *_beside("euc", "auroc"), "converged"),
    ("activation", "auroc", *MIXING),
)
COLUMNS = {
    "sine-nuts": SINE_COLUMNS,
    "sine-nuts-prior": SINE_COLUMNS,
    "moons-nuts": (
        ("activation", *_beside("accuracy", "auroc"), "converged"),
        ("activation", "auroc", *MIXING),
    ),
    "moons-svi": (("activation", *_beside("accuracy", "auroc"), "seconds"),),
}
DIFFERENCES = (
    "the source gives neither regimes, gaps, counts nor the evaluation grid of the noisy sine, nor "
    "the size, noise and out-of-domain quantile of the moons; ours are in `config`",
    "its prior is not given; ours, the same for all, has standard deviation 1 for biases, 1.4 for "
    "the first layer's weights and 0.5 (sine, inputs standardised) or 1 (moons) for the others'",
    "ours runs fewer iterations than its 1000 + 1000 (sine) and 2000 + 2000 (moons), with four "
    "chains and a limit on the depth of trajectories; see `config`",
    "where its chains start is not said; ours start at networks trained from draws of the prior, "
    "in the table 'sine-nuts-prior' at the draws themselves",
    "its RReLU draws a slope per call; ours is the mean slope, since a likelihood needs a function",
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    task: Annotated[str, typer.Option(help="sine, moons or all")] = "all",
    fast: Annotated[
        bool, typer.Option("--fast", help="A few activation functions, short chains")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; results/activations.json if unset")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for figures and finished networks")] = Path(
        "results"
    ),
    activation: Annotated[
        list[str] | None, typer.Option(help="Only these; may be repeated")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Draws of each NUTS chain; finished chains go on where they ended", min=4
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of data and inference")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Infer everything again")] = False,
) -> None:
    """Infer networks that differ in nothing but their activation function, and compare."""
    console = make_console()
    name = f"activations{'-fast' if fast else ''}"
    settings = recipe.choose(fast, seed, samples)
    plan = _plan(settings, task, activation)
    store = Store(results / name, settings)
    if fresh:
        store.forget()
    console.rule(f"activations: {len(plan)} Bayesian networks")

    outcomes = infer(plan, settings, store, console)
    report = Report("activations", settings.as_dict() | {"hidden": network.HIDDEN})
    report.rows = [outcome.row for outcome in outcomes.values()]
    judging.judge(report)
    tables = {
        table: {t.activation: o for t, o in outcomes.items() if o.row["table"] == table}
        for table in COLUMNS
    }
    comparisons = _comparisons(tables)
    report.extra = {"rankings": comparisons, "differences": list(DIFFERENCES)}
    path = report.save(json or results / f"{name}.json")
    pictures = figure.draw(tables, settings, results / name)

    for table, of_table in tables.items():
        rows = sorted((o.row for o in of_table.values()), key=lambda row: -row["auroc"])
        for columns in COLUMNS[table] if rows else ():
            show_rows(console, table, rows, columns)
    show_rows(
        console,
        "rank correlation with the source",
        [{k: v for k, v in each.items() if k != "ranking"} for each in comparisons],
    )
    report.show_checks(console)
    for difference in DIFFERENCES:
        console.print(f"- {difference}")
    console.print(*(f"[bold]{p}[/bold]" for p in (path, *pictures)), sep=", ")


def infer(
    plan: list[Trial], settings: Settings, store: Store, console: Console
) -> dict[Trial, Outcome]:
    """The outcomes of every trial, those that were kept from an earlier run as they are.

    Args:
        plan: The trials.
        settings: Of the study.
        store: Where they are kept.
        console: Where progress goes.
    """
    outcomes = {trial: found for trial in plan if (found := store.load(trial)) is not None}
    todo = [trial for trial in plan if trial not in outcomes]
    if outcomes:
        console.print(f"{len(outcomes)} of {len(plan)} networks were inferred before")
    columns = (MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*Progress.get_default_columns()[:2], *columns, console=console) as progress:
        bar = progress.add_task("starting", total=len(todo))
        for trial in todo:
            progress.update(bar, description=str(trial))
            outcomes[trial] = trials.run(trial, settings, store)
            store.save(trial, outcomes[trial])
            progress.advance(bar)
            progress.console.print(f"{trial}: {_line(outcomes[trial].row)}")
    return {trial: outcomes[trial] for trial in plan}


def _plan(settings: Settings, task: str, names: list[str] | None) -> list[Trial]:
    if task not in TASKS:
        raise typer.BadParameter(f"no task {task!r}: choose {', '.join(TASKS)}")
    plan = settings.plan(task)
    known = dict.fromkeys(trial.activation for trial in plan)
    for name in names or ():
        if name not in known:
            raise typer.BadParameter(f"no activation {name!r} here: choose {', '.join(known)}")
    return [trial for trial in plan if not names or trial.activation in names]


def _comparisons(tables: dict[str, dict[str, Outcome]]) -> list[dict[str, Any]]:
    sine = ("auroc", "euc", "mse_prediction", "mse_aleatoric")
    compared = {
        "sine-nuts": sine,
        "sine-nuts-prior": sine,
        "moons-nuts": ("auroc", "accuracy"),
        "moons-svi": ("auroc", "accuracy"),
    }
    return [
        {"table": table, **judging.compare([o.row for o in tables[table].values()], quantity)}
        for table, quantities in compared.items()
        if tables[table]
        for quantity in quantities
    ]


def _line(row: dict[str, Any]) -> str:
    shown = {k: row[k] for k in ("auroc", "source_auroc", "rhat_max", "seconds") if k in row}
    return ", ".join(f"{name} {value:.3f}" for name, value in shown.items())


if __name__ == "__main__":
    app()
