"""SmolLM2-135M on IREE, on the calling thread: StableHLO of the same function as our bundles'."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.beyond import iree_programs, onnx_steps
from experiments.beyond.pretrained import language


def continuing(folder: Path, name: str, prompt: str, steps: int) -> tuple[Callable[[], str], int]:
    """Returns what continues a prompt greedily in a format, and the bytes of its arrays."""
    del folder
    f, params, _, tokenizer, _ = language.decoder()
    tokens = tokenizer.encode(prompt)
    one = language.first_arguments(tokens, steps)
    g, taken = language.converted(f, params, name, one)
    step = functools.partial(language.step_of, g)
    # Arguments that a format doesn't read are kept: they are given by place.
    text = jax.jit(step, keep_unused=True).lower(taken, *one).as_text()
    main, on_device = iree_programs.compiled(text)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(taken)]
    weights, first = list(map(on_device, leaves)), jax.tree.leaves(one)

    def speak() -> str:
        state = [on_device(np.asarray(leaf)) for leaf in first[2:]]

        def forward(token: int) -> Any:
            nonlocal state
            logits, *state = main(*weights, np.array([[token]], np.int32), np.int32(1), *state)
            return logits.to_host()

        return tokenizer.decode(list(onnx_steps.greedy(forward, tokens, steps)))

    return speak, sum(leaf.nbytes for leaf in leaves)
