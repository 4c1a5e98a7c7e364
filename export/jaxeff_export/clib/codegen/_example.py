"""``main.c``: a program that replays what JAX recorded, on a computer or a microcontroller."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxeff_export.artifact import dtype_of
from jaxeff_export.clib.codegen._interface import Field
from jaxeff_export.clib.codegen._rendering import render
from jaxeff_export.clib.codegen._sources import Library

_ALIGNMENT = 16


@dataclasses.dataclass(frozen=True)
class RecordedCall:
    """Recorded call as one block of bytes.

    Attributes:
        blob: inputs, then outputs.
        inputs: offset of each.
        outputs: offset of each.
    """

    blob: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def record(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> RecordedCall:
    """Lays the arrays of a recorded call out as one block of bytes."""
    blob, places = bytearray(), []
    for value in (*inputs, *outputs):
        # Aligned for any element, as the example casts pointers into the block.
        blob.extend(bytes(-len(blob) % _ALIGNMENT))
        places.append(len(blob))
        blob.extend(np.asarray(value).tobytes())
    return RecordedCall(bytes(blob), tuple(places[: len(inputs)]), tuple(places[len(inputs) :]))


def main_c(library: Library, recorded: RecordedCall, tolerances: Sequence[float]) -> str:
    """Writes the example.

    Args:
        library: what it calls.
        recorded: what it replays.
        tolerances: per output, what may differ relative to its largest magnitude.
    """
    n, u = library.name, library.upper
    # C has no arrays of no elements.
    buffers = [
        f"static {field.kind} {field.name}_[{max(1, field.count)}];" for field in library.returned
    ]
    given = [
        f"    inputs.{field.name} = (const {field.kind} *)(const void *)({n}_recorded + {place});"
        for field, place in zip(library.inputs, recorded.inputs, strict=True)
        if not field.kept
    ] or ["    inputs.nothing = 0;"]
    if library.state:
        buffers.append(f"static {n}_state state;")
        given += [
            f"    memcpy(state.{field.name}, {n}_recorded + {place}, {field.size});"
            for field, place in zip(library.inputs, recorded.inputs, strict=True)
            if field.kept
        ]
        given.append("    inputs.state = &state;")
    blob = []
    if not library.embedded:
        given.append(f"    inputs.parameters = {n}_parameters;")
        blob = [f"extern const unsigned char {n}_parameters[];"]
    refused = []
    if library.refuses_nan:
        refused = [
            f"        if (code == {u}_NOT_A_NUMBER)",
            '            printf("an argument that is rounded to codes holds NaN\\n");',
        ]
    started, stopped = [], []
    if library.threads > 1:
        started = [
            f"    if ({n}_start(&threads) != {u}_OK)",
            "        return 4;",
            "    inputs.threads = &threads;",
        ]
        stopped = [f"    {n}_stop(&threads);"]
    filled = [f"    outputs.{field.name} = {field.name}_;" for field in library.returned]
    compared = [
        f'    failures += differs("{field.name}", {_array(field)}, {n}_recorded + {place}, '
        f"{field.count}, {_kind(field.spec.dtype)}, {tolerance!r});"
        for field, place, tolerance in zip(
            library.outputs, recorded.outputs, tolerances, strict=True
        )
    ]
    written = [f"    fwrite({_array(field)}, 1, {field.size}, file);" for field in library.outputs]
    return render(
        "main.c",
        name=n,
        NAME=u,
        parameters=blob,
        buffers=buffers or ["/* the function has no results */"],
        threads=[f"static {n}_threads threads;", ""] if library.threads > 1 else [],
        given=given,
        filled=filled or ["    outputs.nothing = 0;"],
        started=started,
        refused=refused,
        compared=compared,
        written=written,
        stopped=stopped,
    )


def _array(field: Field) -> str:
    return f"state.{field.name}" if field.kept else f"{field.name}_"


def _kind(name: str) -> str:
    """Chooses how the example reads an element."""
    dtype = dtype_of(name)
    if name in ("float16", "bfloat16"):
        return name.upper()
    if name in ("float32", "float64"):
        return "DOUBLES" if name == "float64" else "FLOATS"
    return f"BITS + {dtype.itemsize}"  # integers, and floats of 8 bits: the same or not
