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

- What depends on parameters alone is computed here. Matrices on uniform grids of at most 8 bits,
  as of a quantized function, are written as int8 with a step for each channel; those by group stay
  float32. Products are computed in float: LiteRT widens the codes.
- The converter writes no loops: scans of up to 128 steps are written step by step, and rows that
  are added at indices (sums of segments) as a matrix product.
- A file is read back by LiteRT's interpreter before it is there, where that is installed.
- Weights pass through text, which is slow from some tens of megabytes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxeff.core import function_of_form, instance_of, static_integer, validate
from jaxeff.store import write_atomically
from jaxeff_export.litert_files._integer_weights import Weight, find_weights, run
from jaxeff_export.litert_files._substitutes import LitertError
from jaxeff_export.targets import require_extra


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
    """Writes a function as a file for LiteRT (TensorFlow Lite); it computes in float.

    Args:
        fn: Pure function; transforms such as `moments(f)` are functions too.
        args: Arguments that say the shapes and dtypes; parameters among them become constants.
        path: The file, `.tflite`.
        parameters: How many of the first arguments are parameters.

    Raises:
        MissingExtraError: The package `litert-converter` isn't installed.
        LitertError: LiteRT or its converter takes no such function.
        OSError: The file can't be written.
    """
    require_extra("litert_converter", "to_litert")
    fixed, given = tuple(args[:parameters]), tuple(args[parameters:])
    # A signature has flat names; what is nested is put together inside.
    leaves, structure = jax.tree.flatten(given)

    def flat(parameters: Any, *values: Any) -> list[Any]:
        return jax.tree.leaves(fn(*parameters, *jax.tree.unflatten(structure, values)))

    closed = jax.make_jaxpr(flat)(fixed, *leaves)
    known = [np.asarray(leaf) for leaf in jax.tree.leaves(fixed)]
    weights = find_weights(closed, known, [jax.typeof(leaf) for leaf in leaves])

    # Weights on grids are arguments until they are written; other parameters are closed over, so
    # they are constants.
    def whole(taken: Sequence[Any], *values: Any) -> list[Any]:
        at = {w.values.tobytes(): value for w, value in zip(weights, taken, strict=True)}
        return run(closed, [*known, *values], lambda v, _: at.get(v.tobytes(), v))

    lowered = jax.jit(whole, keep_unused=True).lower([w.values for w in weights], *leaves)
    inputs = tuple(f"x{i}" for i in range(len(leaves)))
    outputs = tuple(f"y{i}" for i in range(len(jax.tree.leaves(lowered.out_info))))
    content = _converted(lowered.as_text(), weights, inputs, outputs)
    _require_readable(content)
    write_atomically(path, content)
    return LitertFile(Path(path), inputs, outputs)


def _require_readable(content: bytes) -> None:
    """Has LiteRT's interpreter prepare a file, where it is installed.

    Raises:
        LitertError: It refuses the file; its words are quoted.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter  # optional
    except ImportError:
        return
    try:
        Interpreter(model_content=content).allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise LitertError(
            f"to_litert: the interpreter refuses what would be written, and says: "
            f"{str(error).strip()!r}; deploy and to_onnx take more."
        ) from error


def _write_weights(module: Any, weights: Sequence[Weight]) -> None:
    """Puts quantized constants in the place of the first arguments."""
    from litert_converter.mlir import ir  # optional

    (main,) = (f for f in module.body.operations if f.attributes["sym_name"].value == "main")
    block = main.regions[0].blocks[0]
    types = [argument.type for argument in block.arguments]
    with ir.InsertionPoint.at_block_begin(block):
        for argument, weight in zip(list(block.arguments), weights, strict=False):
            shape = "".join(f"{n}x" for n in weight.codes.shape)
            codes = ir.Operation.create(
                "stablehlo.constant",
                results=[ir.Type.parse(f"tensor<{shape}{weight.kind}>")],
                attributes={"value": ir.DenseElementsAttr.get(weight.codes)},
            )
            made = ir.Operation.create(
                "stablehlo.uniform_dequantize", results=[argument.type], operands=[codes.result]
            )
            argument.replace_all_uses_with(made.result)
    for _ in weights:
        block.erase_argument(0)
    results = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results
    kept = ir.FunctionType.get(types[len(weights) :], results)
    main.attributes["function_type"] = ir.TypeAttr.get(kept)
    if "arg_attrs" in main.attributes:
        each = list(ir.ArrayAttr(main.attributes["arg_attrs"]))[len(weights) :]
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(each)


def _converted(
    text: str, weights: Sequence[Weight], inputs: Sequence[str], outputs: Sequence[str]
) -> bytes:
    from litert_converter import converter_api_ext as converter  # optional
    from litert_converter.mlir import ir, passmanager  # optional

    # The converter has an MLIR of its own: JAX's module reaches it as text.
    context = ir.Context()
    converter.prepare_mlir_context(context)
    try:
        with context, ir.Location.unknown():
            module = ir.Module.parse(text, context)
            _write_weights(module, weights)
            # Else results have no names, and their order is the converter's.
            converter.set_signature(module.operation, "serving_default", inputs, outputs)
            config = converter.ConvertToTFLConfig()
            converter.run_convert_to_tfl_passes(module, passmanager.PassManager(), config)
            return bytes(converter.export_flatbuffer_to_bytes(module.operation))
    # MLIR's own errors, and what the extension raises for its passes.
    except (ValueError, RuntimeError, ir.MLIRError) as error:
        raise LitertError(
            f"to_litert: the converter refuses the function, and says: {str(error).strip()!r}; "
            "deploy and to_onnx take more."
        ) from error
