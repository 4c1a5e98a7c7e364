"""The entry point: StableHLO in, a TVM module out.

```python
import jax
import jax.numpy as jnp

from jaxeff_export import import_stablehlo

exported = jax.export.export(jax.jit(lambda x, w: jax.nn.softmax(x @ w)))
module = import_stablehlo(exported(jnp.ones((2, 3)), jnp.ones((3, 5))))
print(module["main"])                                    # its operators, as Relax
assert len(module["main"].params) == 2                   # x and w
```
"""

from collections.abc import Mapping

import tvm
from jaxlib.mlir import ir

from jaxeff_export.compiler.passes import narrow_floats_to_bits
from jaxeff_export.compiler.tir import lets_to_locals

# Rules register themselves when the file of their family is imported.
from jaxeff_export.importer import _arithmetic, _elementary, _graph  # noqa: F401
from jaxeff_export.importer._emitter import CompositeRule, Emitter, known_ops
from jaxeff_export.importer._expansions import functions_of, public_function
from jaxeff_export.importer._graph_builder import GraphBuilder
from jaxeff_export.importer._source import Source, legalize, load_module, of_size
from jaxeff_export.importer._symbolic import generalize
from jaxeff_export.importer.rules import rewrite


def import_stablehlo(
    source: Source,
    *,
    composites: Mapping[str, CompositeRule] | None = None,
    parameters: int = 0,
) -> tvm.IRModule:
    """Imports a StableHLO module into Relax.

    Args:
        source: StableHLO text, a portable artifact's bytes, an MLIR module, or an ``Exported``
            from ``jax.export``. Dynamic dimensions of the arguments become one symbolic size.
        composites: lowerings of ``stablehlo.composite`` by name, each called as
            ``lowering(block_builder, *tensors, **attributes)`` and returning one Relax expression
            or a list of them. Composites that are not named here are inlined.
        parameters: number of leading arguments that are parameters: `bind_parameters` computes
            once what depends on them alone, so their matrices are transposed at no cost.

    Returns:
        A module whose ``main`` takes the arguments of the public function in order, and returns
        a tensor, or a tuple where the function has several results (or none).

    Raises:
        StableHLOParseError: the source cannot be read, or has no public function.
        UnsupportedOpError: operations without a lowering; all of the module's are named.
    """
    module = load_module(source)
    with module.context:
        function = public_function(functions_of(module))
        arguments = [argument.type for argument in function.regions[0].blocks[0].arguments]
    # Fixed shapes take one import; a symbolic size is inferred from imports at several sizes.
    if not any(_graph.is_dynamic(kind) for kind in arguments):
        legalize(module)
        return _import(module, composites or {}, parameters)

    def import_at(size: int) -> tvm.IRModule:
        return _import(of_size(module, arguments, size), composites or {}, parameters)

    try:
        return generalize(import_at)
    except (_graph.StableHLOParseError, _graph.UnsupportedOpError):
        raise
    except _graph.Unsupported as error:
        raise _graph.UnsupportedOpError([_graph.describe(function, str(error))]) from error
    except Exception as error:
        raise _graph.failure(function, error) from error


def _import(
    module: ir.Module, composites: Mapping[str, CompositeRule], parameters: int
) -> tvm.IRModule:
    builder = GraphBuilder(module, known_ops(), set(composites), rewrite)
    with module.context, ir.Location.unknown():
        graph = builder.build()
        emitter = Emitter(composites)
        # A graph with stand-ins would raise errors of its own, which explain nothing.
        if not builder.unsupported:
            emitter.emit(graph, parameters)
    unsupported = builder.unsupported + emitter.unsupported
    if unsupported:
        raise _graph.UnsupportedOpError(unsupported)
    # TVM takes exponential time in long chains of lets, and makes float32 of narrow buffers.
    return narrow_floats_to_bits(lets_to_locals(emitter.bb.get()))
