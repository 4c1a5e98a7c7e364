"""Cheap sensitivity measures against walking noise: do they rank a network's layers alike?

    python -m experiments.sensitivity [--fast | --full] [--walking PATH] [--json PATH]

Walking noise trains a network per slot, level and seed. The source calls for something cheaper and
proposes two (T5154-5160), which it doesn't try. Measured here, for networks trained without noise:

1. divergence: the noise level at which a slot alone moves the predictions by one bit;
2. a budget of noise spread over the slots by gradient, of the trained network;
3. the same along with the weights, in one training from scratch;
4. for comparison, noise that walks at evaluation only;

and Spearman's correlation of each with the midpoints of walking noise, and with (4), which sees the
same trained network: the difference is what networks learn from noise. Walking noise is read from
the JSON of `experiments.walking_noise`, or trained here: the same sweeps, which that study finds
finished in the same results folder, and the other way round. Killed, a run goes on where it was.
"""

from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console

from experiments.kept import Kept
from experiments.report import Report, make_console, show_rows
from experiments.sensitivity import figure, judging, measures, recipe, reference
from experiments.walking_noise import network
from experiments.walking_noise.recipe import Sweep
from jaxeff.keys import fast_key

COLUMNS = (
    "case", "measure", "spearman", "spearman_evaluation", "between_seeds", "most_sensitive",
    "updates", "seconds",
)  # fmt: skip
DIFFERENCES = [
    "The source proposes the measures without trying them: there is no number to compare with.",
    "Except at full size, networks are trained for fewer epochs, levels and seeds than the "
    "source's walking noise; every row names its size.",
    "Additive noise only: under multiplicative noise layers learn to binarize, which no measure of "
    "a network trained without noise can foresee.",
]
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    fast: Annotated[bool, typer.Option("--fast", help="Embedded digits: a minute or two")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="The source's networks, epochs and seeds")
    ] = False,
    walking: Annotated[
        Path | None, typer.Option(help="JSON of the walking-noise study to take midpoints from")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; results/sensitivity.json if unset")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for figures and checkpoints")] = Path(
        "results"
    ),
    only: Annotated[
        list[str] | None, typer.Option(help="A network, such as mlp-mnist-bn; may be repeated")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything")] = 0,
) -> None:
    """Compare cheap sensitivity measures with walking noise."""
    if fast and full:
        raise typer.BadParameter("--fast and --full exclude each other.")
    console = make_console()
    settings = recipe.fast() if fast else recipe.full() if full else recipe.default()
    name = "sensitivity" if settings.size == "default" else f"sensitivity-{settings.size}"
    chosen = [p for p in settings.problems if not only or p.case.name in only]
    if not chosen:
        names = ", ".join(p.case.name for p in settings.problems)
        raise typer.BadParameter(f"--only {only} is no network. There are: {names}.")
    console.rule(name)
    key = fast_key(seed)
    kept = Kept(results / name / f"rows-{seed}.jsonl")

    rows: list[dict[str, Any]] = []
    for problem in chosen:
        found = measure(key, problem, settings, walking, results / name, kept, console)
        rows += [{"case": problem.case.name, **r, "size": settings.size} for r in found]
    table = judging.compare(rows, settings.size)
    report = Report("sensitivity", {"size": settings.size, "seed": seed, "only": only}, table)
    report.extra = {"slots": [judging.plain(r) for r in rows], "differences": DIFFERENCES}
    judging.check(report, table)
    path = report.save(json or results / f"{name}.json")
    picture = figure.draw(rows, results / f"{name}.png")

    show_rows(console, "ranking of slots against walking noise", table, COLUMNS)
    report.show_checks(console)
    console.print(f"[bold]{path}[/bold], [bold]{picture}[/bold]")


def measure(
    key: jax.Array,
    problem: Sweep,
    settings: recipe.Settings,
    walking: Path | None,
    folder: Path,
    kept: Kept,
    console: Console,
) -> list[dict[str, Any]]:
    """All measures of a problem, slot by slot."""
    case = problem.case
    images = network.load(case, settings.training)
    net = network.build(case, images.train[0].shape[1:])
    subject = measures.Subject(problem, net, images, settings, folder)
    rows = reference.read(walking, problem, net) if walking else []
    number = settings.training.images
    task = [problem.name, problem.epochs, problem.seeds, problem.levels.tolist(), number]
    if not rows:
        walk = [*task, "walking"]
        if walk not in kept:
            shared = folder.parent / folder.name.replace("sensitivity", "walking_noise")
            kept.add(walk, reference.walk(key, subject, shared))
        rows = kept[walk]
    console.print(f"{case.name}: walking noise in {len(net.slots)} slots")
    clean = reference.train_clean(key, subject)
    for i in range(settings.seeds):
        sizes = [settings.inputs, settings.draws, settings.budget_epochs, measures.BUDGET]
        part = [*task, *sizes, i]
        if part not in kept:
            model = measures.take((clean.params, clean.state or {}), i)
            kept.add(part, measures.measure_all(jax.random.fold_in(key, i), subject, model, i))
        rows = rows + kept[part]
        console.print(f"{case.name}: cheap measures of network {i + 1} of {settings.seeds}")
    return rows


if __name__ == "__main__":
    app()
