"""The same float network through LiteRT: converted, quantized to int8 after training, interpreted.

Needs the packages `litert-converter`, `ai-edge-litert`, `ai-edge-quantizer` and `tflite-micro`,
whose interpreter is LiteRT for microcontrollers as it runs on a computer.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

import jaxeff_export
import numpy as np

from experiments.beyond.keyword_spotting.training import Way

PACKAGES = ("litert_converter", "ai_edge_litert", "ai_edge_quantizer", "tflite_micro")


def missing() -> list[str]:
    """Lists the packages that aren't here."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def compare(way: Way) -> dict[str, Any]:
    """Logits of an int8 file, its size, and the bytes of working memory that it takes.

    The float network of the way is quantized after training, on ranges of features that it has
    seen. Features are made of unit variance before, as they are within the library.
    """
    from ai_edge_quantizer import quantizer, recipe

    seen, params = way.standard(way.seen), way.stages[0].params
    one = seen[:1]
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "net.tflite"
        file = jaxeff_export.to_litert(way.bare, (params, one), str(path), parameters=1)
        coded = quantizer.Quantizer(str(path), recipe.static_wi8_ai8())
        feeds = [{file.inputs[0]: x[None]} for x in seen]
        ranges = coded.calibrate({"serving_default": feeds})
        content = bytes(coded.quantize(ranges).quantized_model)
    outputs = {"logits": _interpreted(content, way.standard(way.tests))}
    return {**outputs, "bytes": len(content), "arena": _arena(content, one)}


def _interpreter(content: bytes) -> Any:
    from tflite_micro.python.tflite_micro import runtime

    return runtime.Interpreter.from_bytes(content)


def _interpreted(content: bytes, test: np.ndarray) -> np.ndarray:
    run, outputs = _interpreter(content), []
    for x in test:
        run.set_input(_codes(run, x[None]), 0)
        run.invoke()
        outputs.append(run.get_output(0)[0])
    return np.stack(outputs)


def _codes(run: Any, x: np.ndarray) -> np.ndarray:
    """Rounds to the codes that the file takes."""
    grid = run.get_input_details(0)["quantization_parameters"]
    codes = np.round(x / grid["scales"]) + grid["zero_points"]
    return np.clip(codes, -128, 127).astype(np.int8)


def _arena(content: bytes, one: np.ndarray) -> int:
    """Reads the arena's size, which the interpreter prints from C."""
    run = _interpreter(content)
    run.set_input(_codes(run, one), 0)
    run.invoke()
    # Below Python: what C prints passes by `sys.stderr`.
    with tempfile.TemporaryFile() as said:
        kept = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            run.print_allocations()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        said.seek(0)
        text = said.read().decode()
    return int(text.partition("Arena allocation total ")[2].split()[0])
