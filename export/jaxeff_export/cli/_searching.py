"""``search`` and ``tune``: smaller networks for a share of the time, and faster schedules."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from jaxeff_export.cli import _terminal as terminal

_MOST = 256  # images that ranges of activations are measured on


# 12 parameters: the options of a command are read off its function.
def search(
    model: Annotated[
        str,
        typer.Argument(
            help="MODULE:FUNCTION; the function returns (f, (parameters, inputs, labels)) with "
            "f(parameters, inputs) giving logits."
        ),
    ],
    bundle: Annotated[Path, typer.Argument(help="The folder of the compressed model's bundle.")],
    share: Annotated[float, typer.Option(help="Share of the time that is asked for.")] = 0.3,
    of: Annotated[str, typer.Option(help="pruning, quantization or both.")] = "both",
    episodes: Annotated[int, typer.Option(min=1, help="Candidates that are tried.")] = 60,
    steps: Annotated[int, typer.Option(min=0, help="Updates of every candidate.")] = 20,
    epochs: Annotated[int, typer.Option(min=0, help="Of the result's training.")] = 5,
    round_to: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Channels are multiples of it; by default what the target's "
            "kernels take at a time.",
        ),
    ] = None,
    target: Annotated[str, typer.Option(help="Whom to compile for.")] = "host",
    board: terminal.BoardName = "local",
    folder: Annotated[
        Path | None,
        typer.Option(help="Where episodes and kernels are kept: a search goes on from there."),
    ] = None,
    seed: terminal.Seed = 0,
) -> None:
    """Compress a trained classifier to a share of its time, and compile what was found.

    Channels and bits of every layer are searched for, by what every candidate's kernels take on the
    board; what is found is measured from end to end and moved to the share, trained on, converted
    to integer codes and compiled.
    """
    try:
        with terminal.failures_in_one_line():
            place = SearchPlace(target, board, folder)
            # All that can be wrong is found before hours of searching.
            _require_searchable(bundle, place, share)
            classifier = _classifier(model)
            tried = {"target": share, "episodes": episodes, "steps": steps}
            searched, key, size = _searched(seed, classifier, place, of, round_to, tried)
            terminal.console.print(str(searched.table), markup=False, highlight=False)
            small, data = searched.smaller, classifier[1][1:]
            # Trained on only now: candidates are compared after a few updates each.
            if epochs:
                small = small.retrained(key, data, epochs=epochs, batch_size=size)
            _deploy_in_integers(small, data[0], target, bundle)
    except KeyboardInterrupt:
        kept = f"what was measured is in {folder}" if folder else "nothing was kept (--folder)"
        terminal.complain(f"stopped; {kept}")
        # 128 + 2, the number of the signal, as shells have it.
        raise typer.Exit(code=130) from None
    terminal.console.print(f"{bundle} holds the compressed model", markup=False)


class SearchPlace(NamedTuple):
    """Where candidates are measured, and kept.

    Attributes:
        target: whom to compile for.
        board: board to measure on.
        folder: where episodes and kernels are kept; None for nowhere.
    """

    target: str
    board: str
    folder: Path | None


def _require_searchable(bundle: Path, place: SearchPlace, share: float) -> None:
    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff_export.artifact import SignatureError
    from jaxeff_export.boards import make_board
    from jaxeff_export.targets import resolve_target

    _require_place(bundle, place.folder)
    resolve_target(place.target)
    make_board(place.board)
    if not 0 < share <= 1:
        raise SignatureError(f"--share {share:g} is no share of the time: above 0, 1 at most")


def _searched(
    seed: int,
    classifier: tuple[Callable[..., Any], tuple[Any, Any, Any]],
    place: SearchPlace,
    of: str,
    round_to: int | None,
    tried: Mapping[str, Any],
) -> tuple[Any, Any, int]:
    """Searches for the policy of a classifier; with it come a key for its training, and a batch.

    `tried` has the share of the time, the episodes and the steps of each.
    """
    import jax

    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff.search import Actions, Knapsack, LatencyError, Refinement
    from jaxeff.search import search as search_policies
    from jaxeff.store import CheckpointError
    from jaxeff_export.artifact import SignatureError
    from jaxeff_export.boards import BoardError
    from jaxeff_export.latency import channel_multiple, measured_latency, table_latency

    target, board, folder = place
    f, (params, x, labels) = classifier
    # At least five batches, so that the updates of a candidate see different ones.
    key, size = jax.random.key(seed), max(1, min(128, len(x) // 5))
    kernels = None if folder is None else folder / "kernels"
    round_to = round_to or channel_multiple(target)
    # Kernels are measured at these widths alone; what lies between counts as the next one.
    nodes = [round_to * 2**i for i in range(8)]
    try:
        searched = search_policies(
            key, f, params, (x, labels), agent=Knapsack(),
            # A table of kernels ranks candidates quickly; the result alone is measured end to end.
            latency=table_latency(x[:1], target=target, board=board, folder=kernels, nodes=nodes),
            actions=Actions(of, round_to), batch_size=size,
            refinement=Refinement(measured_latency(x[:1], target=target, boards=board)),
            folder=folder, **tried,
        )  # fmt: skip
    # Errors of jaxeff itself are defects to the terminal; here they are about what was given.
    except (ValueError, CheckpointError) as error:
        raise SignatureError(str(error)) from error
    except LatencyError as error:
        raise BoardError(str(error)) from error
    # Another key for the training: the search has used this one.
    return searched, jax.random.fold_in(key, 1), size


def _deploy_in_integers(small: Any, x: Any, target: str, bundle: Path) -> None:
    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff_export.bundle import deploy

    # Ranges of activations are measured on some images, and fixed in the integer codes.
    g, codes = small.integer(x[:_MOST])
    deploy(g, (codes, x[:1]), target, bundle)


def _require_place(bundle: Path, folder: Path | None) -> None:
    """Raises what would come after the search, when all of it would be lost."""
    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff.store import require_absent
    from jaxeff_export.bundle.files import MANIFEST, own_files

    require_absent(bundle, MANIFEST, own_files)
    if folder is not None and folder.resolve().is_relative_to(bundle.resolve()):
        raise FileExistsError(f"{folder} lies in the bundle's folder; choose another --folder")


def _classifier(model: str) -> tuple[Callable[..., Any], tuple[Any, Any, Any]]:
    """Loads a function, its parameters, inputs and labels, and checks that they fit."""
    import jax

    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff.core import check_labels
    from jaxeff.training import count_examples
    from jaxeff_export.artifact import SignatureError
    from jaxeff_export.cli._arguments import example_of, require_call

    f, example = example_of(*model.partition(":")[::2])
    if len(example) != 3:
        raise SignatureError(f"{model} gives no (f, (parameters, inputs, labels))")
    params, x, labels = example
    require_call(model, f, (params, x))
    logits = jax.eval_shape(f, params, x)
    if not isinstance(logits, jax.ShapeDtypeStruct) or logits.ndim != 2:
        raise SignatureError(f"{model} is no classifier: f(parameters, inputs) gives no logits "
                             "of shape [examples, classes]")  # fmt: skip
    if not hasattr(x, "shape"):
        raise SignatureError(f"the inputs of {model} are no array")
    try:
        count_examples((x, labels))
        check_labels(f"the labels of {model}", labels, logits.shape[-1])
    except (TypeError, ValueError) as error:
        raise SignatureError(str(error)) from error
    return f, (params, x, labels)


# 8 parameters: the options of a command are read off its function.
def tune(
    bundle: terminal.BundlePath,
    database: Annotated[
        Path, typer.Option(help="The folder that keeps every measurement; made if need be.")
    ],
    trials: Annotated[
        int, typer.Option(help="Candidates per kernel, those already in the database included.")
    ] = 64,
    operators: Annotated[
        list[str] | None,
        typer.Option(
            help="Kernels to tune, a glob pattern such as 'fused_conv2d*'; may be repeated. By "
            "default those that multiply and accumulate; elementwise kernels and pooling only if "
            "named here. The names are those that `profile` shows."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Kernels to leave out, as a pattern; may be repeated.")
    ] = None,
    board: Annotated[
        str,
        typer.Option(help="Where to measure: local, rpc://host:port or rpc://tracker:port/key."),
    ] = "local",
    space: Annotated[
        str,
        typer.Option(
            help="tiles: this package's own schedules, seconds per kernel. metaschedule: TVM's "
            "general search, for hours."
        ),
    ] = "tiles",
    output: Annotated[
        Path | None,
        typer.Option(help="The tuned bundle's folder; by default the bundle itself is replaced."),
    ] = None,
) -> None:
    """Search faster schedules for a bundle's kernels, and compile it with them.

    Stop it whenever you like: every measurement is kept, and the same command goes on. A schedule
    is used only where it beat the default one. `compile --database` uses what is known.
    """
    try:
        with terminal.failures_in_one_line():
            # JAX takes seconds to import: `--help` and other commands do without.
            from jaxeff_export.bundle import Bundle
            from jaxeff_export.tuning import tune as tune_bundle

            tuned = tune_bundle(
                Bundle.load(bundle), database, trials=trials, operators=operators or None,
                exclude=exclude or (), board=board, space=space, path=output or bundle,
                console=terminal.console,
            )  # fmt: skip
    except KeyboardInterrupt:
        terminal.complain(
            f"stopped; what was measured is in {database}, and the same command goes on"
        )
        # 128 + 2, the number of the signal, as shells have it.
        raise typer.Exit(code=130) from None
    terminal.console.print(f"{tuned.folder} is compiled with what {database} holds", markup=False)
