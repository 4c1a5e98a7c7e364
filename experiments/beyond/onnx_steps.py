"""Steps of decoders as ONNX files in float32, int8 and int4, by ONNX Runtime's own quantizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jaxeff_export

FORMS = ("float32", "int8", "int4")
NEEDED = ("onnx_ir", "sympy")
"""What the quantizer of four bits needs beside ONNX Runtime."""


class StepFiles(NamedTuple):
    """Files of a step, whose results after the first are the state of the next.

    Attributes:
        paths: A file for each form.
        inputs: Names of inputs, in the order of the arguments' leaves.
        outputs: Names of results.
    """

    paths: dict[str, Path]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def written(
    step: Callable[..., Any], args: tuple[Any, ...], folder: Path, forms: tuple[str, ...] = FORMS
) -> StepFiles:
    """Writes a step whose first argument are its parameters.

    Args:
        step: `step(params, tokens, count, cache)`.
        args: Its arguments.
        folder: Where files are written.
        forms: What is written; int4 is left out where its quantizer's packages aren't there.
    """
    # Optional packages, which the other engines are measured without.
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder.mkdir(parents=True, exist_ok=True)
    file = jaxeff_export.to_onnx(step, args, folder / "float32.onnx")
    paths = {"float32": Path(file.path)}
    if "int8" in forms:
        paths["int8"] = folder / "int8.onnx"
        quantize_dynamic(file.path, paths["int8"], ["MatMul"], True, weight_type=QuantType.QInt8)
    if "int4" in forms and all(map(find_spec, NEEDED)):
        from onnxruntime.quantization import matmul_nbits_quantizer as nbits

        # Accuracy level 4: activations in int8, which is the faster.
        by_group = nbits.MatMulNBitsQuantizer(onnx.load(file.path), 4, 32, True, accuracy_level=4)
        by_group.process()
        paths["int4"] = folder / "int4.onnx"
        by_group.model.save_model_to_file(str(paths["int4"]))
    return StepFiles(paths, tuple(file.inputs), tuple(file.outputs))


def greedy(forward: Callable[[int], Any], prompt: list[int], steps: int) -> Iterator[int]:
    """Yields the most probable tokens after a prompt that is read token by token.

    Args:
        forward: Takes a token and returns logits, of the tokens so far.
        prompt: The tokens.
        steps: How many to yield.
    """
    for token in prompt:
        logits = forward(token)
    for _ in range(steps):
        token = int(logits.argmax())
        yield token
        logits = forward(token)


__all__ = ["FORMS", "NEEDED", "StepFiles", "greedy", "written"]
