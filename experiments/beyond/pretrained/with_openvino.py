"""SmolLM2-135M on OpenVINO, on one thread: the files that ONNX Runtime has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import openvino

from experiments.beyond import onnx_steps
from experiments.beyond.pretrained import language
from experiments.beyond.pretrained.with_onnxruntime import FORMS, step_files

_SET_UP = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}


def continuing(folder: Path, name: str, prompt: str, steps: int) -> tuple[Callable[[], str], int]:
    """Returns what continues a prompt greedily in a format, and the bytes of its file."""
    files = step_files(folder, prompt, steps)
    path = files.paths[FORMS[name]]
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(str(path)), "CPU", _SET_UP)
    request = compiled.create_infer_request()
    tokenizer = language.decoder().tokenizer
    tokens = tokenizer.encode(prompt)
    first = [np.array(leaf) for leaf in jax.tree.leaves(language.first_arguments(tokens, steps))]

    def speak() -> str:
        state = first[2:]

        def forward(token: int) -> Any:
            nonlocal state
            feeds = [np.array([[token]], np.int32), first[1], *state]
            outputs = request.infer(dict(zip(files.inputs, feeds, strict=True)), share_inputs=True)
            # Copies: the request writes its results of the next step to the same memory.
            logits, *state = (np.array(outputs[output]) for output in compiled.outputs)
            return logits

        return tokenizer.decode(list(onnx_steps.greedy(forward, tokens, steps)))

    return speak, path.stat().st_size
