"""Walking noise: accuracy under noise, layer by layer, of networks trained with it.

    python -m experiments.walking_noise [--fast | --full] [--json PATH] [--results FOLDER]

1. trains networks with additive and multiplicative noise in every slot at once, over its level, and
   fits the midpoint noise level, with and without batch norm;
2. walks the noise through the slots, one at a time: midpoints slot by slot;
3. looks for self-binarization in the slot that survives huge multiplicative noise;
4. mixes both kinds of noise in one slot, in either order;
5. repeats sensitive layers: executions guided by midpoints against uniform ones.

A sweep is one compiled program over all of its levels. Everything can be killed and started again.
``--fast`` runs on the embedded digits, the default on two processor cores in well under an hour,
``--full`` is the source's configuration, for an accelerator. Source: arXiv 2212.10430, T2011-2174.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.report import Report, make_console, show_rows
from experiments.walking_noise import (
    figures,
    findings,
    mechanisms,
    network,
    recipe,
    repetition,
    training,
)
from jaxeff.keys import fast_key

MIDPOINTS = ("case", "kind", "where", "site", "mu", "mu_std", "bracket_low", "bracket_high")
BINARIZATION = (
    "case", "site", "level", "kept", "valley", "valley_least_noise", "low_peak", "high_peak",
    "zero", "accuracy", "accuracy_binarized",
)  # fmt: skip
REPETITION = (
    "case", "sigma", "clean", "uniform", "guided", "guided_by_source", "source_uniform",
    "source_guided",
)  # fmt: skip
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    fast: Annotated[bool, typer.Option("--fast", help="Embedded digits: a minute or two")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="The source's nets, levels, seeds and epochs")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; results/walking_noise.json if unset")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for figures and checkpoints")] = Path(
        "results"
    ),
    only: Annotated[
        list[str] | None,
        typer.Option(help="Part of a sweep's name, such as mlp-mnist; may be repeated"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything")] = 0,
) -> None:
    """Measure what noise networks tolerate, where, and how they learn to."""
    if fast and full:
        raise typer.BadParameter("--fast and --full exclude each other.")
    console = make_console()
    settings = recipe.fast() if fast else recipe.full() if full else recipe.default()
    name = "walking_noise" if settings.size == "default" else f"walking_noise-{settings.size}"
    wanted = [s for s in settings.sweeps if not only or any(part in s.name for part in only)]
    tables = [r for r in settings.repetitions if not only or any(p in r.case.name for p in only)]
    if not wanted and not tables:
        names = ", ".join(s.name for s in settings.sweeps)
        raise typer.BadParameter(f"--only {only} matches no sweep. There are: {names}.")
    console.rule(f"{name}: {len(wanted)} sweeps")
    key = fast_key(seed)
    folder = results / name

    rows: list[dict[str, Any]] = []
    looks: list[mechanisms.Binarization] = []
    binarized: list[dict[str, Any]] = []
    cases = list(dict.fromkeys([s.case for s in wanted] + [r.case for r in tables]))
    repeated = []
    for case in cases:
        images = network.load(case, settings)
        net = network.build(case, images.shape)
        for plan in (s for s in wanted if s.case == case):
            found, result = training.run(key, plan, net, images, settings, folder)
            diverged = sum(row["diverged"] for row in found)
            console.print(f"{plan.name}: {len(found)} trainings, {diverged} diverged")
            rows += found
            if (plan.kind, plan.where, case.batch_norm) == ("mul", "layers", True):
                slots, look = mechanisms.binarization(key, plan, net, images, found, result)
                binarized += slots
                looks += [look] if look else []
        for table in (r for r in tables if r.case == case):
            repeated.append(repetition.run(key, table, net, images, settings, folder))
            console.print(f"{case.name}: guided repetition")

    fits = findings.midpoints(rows)
    report = Report("walking_noise", {"size": settings.size, "seed": seed, "only": only}, rows)
    described = [{**curve._asdict(), **fit.record()} for curve, fit in fits.items()]
    report.extra = {"midpoints": described, "binarization": binarized, "repetition": repeated}
    findings.check(report, rows, fits, repeated)
    findings.check_binarization(report, binarized)
    path = report.save(json or results / f"{name}.json")
    mixed = [s for s in wanted if s.kind in findings.ORDERS]
    pictures = figures.draw_all(rows, fits, looks, mixed, folder)

    for title, table_rows, columns in (
        ("midpoints", described, MIDPOINTS),
        ("self-binarization", binarized, BINARIZATION),
        ("repetition (accuracy)", repeated, REPETITION),
    ):
        show_rows(console, title, table_rows, columns)
    report.show_checks(console)
    none = sum(not fit.found for fit in fits.values())
    console.print(f"{none} of {len(fits)} curves have no midpoint; the JSON says why.")
    console.print(f"[bold]{path}[/bold]", *pictures)


if __name__ == "__main__":
    app()
