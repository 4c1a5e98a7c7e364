"""``compile``, ``c``, ``inspect``, ``spotter``: bundles and C libraries, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxeff_export import targets
from jaxeff_export.cli._terminal import (
    BundlePath,
    Seed,
    console,
    failures_in_one_line,
    steps,
    table,
)
from jaxeff_export.schedules import TuningError

if TYPE_CHECKING:
    from jaxeff_export.artifact import TensorSpec
    from jaxeff_export.bundle import Bundle

    _Groups = Sequence[tuple[str, Sequence[TensorSpec]]]


def compile_bundle(
    source: Annotated[
        str,
        typer.Argument(
            help="An artifact that jaxeff_export.export(...).save(...) wrote, or module:function, "
            "a function without arguments that returns (f, (parameters, *inputs))."
        ),
    ],
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder, written or replaced.")],
    arrays: Annotated[
        list[Path] | None,
        typer.Option(
            help="An npz file with parameters or an example of the inputs, by the names that "
            "inspect shows; needed for an artifact, may be repeated."
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(help=f"{', '.join(targets.target_names())}, or a TVM target as JSON.")
    ] = "host",
    parameters: Annotated[
        int | None,
        typer.Option(
            help="How many of the first arguments are parameters; 1 by default, to be said for a "
            "function of one argument."
        ),
    ] = None,
    any_batch: Annotated[
        bool,
        typer.Option(
            "--any-batch",
            help="Take any number of examples: the first axis of all inputs is a batch. An "
            "artifact was exported with that or without.",
        ),
    ] = False,
    database: Annotated[
        Path | None,
        typer.Option(help="A folder that tune filled, for faster schedules where it knows some."),
    ] = None,
) -> None:
    """Compile a function into a bundle.

    The function's first argument is its parameters (a trained posterior), which the bundle binds.
    The inputs fix the shapes, and are recorded with what JAX computes from them, so that `check`
    has something to replay: give a real example.
    """
    with failures_in_one_line():
        resolved = _target(target)
        with steps() as step:
            options = {"parameters": parameters, "database": database, "progress": step}
            compiled = _compile(source, arrays or [], resolved, bundle, any_batch, options)
        console.print(f"{bundle} is compiled for {compiled.manifest.target_name}", markup=False)


def _compile(
    source: str,
    arrays: list[Path],
    target: str | Mapping[str, Any],
    path: Path,
    any_batch: bool,
    options: Mapping[str, Any],
) -> Bundle:
    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff_export.artifact import Artifact, SignatureError
    from jaxeff_export.bundle import deploy, deploy_artifact
    from jaxeff_export.cli._arguments import example_of, read_arrays, require_call

    database = options["database"]
    # A database makes the folder it is given: a typing error would be an empty one.
    if database is not None and not database.is_dir():
        raise TuningError(f"there is no folder {database}; tune a bundle with --database first")
    module, colon, function = source.partition(":")
    # A path may have a colon as well; a file that is there is an artifact.
    if colon and not Path(source).exists():
        f, example = example_of(module, function)
        require_call(source, f, example)
        return deploy(f, example, target, path, any_batch=any_batch, **options)
    artifact = Artifact.load(source)
    if any_batch and not artifact.any_batch:
        raise SignatureError(
            f"{source} is an artifact of fixed shapes; export it again with any_batch=True"
        )
    values = read_arrays(arrays, artifact.inputs)
    named = {spec.name: value for spec, value in zip(artifact.inputs, values, strict=True)}
    return deploy_artifact(artifact, named, target, path, **options)


def _target(target: str) -> str | Mapping[str, Any]:
    if not target.lstrip().startswith("{"):
        targets.resolve_target(
            target
        )  # what nobody knows is better told before the work than after it
        return target
    try:
        return targets.resolve_target(json.loads(target))
    except json.JSONDecodeError as error:
        raise targets.TargetError(f"--target is no JSON: {error}") from error


_COLUMNS = ("parameters", "reads", "writes", "scratch", "live")


# 11 parameters: the options of a command are read off its function.
def c(
    bundle: BundlePath,
    folder: Annotated[Path, typer.Argument(help="The library's folder, written or replaced.")],
    name: Annotated[
        str | None, typer.Option(help="What its names in C begin with; by default the folder's.")
    ] = None,
    blob: Annotated[
        bool, typer.Option("--blob", help="Keep the parameters in a file that the board loads.")
    ] = False,
    flash: Annotated[
        str | None, typer.Option(help="Bytes for code and parameters: 524288, 512k or 2M.")
    ] = None,
    ram: Annotated[
        str | None, typer.Option(help="Bytes for workspace, arguments, results and stack.")
    ] = None,
    database: Annotated[
        Path | None,
        typer.Option(help="A folder that tune filled, for faster schedules where it knows some."),
    ] = None,
    threads: Annotated[
        int, typer.Option(help="How many threads may share the loops of a call.")
    ] = 1,
    style: Annotated[
        str, typer.Option(help="Package for: cmake, arduino, platformio, zephyr or cmsis-pack.")
    ] = "cmake",
    source: Annotated[
        bool,
        typer.Option("--source", help="C99 source in one file, for any compiler, no machine code."),
    ] = False,
    steps: Annotated[
        bool, typer.Option("--steps", help="Print what each call of a kernel takes, too.")
    ] = False,
) -> None:
    """Write a bundle's function as a C library: a header, an archive, an example, no runtime.

    With --flash or --ram, one that does not fit is refused before it is linked.
    """
    with failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.bundle import Bundle

        loaded = Bundle.load(bundle)
        with console.status(f"compiling for {loaded.manifest.target_name}"):
            library = loaded.export_c(
                folder,
                name=name,
                embed=not blob,
                flash=flash,
                ram=ram,
                database=database,
                threads=threads,
                style=style,
                source=source,
            )
        sizes = library.sizes
        for what, size in sizes.to_json().items():
            console.print(f"{what}: {size:,} bytes", highlight=False)
        if steps:
            _show_steps(library.steps)
        console.print(f"{library.folder}: README.md says how its example is built", markup=False)


def _show_steps(steps: Sequence[Any]) -> None:
    rows = table("kernel", *_COLUMNS, "held for later", title="bytes of each call, in order")
    for step in steps:
        sizes = (f"{getattr(step, name):,}" for name in _COLUMNS)
        held = ", ".join(f"{size:,} of {kernel}" for kernel, size in step.held)
        rows.add_row(step.kernel, *sizes, held)
    console.print(rows, markup=False)


def inspect(
    path: Annotated[Path, typer.Argument(help="A bundle's folder, or an artifact's file.")],
) -> None:
    """Show what a bundle or an artifact holds, after checking every byte of it.

    The names are those that npz files for `compile` and `run` use.
    """
    with failures_in_one_line():
        if path.is_file():
            _show_artifact(path)
        else:
            _show_bundle(path)


def _show_artifact(path: Path) -> None:
    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff_export.artifact import Artifact

    artifact = Artifact.load(path)
    # Nothing in an artifact says which arguments are parameters: the first, as for `deploy`.
    bound = artifact.leaf_count(1) if len(artifact.arguments) > 1 else 0
    groups = [
        ("parameter", artifact.inputs[:bound]),
        ("input", artifact.inputs[bound:]),
        ("output", artifact.outputs),
    ]
    _show_arrays(f"{path}: StableHLO", groups)
    _show_versions(artifact.versions)


def _show_bundle(path: Path) -> None:
    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff_export.bundle import Bundle

    # Loading checks every file, so those listed below are intact.
    manifest = Bundle.load(path).manifest
    groups = [
        ("parameter", manifest.parameters),
        ("derived", manifest.derived),
        ("input", manifest.inputs),
        ("output", manifest.outputs),
    ]
    _show_arrays(f"{path}: {manifest.target_name} ({manifest.machine})", groups)
    console.print(f"target: {json.dumps(dict(manifest.target))}", markup=False, highlight=False)
    for name, facts in manifest.files.items():
        console.print(f"{name}: {facts['size']:,} bytes, intact")
    if manifest.verdict:
        console.print(manifest.verdict, markup=False, highlight=False)
    _show_versions(manifest.versions)


def _show_arrays(title: str, groups: _Groups) -> None:
    rows = table("role", "name", "shape", "dtype (zero, step of codes)", title=title)
    for role, specs in groups:
        for spec in specs:
            shape = "×".join(map(str, spec.shape)) or "scalar"
            # What codes stand for: (q - zero) * step.
            of = "" if spec.grid is None else " ({1}, {0:.6g})".format(*spec.grid)
            rows.add_row(role, spec.name, shape, spec.dtype + of)
    console.print(rows, markup=False)


def _show_versions(versions: object) -> None:
    assert isinstance(versions, dict)
    console.print(", ".join(f"{name} {version}" for name, version in versions.items()))


_Weights = Annotated[
    Path | None,
    typer.Option(
        help="What the training begins with: a PyTorch state_dict (.pt, .pth; tensors alone "
        "are read) or an .npz of its arrays, in the order of nn.Sequential: Conv2d(10, WIDTH, "
        "(3, 1), stride=(2, 1)), BLOCKS times Conv2d(WIDTH, WIDTH, (3, 1), groups=WIDTH) and "
        "Conv2d(WIDTH, WIDTH, 1), Conv2d(WIDTH, WIDTH, (24 - 2 BLOCKS, 1), groups=WIDTH), each "
        "with a ReLU behind it, and Linear(WIDTH, classes); batch norm folded, no padding. Its "
        "input is cepstra of jaxeff.nn.LogMel(cepstra=10), of mean 0 and deviation 1."
    ),
]

_Learn = Annotated[
    bool,
    typer.Option(
        "--learn",
        help="Its last layer learns on the board from each truth that it is told, and it "
        "watches what it hears: alarm says that the sound has drifted.",
    ),
]


# 13 parameters: the options of a command are read off its function.
def spotter(
    recordings: Annotated[
        Path | None,
        typer.Argument(
            help="A folder of wave files for each word, as Speech Commands has them; folders whose "
            "names begin with _ stand for none of the words. Tones where it is left out."
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Gets the bundle, the C library and report.html.")
    ] = Path("spotter"),
    target: Annotated[str, typer.Option(help="A microcontroller.")] = "cortex-m4",
    bits: Annotated[int, typer.Option(min=2, max=8, help="Of weights.")] = 4,
    width: Annotated[int, typer.Option(min=4, help="Channels, a multiple of four.")] = 24,
    blocks: Annotated[int, typer.Option(min=1, max=5, help="Pairs of convolutions.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Of the first training.")] = 48,
    coverage: Annotated[
        float,
        typer.Option(
            min=0.05,
            max=0.999,
            help="How often the truth is to be in its set; a word is said where it is the only "
            "one: the page compares levels by words heard and false alarms.",
        ),
    ] = 0.6,
    weights: _Weights = None,
    listened: Annotated[
        int, typer.Option(min=2, help="Recordings, of a second each, that the emulated core hears.")
    ] = 20,
    learn: _Learn = False,
    rate: Annotated[
        float, typer.Option(min=1e-6, max=1, help="Of the steps by which it learns, with --learn.")
    ] = 0.002,
    seed: Seed = 0,
) -> None:
    """Make a keyword spotter for a microcontroller that says when it hears none of its words.

    It is trained and converted to integers, judged on other speakers, compiled, and listens on the
    emulated core; the page says how right and how sure it is, and what it takes. With --learn it
    is also told a word that it hears wrong, and hears others drown in noise.
    """
    with failures_in_one_line():
        _require_microcontroller(target)
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.cli._learning_spotter import build

        with steps() as step:
            page = build(
                recordings, output, target, step, seed=seed, listened=listened, begin=weights,
                rate=rate if learn else None, bits=bits, width=width, blocks=blocks,
                epochs=epochs, coverage=coverage,
            )  # fmt: skip
    console.print("\n".join(page.parts[0].sentences), highlight=False, markup=False)
    console.print(f"{output / 'report.html'}: open it in a browser", markup=False, soft_wrap=True)


def _require_microcontroller(target: str) -> None:
    if targets.processor_of(targets.resolve_target(target)) is None:
        raise targets.TargetError(
            f"{target} is no microcontroller, such as {', '.join(targets.PROCESSORS)}"
        )
