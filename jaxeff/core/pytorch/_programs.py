"""Programs that `torch.export` made, as runners and arrays by path.

A program is a graph of PyTorch's operations, in which nothing is written in place and every size is
one that it was exported for, or a name for several. It runs on JAX as a module does, each operation
under the name of the layer that it is of.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch._export.utils import _check_input_constraints_for_graph
from torch.export._tree_utils import reorder_kwargs
from torch.utils import _pytree as pytree

from jaxeff.core._from_jax import Kept, Leaves, LibraryModel, Method, warn_of_training_mode
from jaxeff.core.pytorch._files import load_program
from jaxeff.core.pytorch._graphs import GraphRun, layer_scope
from jaxeff.core.pytorch._modules import read_callable
from jaxeff.core.pytorch._tensors import is_tensor


def read_program(
    source: torch.export.ExportedProgram | str | os.PathLike[str],
    method: Method,
    keyed: bool,
    mutable: bool,
) -> LibraryModel:
    """Reads an exported program or its file: its parameters, and its buffers as state.

    Raises:
        TypeError: A method is asked for, of which a program has one.
    """
    if method is not None:
        raise TypeError(
            "functional: an exported program has no methods but the one that was exported: leave "
            f"method={method!r} out, or export that method of the module."
        )
    is_program = isinstance(source, torch.export.ExportedProgram)
    program: Any = source if is_program else load_program(source)
    if program.graph_signature.user_inputs_to_mutate:
        written = sorted(program.graph_signature.user_inputs_to_mutate.values())
        raise NotImplementedError(
            f"functional: the program writes into its inputs {written}: export a module that "
            "returns the new values."
        )
    # Writes become results; the empty table decomposes nothing else.
    functional_form = program.run_decompositions({})
    module = functional_form.module(check_guards=False)
    # What PyTorch checks of sizes before a call is asked here, so that messages say the way out.
    guards = getattr(program.module(), "_guards_fn", None)
    _warn_of_mode(functional_form, keyed, mutable)

    def called(module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        flat = _flat_inputs(module, args, kwargs)
        _check_sizes(module, guards, flat)
        results = GraphRun(module).run(*(leaf for _, leaf in flat), enable_io_processing=False)
        return pytree.tree_unflatten(results, module._out_spec)

    def restored(params: Leaves, state: Leaves, kept: Kept) -> torch.export.ExportedProgram:
        del kept
        leaves = {path.replace("/", "."): leaf for path, leaf in {**params, **state}.items()}
        return _with_values(program, leaves)

    return read_callable(module, called, mutable, restored)


def _flat_inputs(
    module: torch.fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[Any, Any]]:
    """Lists inputs with their places, in the order of the graph."""
    expected = module._in_spec
    takes, names = expected.children()[0].num_children, [*(expected.children()[1].context or ())]
    if len(args) != takes or {*kwargs} != {*names}:
        raise TypeError(
            f"the program takes {takes} inputs in order and {names} by name, as it was exported, "
            f"but got {len(args)} and {sorted(kwargs)}."
        )
    flat, spec = pytree.tree_flatten_with_path((args, reorder_kwargs(kwargs, expected)))
    if spec.num_leaves != expected.num_leaves:
        raise TypeError(f"the program takes inputs in the structure {expected}, not {spec}.")
    return flat


def _check_sizes(module: torch.fx.GraphModule, guards: Any, flat: list[tuple[Any, Any]]) -> None:
    """Refuses inputs of sizes for which the program wasn't exported.

    Raises:
        ValueError: There is one; a graph of other sizes could compute something else.
    """
    # By shapes alone: a traced input has no values that could be compared.
    placeholders = list(module.graph.find_nodes(op="placeholder"))
    try:
        _check_input_constraints_for_graph(placeholders, flat, module.range_constraints)
        if guards is not None:
            guards(*(leaf for _, leaf in flat))
    except (RuntimeError, AssertionError) as error:
        cause = str(error).partition(". If you meant")[0].replace("*args", "inputs")
        raise ValueError(
            f"a program computes the sizes that it was exported for: {cause}. For other sizes give "
            "them names: torch.export.export(model, (x,), "
            "dynamic_shapes=({0: torch.export.Dim.AUTO},))."
        ) from error


def _warn_of_mode(program: torch.export.ExportedProgram, keyed: bool, mutable: bool) -> None:
    """Warns of a program that was exported for training, and that a function can't follow."""
    dropping = {*_layers_drawing(program.graph)} if not keyed else set()
    written = program.graph_signature.buffers_to_mutate.values()
    batching = {name.rpartition(".")[0] for name in written} if not mutable else set()
    warn_of_training_mode(
        "the exported program",
        *([*map(layer_scope, sorted(names))] for names in (dropping, batching)),
    )


def _layers_drawing(graph: torch.fx.Graph) -> Iterator[str]:
    for node in graph.nodes:
        tags = getattr(node.target, "tags", ())
        if node.op == "call_function" and torch.Tag.nondeterministic_seeded in tags:
            stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
            yield (stack[-1] if stack else "") or node.name


def _with_values(
    program: torch.export.ExportedProgram, leaves: dict[str, Any]
) -> torch.export.ExportedProgram:
    """Copies a program with other values of its parameters and buffers, of the same shapes."""
    values: list[dict[str, Any]] = []
    for before in (program.state_dict, program.constants):
        after = dict(before)
        # A tied parameter is one tensor under several names, and stays one.
        shared: dict[int, torch.Tensor] = {}
        for name, tensor in before.items():
            if not is_tensor(tensor):
                continue
            if name in leaves:
                array = np.asarray(leaves[name])
                if array.shape != tuple(tensor.shape):
                    raise ValueError(
                        f"restore: {name!r} is {array.shape} and was {tuple(tensor.shape)}, and an "
                        "exported program's sizes are fixed: restore the module that it was "
                        "exported from, and export that."
                    )
                # PyTorch reads none of these from NumPy; float32 holds them exactly.
                if array.dtype.name == "bfloat16":
                    array = array.astype(np.float32)
                new = torch.tensor(array).to(dtype=tensor.dtype, device=tensor.device)
                if isinstance(tensor, torch.nn.Parameter):
                    new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
                shared[id(tensor)] = new
        for name, tensor in before.items():
            after[name] = shared.get(id(tensor), tensor)
        values.append(after)
    result = program._update(
        copy.deepcopy(program.graph_module), copy.deepcopy(program.graph_signature),
        state_dict=values[0], constants=values[1],
    )  # fmt: skip
    result._guards_code = list(program._guards_code)
    return result
