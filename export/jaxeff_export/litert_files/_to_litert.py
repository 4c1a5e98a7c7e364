"""`to_litert`: a pure function as a LiteRT file, by StableHLO and Google's converter.

<!-- skip: next if(no_litert, reason="litert-converter or ai-edge-litert isn't installed") -->
```python
import numpy as np
from ai_edge_litert.interpreter import Interpreter

from jaxeff.nn import small_classifier
from jaxeff_export import to_litert

f, params, (x, y) = small_classifier(4)
file = to_litert(f, (params, x), "net.tflite")
run = Interpreter(str(file.path)).get_signature_runner()
logits = run(**{file.inputs[0]: np.asarray(x)})[file.outputs[0]]
assert np.allclose(logits, f(params, x), atol=1e-5)
```

Sharp edges:

- Everything is written in float. The converter reads no grids: the weights of a quantized function
  stay float32, with the operations that round them. `to_onnx` and `deploy` write codes.
- Weights pass through text, which is slow from some tens of megabytes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxeff.core import function_of_form, instance_of, static_integer, validate
from jaxeff.store import write_atomically
from jaxeff_export.targets import require_extra


class LitertError(ValueError):
    """A function has what the converter to LiteRT doesn't take; the message is the converter's."""


class LitertFile(NamedTuple):
    """What `to_litert` wrote.

    Attributes:
        path: The file, whose one signature is called `serving_default`.
        inputs: Names of the signature's inputs: `x0`, `x1`, ... for leaves of further arguments.
        outputs: Names of its results, `y0`, `y1`, ... for the leaves that the function returns.
    """

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@validate(
    fn=function_of_form("fn(*args)"), args=instance_of(tuple, list), parameters=static_integer(0)
)
def to_litert(
    fn: Callable[..., Any],
    args: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    parameters: int = 1,
) -> LitertFile:
    """Writes a function as a file for LiteRT (TensorFlow Lite), in float.

    Args:
        fn: Pure function; transforms such as `moments(f)` are functions too.
        args: Arguments that say the shapes and dtypes; parameters among them become constants.
        path: The file, `.tflite`.
        parameters: How many of the first arguments are parameters.

    Raises:
        MissingExtraError: The package `litert-converter` isn't installed.
        LitertError: The converter takes no such function.
        OSError: The file can't be written.
    """
    require_extra("litert_converter", "to_litert")
    fixed, given = tuple(args[:parameters]), tuple(args[parameters:])
    # A signature has flat names; what is nested is put together inside.
    leaves, structure = jax.tree.flatten(given)

    def flat(*values: Any) -> list[Any]:
        return jax.tree.leaves(fn(*fixed, *jax.tree.unflatten(structure, values)))

    # Parameters are closed over, so they are constants of the file.
    lowered = jax.jit(flat, keep_unused=True).lower(*leaves)
    inputs = tuple(f"x{i}" for i in range(len(leaves)))
    outputs = tuple(f"y{i}" for i in range(len(jax.tree.leaves(lowered.out_info))))
    write_atomically(path, _converted(lowered.as_text(), inputs, outputs))
    return LitertFile(Path(path), inputs, outputs)


def _converted(text: str, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    from litert_converter import converter_api_ext as converter  # optional
    from litert_converter.mlir import ir, passmanager  # optional

    # The converter has an MLIR of its own: JAX's module reaches it as text.
    context = ir.Context()
    converter.prepare_mlir_context(context)
    try:
        with context, ir.Location.unknown():
            module = ir.Module.parse(text, context)
            # Else results have no names, and their order is the converter's.
            converter.set_signature(module.operation, "serving_default", inputs, outputs)
            config = converter.ConvertToTFLConfig()
            converter.run_convert_to_tfl_passes(module, passmanager.PassManager(), config)
            return bytes(converter.export_flatbuffer_to_bytes(module.operation))
    # MLIR's own errors, and what the extension raises for its passes.
    except (ValueError, RuntimeError, ir.MLIRError) as error:
        raise LitertError(f"to_litert: the converter refuses the function: {error}") from error
