"""Tensors of GGUF files, as llama.cpp writes them; quantized ones are dequantized to float32.

Sharp edge: for models of the Llama architecture the writer reorders the rows of the query and key
projections, so that each pair of numbers that rotary positions turn stands side by side. A model
that turns halves against each other needs the rows as they were: `rotary_halves`.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

_REORDERED = ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias")


def read_gguf(file: BinaryIO, path: Path) -> tuple[dict, dict, dict]:
    """Reads tensors, no layouts, and the doubts about reordered ones.

    Raises:
        ImportError: The package `gguf` isn't there.
    """
    del file  # a look whether it is a regular one: the reader maps the file itself
    try:
        import gguf  # optional
    except ImportError as error:
        raise ImportError(
            "reading .gguf needs the package gguf: install jaxeff[weights]."
        ) from error
    reader = gguf.GGUFReader(path)
    arrays, doubts = {}, {}
    architecture = reader.get_field("general.architecture")
    llama = architecture is not None and architecture.contents() == "llama"
    for tensor in reader.tensors:
        # Dimensions are written innermost first.
        shape = [int(n) for n in reversed(tensor.shape)]
        # Copied: the reader's arrays are views of a file that may change.
        array = np.array(gguf.dequantize(tensor.data, tensor.tensor_type)).reshape(shape)
        arrays[tensor.name] = array
        if llama and tensor.name.endswith(_REORDERED):
            doubts[tensor.name] = (
                "GGUF files of the Llama architecture hold rotary pairs side by side: give a rule, "
                "(name, rotary_halves(heads)) where the model turns halves, (name, numpy.asarray) "
                "where it turns neighbours"
            )
    return arrays, {}, doubts
