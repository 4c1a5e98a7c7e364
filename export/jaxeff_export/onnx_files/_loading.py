"""ONNX files as checked models: bounded, and with all their data inside.

A file from elsewhere says where its data lie, how many there are and what shape they have; none of
it is believed before it is compared with the bytes that are there.
"""

import copy
import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from jaxeff.store import InflationError, require_inflatable
from jaxeff_export.onnx_files._graph import OnnxError
from jaxeff_export.onnx_files._operators import Call, Value

OLDEST = 1
_BY_SHAPES = 7
"""Operator sets before this one broadcast by attributes."""
_LARGEST_FILE = 2**31  # bytes, what protobuf holds


def loaded(source: str | os.PathLike[str] | onnx.ModelProto) -> onnx.ModelProto:
    """Reads and checks a model; the data of other files in its folder are inside afterwards."""
    if isinstance(source, onnx.ModelProto):
        model, folder = copy.deepcopy(source), None
    else:
        path = Path(source)
        if path.stat().st_size >= _LARGEST_FILE:
            raise OnnxError(f"from_onnx: {path} is larger than 2 GiB: keep weights beside it.")
        try:
            model, folder = onnx.load_model_from_string(path.read_bytes()), path.parent
        except Exception as error:  # a class of protobuf's own, by implementation
            raise OnnxError(f"from_onnx: {path} is no ONNX file: {error}") from error
    tensors = [*_tensors(model)]
    external = [t for t in tensors if t.data_location == onnx.TensorProto.EXTERNAL]
    size = model.ByteSize() + sum(_bytes_of(t) for t in external)
    if size >= _LARGEST_FILE:
        raise OnnxError(f"from_onnx: the model has {size} bytes; at most 2 GiB are read.")
    _fetch(external, folder)
    for entry in model.opset_import:
        newest = onnx.defs.onnx_opset_version()
        if entry.domain in ("", "ai.onnx") and not OLDEST <= entry.version <= newest:
            raise OnnxError(
                f"from_onnx: the model is of operator set {entry.version}; {OLDEST} to {newest} "
                f"are read: {'update onnx' if entry.version > newest else 'convert it'} "
                "(onnx.version_converter.convert_version)."
            )
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # of the checker, or of protobuf
        raise OnnxError(f"from_onnx: the model isn't valid: {error}") from error
    return model


def _tensors(model: onnx.ModelProto) -> Iterable[onnx.TensorProto]:
    """Lists all tensors: of the graph, of attributes, of graphs inside nodes, of functions."""
    waiting: list[Any] = [model.graph, *model.functions]
    while waiting:
        graph = waiting.pop()
        yield from getattr(graph, "initializer", ())
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                waiting += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _bytes_of(tensor: onnx.TensorProto) -> int:
    if any(size < 0 for size in tensor.dims):
        raise OnnxError(f"from_onnx: {tensor.name!r} has the shape {list(tensor.dims)}.")
    bits = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}
    try:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type)
        width = bits.get(kind) or 8 * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, ValueError) as error:
        raise OnnxError(
            f"from_onnx: {tensor.name!r} has no known dtype ({tensor.data_type})."
        ) from error
    return -(-math.prod(tensor.dims) * width // 8)


def _fetch(tensors: Sequence[onnx.TensorProto], folder: Path | None) -> None:
    """Puts the bytes of other files into tensors."""
    places = [_place_of(tensor, folder) for tensor in tensors]
    sizes = {path: path.stat().st_size for path, _, _ in places}
    # Tensors may lie on each other, and take the same bytes many times.
    try:
        require_inflatable(
            (length for _, _, length in places), sum(sizes.values()), "save it with all data inside"
        )
    except InflationError as error:
        raise OnnxError(f"from_onnx: what the model has in {next(iter(sizes))} {error}.") from error
    for tensor, (path, start, length) in zip(tensors, places, strict=True):
        with path.open("rb") as file:
            file.seek(start)
            tensor.raw_data = file.read(length)
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT


def _place_of(tensor: onnx.TensorProto, folder: Path | None) -> tuple[Path, int, int]:
    """Finds a tensor's bytes in another file: of a file in the model's folder, no other."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    where = entries.get("location", "")
    if folder is None:
        raise OnnxError(
            f"from_onnx: the data of {tensor.name!r} are in the file {where!r}: give the path of "
            "the model."
        )
    root, path = folder.resolve(), (folder / where).resolve()
    if not where or not path.is_relative_to(root) or not path.is_file():
        raise OnnxError(
            f"from_onnx: the data of {tensor.name!r} are in {where!r}, which is no file in the "
            "folder of the model."
        )
    size = _bytes_of(tensor)
    try:
        start, length = int(entries.get("offset", 0)), int(entries.get("length", size))
    except ValueError as error:
        raise OnnxError(f"from_onnx: {tensor.name!r} lies nowhere: {entries}.") from error
    if start < 0 or length != size or start + length > path.stat().st_size:
        raise OnnxError(
            f"from_onnx: {tensor.name!r} takes {size} bytes, and bytes {start} to {start + length} "
            f"of {where!r}, which has {path.stat().st_size}, aren't those."
        )
    return path, start, length


def in_todays_form(call: Call, inputs: list[Value]) -> tuple[Call, list[Value]]:
    """Returns a node of operator sets 1 to 6, and what it reads, as rules of later ones take it."""
    operator, options = call.operator, {**call.attributes}
    if call.opset >= _BY_SHAPES:
        return call, inputs
    if operator in ("Dropout", "BatchNormalization") and not options.get("is_test"):
        raise call.refused("is in training mode (is_test isn't set); export it for inference")
    defaults = {"Concat": 1, "Split": 0}
    if operator in defaults:
        options.setdefault("axis", defaults[operator])
    elif operator == "Cast" and isinstance(options.get("to"), str):
        if options["to"] not in onnx.TensorProto.DataType.keys():  # noqa: SIM118
            raise call.refused(f"names the dtype {options['to']!r}, which there isn't")
        options["to"] = onnx.TensorProto.DataType.Value(options["to"])
    elif operator == "Pad":
        options.setdefault("pads", options.get("paddings"))
    elif operator == "Upsample" and "height_scale" in options:
        options["scales"] = [1, 1, options["height_scale"], options["width_scale"]]
    elif operator == "Tile" and len(inputs) > 2:
        times, axis = (np.ravel(np.asarray(value)).astype(np.int64) for value in inputs[1:])
        repeats = np.ones(np.ndim(inputs[0]), np.int64)
        repeats[axis] = times
        inputs = [inputs[0], repeats]
    elif operator != "Gemm" and len(inputs) == 2:
        inputs = _beside(call, options, *inputs)
    return dataclasses.replace(call, attributes=options), inputs


def _beside(call: Call, options: Mapping[str, Any], a: Value, b: Value) -> list[Value]:
    """Gives the second of two arrays the axes that broadcasting from an axis means."""
    axis, rank = options.get("axis"), np.ndim(b)
    if call.operator == "PRelu" and rank == 1:
        axis = 1
    elif not options.get("broadcast") or axis is None:
        return [a, b]
    behind = np.ndim(a) - axis % max(np.ndim(a), 1) - rank
    if behind < 0:
        raise call.refused(f"broadcasts {np.shape(b)} from axis {axis} of {np.shape(a)}")
    return [a, b.reshape(b.shape + (1,) * behind)]


def array_of(tensor: onnx.TensorProto) -> np.ndarray:
    """Returns the values of a tensor; texts as objects."""
    if tensor.data_type == onnx.TensorProto.STRING:
        return np.asarray([b.decode(errors="replace") for b in tensor.string_data], object)
    try:
        return numpy_helper.to_array(tensor)
    except Exception as error:  # of protobuf or NumPy, as the damage has it
        raise OnnxError(f"from_onnx: the tensor {tensor.name!r} is damaged: {error}") from error
