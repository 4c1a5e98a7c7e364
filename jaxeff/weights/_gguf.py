"""Tensors of GGUF files, as llama.cpp writes them; quantized ones are dequantized to float32.

Sharp edge: for models of the Llama architecture the writer reorders the rows of the query and key
projections, so that each pair of numbers that rotary positions turn stands side by side. A model
that turns halves against each other needs the rows as they were: `rotary_halves`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jaxeff.core import path_like, validate
from jaxeff.store import open_regular
from jaxeff.weights._errors import WeightsError
from jaxeff.weights._gguf_header import check_header

_REORDERED = ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias")


def read_gguf(file: BinaryIO, path: Path) -> tuple[dict, dict, dict]:
    """Reads tensors, no layouts, and the doubts about reordered ones.

    Raises:
        ImportError: The package `gguf` isn't there.
    """
    gguf = _package()
    check_header(file)  # the reader maps the file itself
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


@validate(path=path_like)
def gguf_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads what a GGUF file says about its model: sizes, vocabulary, merges.

    Args:
        path: The file.

    Returns:
        Numbers, strings and lists of them by key, such as `llama.embedding_length`.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: The package `gguf` isn't there (`jaxeff[weights]`).
        WeightsError: The file is damaged.

    ```python
    import gguf                                             # writes one, to read
    from jaxeff.weights import gguf_metadata

    writer = gguf.GGUFWriter("model.gguf", "llama")
    writer.add_embedding_length(576)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    print(gguf_metadata("model.gguf")["llama.embedding_length"])
    ```
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file of weights {path}.")
    gguf = _package()
    try:
        with open_regular(path) as (file, _):
            check_header(file)
            return {name: of.contents() for name, of in gguf.GGUFReader(path).fields.items()}
    # The reader fails at damage in ways of its own.
    except Exception as error:
        raise WeightsError(
            f"{path} is damaged, or no .gguf file: {type(error).__name__}: {error}"
        ) from error


def _package() -> Any:
    try:
        import gguf  # optional
    except ImportError as error:
        raise ImportError(
            "reading .gguf needs the package gguf: install jaxeff[weights]."
        ) from error
    return gguf
