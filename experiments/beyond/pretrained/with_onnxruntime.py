"""SmolLM2-135M on ONNX Runtime, on one thread: our step as `to_onnx` writes it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime

from experiments.beyond import onnx_steps
from experiments.beyond.pretrained import language

FORMS = {"float32": "float32", "int8": "int8", "int4 by 32": "int4"}


def continuing(folder: Path, name: str, prompt: str, steps: int) -> tuple[Callable[[], str], int]:
    """Returns what continues a prompt greedily in a format, and the bytes of its file."""
    files = step_files(folder, prompt, steps)
    path = files.paths[FORMS[name]]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options)
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    tokenizer = language.decoder().tokenizer
    tokens = tokenizer.encode(prompt)
    first = jax.tree.leaves(language.first_arguments(tokens, steps))

    def speak() -> str:
        # Values of its own memory: the cache of a step is what the next one reads.
        state = [value(np.asarray(leaf)) for leaf in first[2:]]

        def forward(token: int) -> Any:
            nonlocal state
            feeds = [value(np.array([[token]], np.int32)), value(np.asarray(first[1])), *state]
            named = dict(zip(files.inputs, feeds, strict=True))
            logits, *state = session.run_with_ort_values(list(files.outputs), named)
            return logits.numpy()

        return tokenizer.decode(list(onnx_steps.greedy(forward, tokens, steps)))

    return speak, path.stat().st_size


@functools.cache
def step_files(folder: Path, prompt: str, steps: int) -> onnx_steps.StepFiles:
    """Writes our step in all formats, once for the engines that read ONNX."""
    f, params, _, tokenizer, _ = language.decoder()
    one = language.first_arguments(tokenizer.encode(prompt), steps)
    step = functools.partial(language.step_of, f)
    return onnx_steps.written(step, (params, *one), folder / "onnx")
