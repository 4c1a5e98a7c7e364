"""Matrix products of few rows with weights of four to 32 bits, and steps of a decoder.

    python -m experiments.beyond.decoding --fast

CPU time of one thread, the least of interleaved rounds: hot, one call after the other, and cold,
after the caches were read through with something else. `reading` is what the processor takes to
read the codes once; nothing can be faster than that from memory. ONNX Runtime multiplies int4 by
`MatMulNBits` (accuracy level 4: activations in int8) and int8 by `MatMulInteger` after a dynamic
quantization. OpenVINO, ggml (llama.cpp) and IREE take part where they are installed; products with
2:4 weights are held to the dense ones of other engines. A step continues a cache of keys and values
whose slots are half filled, in place; a prompt is read into an empty one. Steps of decoders of 32
features have little to compute: what they take is mostly overhead. On a Cortex-A72 cycles are
those of a static model (llvm-mca), over one multiplication a cycle or the bytes to be read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal

from experiments import engines
from experiments import harness as h
from experiments.beyond.decoding.cores import modelled
from experiments.beyond.decoding.products import ENGINES, FORMATS, measured
from experiments.beyond.decoding.quality import perplexities
from experiments.beyond.decoding.steps import FORMATS as STEPPED
from experiments.beyond.decoding.steps import overheads, prefill, steps
from experiments.harness import SELECTS, Count, Least, Row, Run
from experiments.recipes import Selected


@dataclass(frozen=True)
class Settings(Selected):
    """What is measured.

    Attributes:
        rows: Rows of the products.
        outputs: Outputs of 2048 inputs each.
        rounds: Rounds that all take turns in.
        steps: Steps of training of the language model.
        depth: Blocks of the decoder whose steps are timed.
        width: Its features.
        slots: Slots of its cache.
        prompt: Tokens of the prompt that it reads.
        parts: Parts to run; all if none is given.
    """

    rows: tuple[Count, ...] = (1, 8, 64)
    outputs: tuple[Count, ...] = (2048, 5632)
    rounds: Annotated[int, Least(1)] = 7
    steps: Count = 2000
    depth: Count = 12
    width: Count = 512
    slots: Count = 512
    prompt: Count = 128
    parts: Annotated[
        tuple[Literal["products", "steps", "prefill", "overheads", "cores", "quality"], ...],
        SELECTS,
    ] = ()


def products(run: Run[Settings], task: tuple[int, int]) -> Iterator[Row]:
    """Measures a product in all formats on all engines."""
    rows, outputs = task
    yield from measured(rows, (2048, outputs), run.settings.rounds)


def decoder(run: Run[Settings], depth: int) -> Iterator[Row]:
    """Measures a step of a decoder, with half of its cache filled."""
    settings = run.settings
    yield from steps((depth, settings.width, 4096), settings.slots, settings.rounds)


def reading(run: Run[Settings], prompt: int) -> Iterator[Row]:
    """Measures how long the decoder takes to read a prompt."""
    settings = run.settings
    yield from prefill((settings.depth, settings.width, 4096), prompt, settings.rounds)


def narrow(run: Run[Settings], depth: int) -> Iterator[Row]:
    """Measures steps that have little to compute."""
    yield from overheads(depth, run.settings.rounds)


def cores(run: Run[Settings], rows: int) -> Iterator[Row]:
    """Models products on a core that isn't here."""
    yield from modelled(rows, (2048, run.settings.outputs[0]))


def quality(run: Run[Settings], steps: int) -> Iterator[Row]:
    """Measures a small language model in formats of about four bits."""
    yield from perplexities(run.key, steps)


def tasks(run: Run[Settings]) -> list[tuple[int, int]]:
    """Lists rows and outputs, and says which engines are missing."""
    engines.say_missing(run, ENGINES)
    return list(product(run.settings.rows, run.settings.outputs))


CLAIMS = [
    h.Claim(
        "{rows} x {shape} {format}: " + f"{kind} over the fastest other engine",
        f"{kind}_ratio", h.at_most(1.0), 1, h.where(rows=1, format=form, engine="jaxeff"),
    )
    for kind in ("hot", "cold")
    for form in FORMATS
] + [
    h.Claim(
        f"a decoder's step, {form}: CPU time over that of the fastest other engine",
        "ratio", h.at_most(1.0 if form == "float32" else 0.9), 1,
        h.where(part="steps", format=form, engine="jaxeff"),
    )
    for form in STEPPED
] + [
    h.Claim(
        f"a prompt of {{prompt}} tokens, {form}: CPU time over that of the fastest other engine",
        "ratio", h.at_most(1.0), 1, h.where(part="prefill", format=form, engine="jaxeff"),
    )
    for form in ("float32", "int8")
] + [
    h.Claim(
        "a decoder's step, {format}: CPU seconds to compile", "compile_s", h.at_most(10), 10,
        h.where(part="steps", engine="jaxeff"),
    ),
    h.Claim(
        "a step of {size}, little but overhead: ms", "ms", h.at_most(0.1), 0.1,
        h.where(part="overheads"),
    ),
    h.Claim(
        "{core}, 1 x {shape} {format}: cycles over the bound", "over_bound", h.at_most(1.2), 1.2,
        h.where(part="cores", rows=1),
    ),
]  # fmt: skip
COLUMNS = (
    "rows", "shape", "format", "engine", "hot_us", "cold_us", "hot_ratio", "cold_ratio",
    "over_limit",
)  # fmt: skip
STUDY = h.Study(
    "decoding", __doc__,
    {
        "fast": Settings((1,), (2048,), 5, 300, 4, 256, 256), "default": Settings(),
        "full": Settings(rounds=21),
    },
    parts=[
        h.Part.of("products", tasks, products),
        h.Part.of("steps", lambda run: [run.settings.depth], decoder),
        h.Part.of("prefill", lambda run: [run.settings.prompt], reading),
        h.Part.of("overheads", lambda run: [run.settings.depth], narrow),
        h.Part.of("cores", lambda run: [rows for rows in run.settings.rows if rows <= 8], cores),
        h.Part.of("quality", lambda run: [run.settings.steps], quality),
    ],
    claims=CLAIMS,
    plots=[
        h.Plot(
            "products",
            h.Dots(
                "{engine}", "over_limit", h.where(part="products", rows=1), hue="{format}",
                guides=(1,), axes={"xlabel": "CPU time over reading the codes, cold"},
            ),
        )
    ],
    tables=[
        h.Listing("products", COLUMNS, h.where(part="products")),
        h.Listing(
            "steps", ("format", "engine", "size", "slots", "ms", "ratio", "compile_s"),
            h.where(part="steps"),
        ),
        h.Listing(
            "prompts", ("format", "engine", "size", "prompt", "ms", "ratio", "compile_s"),
            h.where(part="prefill"),
        ),
        h.Listing("steps with little to compute", ("size", "ms"), h.where(part="overheads")),
        h.Listing(
            "a core by its static model", (
                "core", "rows", "shape", "format", "cycles", "multiplying", "transfer",
                "over_bound", "spills",
            ), h.where(part="cores"),
        ),
        h.Listing("quality", ("format", "bits", "perplexity"), h.where(part="quality")),
    ],
    differences=(
        "Weights are random: their codes don't change how long a product takes.",
        "ONNX Runtime's step is the one that to_onnx writes, with its own quantizers' weights "
        "(quantize_dynamic, MatMulNBits); its fused attention is not used.",
        "ggml is the package xllamacpp's, of AVX2, with weights as they lie in a GGUF file; IREE "
        "has float32 alone.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
