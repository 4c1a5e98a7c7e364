"""What runs, and where: ``run``, ``check``, ``benchmark``, ``profile``, and the boards there are.

``generate`` lets a decoder's bundle continue a text, ``hear`` a spotter on a board hear recordings.
``model`` estimates what a call takes where nothing can be timed, and ``report`` makes a page of all
that is known of a bundle. ``targets`` and ``boards`` list what can be compiled for and where it can
run; ``prepare`` fetches what the emulated board needs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from jaxeff_export.cli import _terminal as terminal
from jaxeff_export.targets import (
    MissingExtraError,
    ToolchainError,
    find_linker,
    require_extra,
    resolve_target,
    target_machine,
    target_names,
)

if TYPE_CHECKING:
    from jaxeff_export.bundle import BoardResult, Bundle
    from jaxeff_export.bundle.files import SelfCheck
    from jaxeff_export.bundle.running import Timing
    from jaxeff_export.cli._continuation import TextCodec


def run(
    bundle: terminal.BundlePath,
    inputs: Annotated[Path, typer.Argument(help="An npz file, one array per input name.")],
    outputs: Annotated[Path, typer.Argument(help="The npz file to write, one array per result.")],
    board: terminal.BoardName = "local",
    flash: terminal.FlashCommand = None,
    image: terminal.FlashImage = None,
) -> None:
    """Call the function on arrays from a file; `inspect` shows their names."""
    with terminal.failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.bundle import Bundle
        from jaxeff_export.cli._arguments import read_arrays, require_place, write_arrays

        # Before the call, which may take long on a board: its results would have no place.
        require_place(outputs)
        loaded = Bundle.load(bundle)
        manifest = loaded.manifest
        arrays = read_arrays([inputs], manifest.inputs)
        terminal.flash([board], flash, image)
        with terminal.console.status(f"running on {board}"), loaded.on(board) as runner:
            results = runner.run_leaves(arrays)
        write_arrays(outputs, manifest.outputs, results)
    terminal.console.print(
        f"{outputs}: {', '.join(spec.name for spec in manifest.outputs)}", markup=False
    )


Data = Annotated[
    Path | None,
    typer.Option(
        help="An npz file: an array of examples per input name, and 'labels', if there are any."
    ),
]


def check(
    bundle: terminal.BundlePath,
    boards: terminal.BoardNames = ["local"],  # noqa: B006
    data: Data = None,
    flash: terminal.FlashCommand = None,
    image: terminal.FlashImage = None,
) -> None:
    """Compare with JAX on boards: the recorded inputs, or all examples of a file.

    Of examples with labels it also tells the accuracy, on the board and under JAX. The exit status
    is 1 if a result disagrees or a board fails.
    """
    with terminal.failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.bundle import Bundle, run_on_boards

        loaded = Bundle.load(bundle)
        examples = _examples(loaded, data)
        terminal.flash(boards, flash, image)
        with terminal.console.status(f"checking on {', '.join(boards)}"):
            outcomes = run_on_boards(
                loaded, boards, lambda runner: loaded.check_by(runner, examples),
                report=_announce_check,
            )  # fmt: skip
    # After all boards have answered: one that fails must not hide the others' results.
    if not all(outcome.result is not None and outcome.result.passed for outcome in outcomes):
        raise typer.Exit(code=1)


def _examples(bundle: Bundle, data: Path | None) -> tuple[Any, Any] | None:
    """Reads a data set: inputs by their names, and labels."""
    if data is None:
        return None
    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff_export.cli._arguments import read_arrays, read_labels

    kept = {old for old, _ in bundle.manifest.places}
    specs = [spec for i, spec in enumerate(bundle.manifest.inputs) if i not in kept]
    return tuple(read_arrays([data], specs)), read_labels(data)


def _announce_check(outcome: BoardResult[SelfCheck]) -> None:
    if outcome.result is None:
        terminal.complain(outcome.error)
    else:
        terminal.console.print(str(outcome.result), markup=False)


_BAR = 24  # characters of a whole

Number = Annotated[int, typer.Option(min=1, help="Calls per measurement.")]
Repeat = Annotated[int, typer.Option(min=1, help="Measurements, of which the median counts.")]

Batch = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Examples per call, of a bundle for any batch: the recorded ones, repeated. By "
        "default as many as it was compiled with.",
    ),
]


def benchmark(
    bundle: terminal.BundlePath,
    boards: terminal.BoardNames = ["local"],  # noqa: B006
    number: Number = 10,
    repeat: Repeat = 10,
    batch: Batch = None,
    flash: terminal.FlashCommand = None,
    image: terminal.FlashImage = None,
) -> None:
    """Time one call on boards, parameters and inputs resident there.

    Each board's figures are shown as soon as they are there. A board that fails does not cost the
    others' results; the exit status is 1 then.
    """
    with terminal.failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.bundle import Bundle, run_on_boards

        loaded = Bundle.load(bundle)
        terminal.flash(boards, flash, image)
        with terminal.console.status(f"timing on {', '.join(boards)}"):
            outcomes = run_on_boards(
                loaded,
                boards,
                lambda runner: runner.benchmark(number, repeat, batch),
                timed=True,
                report=_announce_timing,
            )
    if len(outcomes) > 1:
        terminal.console.print(_timings_table(str(bundle), outcomes), markup=False)
    if any(outcome.result is None for outcome in outcomes):
        raise typer.Exit(code=1)


def _announce_timing(outcome: BoardResult[Timing]) -> None:
    if (timing := outcome.result) is None:
        terminal.complain(outcome.error)
        return
    cycles = "" if timing.cycles is None else f" ({timing.cycles:,.0f} cycles)"
    terminal.console.print(
        f"{outcome.board}: median {timing.median_ms:.4g} ms{cycles} over "
        f"{len(timing.times_ms)} × {timing.number} calls, "
        f"{min(timing.times_ms):.4g} to {max(timing.times_ms):.4g} ms",
        markup=False,
        highlight=False,
    )


def _timings_table(title: str, outcomes: Sequence[BoardResult[Timing]]) -> Table:
    rows = terminal.table("board", "median ms", "fastest ms", "slowest ms", title=title)
    for outcome in outcomes:
        if (timing := outcome.result) is None:
            rows.add_row(outcome.board, "failed", "", "")
        else:
            figures = (timing.median_ms, min(timing.times_ms), max(timing.times_ms))
            rows.add_row(outcome.board, *(f"{figure:.4g}" for figure in figures))
    return rows


def profile(
    bundle: terminal.BundlePath,
    board: terminal.BoardName = "local",
    number: Number = 10,
    repeat: Repeat = 5,
    batch: Batch = None,
    image: terminal.FlashImage = None,
    flash: terminal.FlashCommand = None,
) -> None:
    """Show the time per compiled operator on a board, slowest first."""
    with terminal.failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.bundle import Bundle

        loaded = Bundle.load(bundle)
        terminal.flash([board], flash, image)
        with terminal.console.status(f"profiling on {board}"):
            operators = loaded.profile(board, number, repeat, batch)
    counted = [operator.cycles for operator in operators if operator.cycles is not None]
    columns = ["operator", "calls", "total ms", *(["cycles"] if counted else []), "share", ""]
    rows = terminal.table(*columns, title=f"{bundle} on {board}")
    for operator in operators:
        bar = "█" * round(_BAR * operator.share)
        row = [operator.name, f"{operator.calls:g}", f"{operator.ms:.4g}"]
        row += [] if operator.cycles is None else [f"{operator.cycles:,.0f}"]
        rows.add_row(*row, f"{operator.share:.1%}", bar)
    rows.caption = f"{sum(operator.ms for operator in operators):.4g} ms in all, per call"
    terminal.console.print(rows, markup=False)


def model(
    bundle: terminal.BundlePath,
    mhz: Annotated[
        float | None,
        typer.Option(min=0.001, help="The processor's clock in MHz, for a column of microseconds."),
    ] = None,
    core: Annotated[
        str | None, typer.Option(help="LLVM's name of the core; by default the target's.")
    ] = None,
) -> None:
    """Estimate cycles and latency on the target, by kernel, without a board.

    For a microcontroller, such as an STM32 (Cortex-M4, Cortex-M7), instructions are counted in the
    emulator, exactly, and llvm-mca estimates their cycles. For other processors it reads the
    innermost loops. Memory is ideal in it: boards take longer.
    """
    with terminal.failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.bundle import Bundle

        loaded = Bundle.load(bundle)
        with terminal.console.status(f"modelling {loaded.manifest.target_name}"):
            models = loaded.model(core)
        terminal.console.print(models.table(mhz))


def report(
    bundle: terminal.BundlePath,
    page: Annotated[
        Path, typer.Argument(help="The page to write: .html, .md (a model card) or .json.")
    ] = Path("report.html"),
    title: Annotated[
        str | None, typer.Option(help="The page's title; by default the folder's name.")
    ] = None,
    data: Data = None,
) -> None:
    """Write a page about a bundle: what its kernels take, memory, checks, versions, hashes.

    `jaxeff.report` makes the same page of a model, with accuracy over noise, bits and channels.
    """
    with terminal.failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff.reporting import Report
        from jaxeff_export.artifact import SignatureError
        from jaxeff_export.bundle import Bundle

        loaded = Bundle.load(bundle)
        with terminal.console.status("checking, modelling and timing the library"):
            report_page = Report.of_target(
                title or bundle.resolve().name, loaded.facts(_examples(loaded, data))
            )
        try:
            report_page.save(page)
        except ValueError as error:  # the name of a file that says no form
            raise SignatureError(str(error)) from error
    terminal.console.print(f"{page}: open it in a browser", markup=False, soft_wrap=True)


def targets() -> None:
    """List the named targets, and whether this machine can compile for each."""
    rows = terminal.table("target", "architecture", "processor", "cores", "linker")
    with terminal.failures_in_one_line():
        for name in target_names():
            try:
                require_extra("tvm", "compiling")
                settings = resolve_target(name)
                linker = find_linker(settings)
            except (MissingExtraError, ToolchainError) as error:
                rows.add_row(name, "", "", "", f"no: {error}")
                continue
            row = (target_machine(settings), settings["mcpu"], str(settings["num-cores"]), linker)
            rows.add_row(name, *row)
    terminal.console.print(rows, markup=False)


def boards() -> None:
    """List the kinds of boards, and whether each can be used here."""
    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff_export.boards import CORES, PROGRAM_CORES, board_kinds

    rows = terminal.table("board", "what it is", "usable here")
    with terminal.failures_in_one_line():
        for kind in board_kinds():
            rows.add_row(kind.name, kind.what, f"no: {kind.missing}" if kind.missing else "yes")
    rows.caption = f"emulated cores: {', '.join(CORES)}; by programs: {', '.join(PROGRAM_CORES)}"
    terminal.console.print(rows, markup=False)


def prepare() -> None:
    """Download what the emulated board needs (150 MB), once per version of TVM."""
    with terminal.failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.boards import emulated

        emulated.prepare(progress=terminal.console.print)


# 10 parameters: the options of a command are read off its function.
def hear(
    folder: Annotated[Path, typer.Argument(help="The output of spotter.")],
    recordings: Annotated[
        list[Path],
        typer.Argument(help="Wave files of a second each: 16 kHz, 16 bit, one channel."),
    ],
    board: Annotated[
        str, typer.Option(help="The board that the spotter is on: serial:/dev/ttyACM0.")
    ],
    state: Annotated[
        Path | None,
        typer.Option(help="What it has learnt: read if the file is there, and written at the end."),
    ] = None,
    told: Annotated[
        str | None, typer.Option(help="The class of all these recordings, which it is told.")
    ] = None,
    times: Annotated[int, typer.Option(min=1, help="How often it hears each.")] = 1,
    noise: Annotated[
        float,
        typer.Option(
            min=0, max=32767, help="Deviation that white noise rises to, from none at the first."
        ),
    ] = 0.0,
    flash: terminal.FlashCommand = None,
    image: terminal.FlashImage = None,
    seed: terminal.Seed = 0,
) -> None:
    """Let a spotter on a board hear recordings, one after the other, and tell it what they are.

    A line for each says which class was most probable at its end, and which words were said
    meanwhile. What was made with --learn learns the class it is told, and says when the sound
    drifts from that of its training.
    """
    with terminal.failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.bundle import Bundle
        from jaxeff_export.cli import _learning_spotter as learning

        classes = learning.classes_of(folder)
        truth = -1 if told is None else learning.class_of(told, classes)
        sounds = learning.sounds_of(recordings, times, noise, seed)
        loaded = Bundle.load(folder / "bundle")
        terminal.flash([board], flash, image)
        with loaded.on(board) as runner:
            session = runner.session()
            if state is not None and state.is_file():
                session.load(state)
            heard = learning.words_heard(session, sounds, truth, classes)
            shown = zip(itertools.cycle(recordings), heard, strict=False)
            for path, (best, said, alarm) in shown:
                words = f", said {', '.join(said)}" if said else ""
                drifted = "; ALARM: the sound has drifted" if alarm else ""
                terminal.console.print(
                    f"{path}: {best}{words}{drifted}", markup=False, soft_wrap=True, highlight=False
                )
            if state is not None:
                session.save(state)


_PREFILL = "Another bundle with the same cache, which reads the prompt in blocks; may be repeated."
_TOKENIZER = "A GGUF file with the tokenizer; by default the bundle's, or bytes, of 256 tokens."


def _text(prompt: str) -> str:
    """Refuses what the system hands on as bytes of no character."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter("its bytes are no text in UTF-8.") from error
    return prompt


# 10 parameters: the options of a command are read off its function.
def generate(
    bundle: terminal.BundlePath,
    prompt: Annotated[str, typer.Option(help="The text to continue.", callback=_text)],
    prefill: Annotated[list[Path], typer.Option(help=_PREFILL)] = [],  # noqa: B006
    tokenizer: Annotated[Path | None, typer.Option(help=_TOKENIZER)] = None,
    tokens: Annotated[int, typer.Option(min=1, help="The most tokens to draw.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most probable.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Of so many tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(min=1e-6, max=1, help="Of those with this probability.")
    ] = None,
    seed: terminal.Seed = 0,
    certainty: Annotated[
        bool, typer.Option("--certainty", help="A line for each token: how probable it was.")
    ] = False,
) -> None:
    """Continue a text by a decoder that keeps its cache; prints it token by token."""
    with terminal.failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        import jax

        # What loads TVM and JAX, as above.
        from jaxeff_export.bundle import Bundle
        from jaxeff_export.cli._continuation import Continuation

        main = Bundle.load(bundle)
        decoder = Continuation(main, [Bundle.load(path) for path in prefill])
        codec = _codec(tokenizer, main, decoder.words)
        # What isn't asked for stays None, and leaves all tokens to be drawn.
        how = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        drawn, shown, began = [], 0, time.perf_counter()
        if not certainty:
            typer.echo(prompt, nl=False)
        texts = decoder.continued(codec.encode(prompt), jax.random.key(seed), codec.end, **how)
        # Drawn one by one: a text is shown while it is written.
        for token in itertools.islice(texts, tokens):
            drawn.append(token.number)
            if certainty:
                spread = "" if token.deviation is None else f", logit within {token.deviation:.2g}"
                text = codec.decode([token.number])
                typer.echo(f"{token.probability:.3f}{spread}  {text!r}")
                continue
            # A character may be several tokens: its first bytes alone are none yet.
            text = codec.decode(drawn).rstrip("\ufffd")
            typer.echo(text[shown:], nl=False)
            shown = max(shown, len(text))
        seconds = time.perf_counter() - began
    if not certainty:
        typer.echo()
    terminal.console.print(
        f"{len(drawn)} tokens, {len(drawn) / seconds:.1f} a second", highlight=False
    )


def _codec(path: Path | None, bundle: Bundle, words: int) -> TextCodec:
    """Returns the tokenizer of a file, that of the bundle, or bytes."""
    # JAX, as above.
    from jaxeff.contrib import load_tokenizer
    from jaxeff.weights import WeightsError
    from jaxeff_export.bundle.files import BundleError
    from jaxeff_export.cli._continuation import ByteCodec

    if path is None:
        codec, origin = bundle.tokenizer, bundle.folder
        if codec is None and words == 256:
            return ByteCodec()
        if codec is None:
            raise BundleError(
                f"the decoder has {words} tokens, which are no bytes, and the bundle has no "
                "tokenizer: deploy(..., tokenizer=...), or give --tokenizer FILE.gguf"
            )
    else:
        try:
            codec, origin = load_tokenizer(path), path
        except (WeightsError, ImportError) as error:
            raise BundleError(str(error)) from error
    # Numbers of another vocabulary would be read as other tokens, without a word.
    if len(codec.tokens) != words:
        raise BundleError(
            f"{origin} has {len(codec.tokens)} tokens, the decoder {words}; give its own"
        )
    return codec
