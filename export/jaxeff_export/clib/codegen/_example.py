"""``main.c``: a program that replays what JAX recorded, on a computer or a microcontroller."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxeff_export.artifact import dtype_of
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
        f"static {field.kind} {field.name}_[{max(1, field.count)}];" for field in library.outputs
    ]
    given = [
        f"    inputs.{field.name} = (const {field.kind} *)(const void *)({n}_recorded + {place});"
        for field, place in zip(library.inputs, recorded.inputs, strict=True)
    ] or ["    inputs.nothing = 0;"]
    blob = []
    if not library.embedded:
        given.append(f"    inputs.parameters = {n}_parameters;")
        blob = [f"extern const unsigned char {n}_parameters[];"]
    refused = []
    if library.rounds_inputs:
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
    filled = [f"    outputs.{field.name} = {field.name}_;" for field in library.outputs]
    compared = [
        f'    failures += differs("{field.name}", {field.name}_, {n}_recorded + {place}, '
        f"{field.count}, {_kind(field.spec.dtype)}, {tolerance!r});"
        for field, place, tolerance in zip(
            library.outputs, recorded.outputs, tolerances, strict=True
        )
    ]
    written = [f"    fwrite({field.name}_, 1, {field.size}, file);" for field in library.outputs]
    return "\n".join(
        [
            "/* Replays a recorded call, and compares with what JAX computed. */",
            f'#include "{n}.h"',
            "",
            "#include <math.h>",
            "#include <stdio.h>",
            "#include <string.h>",
            "#include <time.h>",
            "",
            f"extern const unsigned char {n}_recorded[];",
            *blob,
            f"static _Alignas({u}_WORKSPACE_ALIGNMENT) unsigned char "
            f"workspace[{u}_WORKSPACE_BYTES + 1];",
            *(buffers or ["/* the function has no results */"]),
            "",
            _COMPARE,
            *([f"static {n}_threads threads;", ""] if library.threads > 1 else []),
            "int main(void)",
            "{",
            f"    {n}_inputs inputs;",
            f"    {n}_outputs outputs;",
            "    int failures = 0, code;",
            *given,
            *(filled or ["    outputs.nothing = 0;"]),
            *started,
            f"    code = {n}_run(&inputs, &outputs, workspace, {u}_WORKSPACE_BYTES);",
            f"    if (code != {u}_OK) {{",
            f'        printf("{n}_run returned %d\\n", code);',
            *refused,
            "        return 2;",
            "    }",
            *compared,
            f'    printf("workspace %d bytes, parameters %d bytes: %s\\n", {u}_WORKSPACE_BYTES,',
            f'           {u}_PARAMETER_BYTES, failures == 0 ? "as JAX computed" : "DIFFERENT");',
            "#ifdef REPLAY_TIMES /* how long a call takes, over so many */",
            "    {",
            "        struct timespec begin, end;",
            "        long i;",
            "        timespec_get(&begin, TIME_UTC);",
            "        for (i = 0; i < REPLAY_TIMES; i++)",
            f"            {n}_run(&inputs, &outputs, workspace, {u}_WORKSPACE_BYTES);",
            "        timespec_get(&end, TIME_UTC);",
            '        printf("%.1f ns a call\\n",',
            "               ((double)(end.tv_sec - begin.tv_sec) * 1e9",
            "                + (double)(end.tv_nsec - begin.tv_nsec)) / REPLAY_TIMES);",
            "    }",
            "#endif",
            "#ifdef REPLAY_FILE /* where results are written to, for other comparisons */",
            "    {",
            '        FILE *file = fopen(REPLAY_FILE, "wb");',
            "        if (file == NULL)",
            "            return 3;",
            *written,
            "        fclose(file);",
            "    }",
            "#endif",
            *stopped,
            "    return failures != 0;",
            "}",
            "",
        ]
    )


def _kind(name: str) -> str:
    """Chooses how the example reads an element."""
    dtype = dtype_of(name)
    if name in ("float16", "bfloat16"):
        return name.upper()
    if name in ("float32", "float64"):
        return "DOUBLES" if name == "float64" else "FLOATS"
    return f"BITS + {dtype.itemsize}"  # integers, and floats of 8 bits: the same or not


_COMPARE = r"""enum { FLOATS, DOUBLES, FLOAT16, BFLOAT16, BITS };

static double value(const unsigned char *array, size_t i, int kind)
{
    float single;
    double wide;
    uint16_t half;
    uint32_t bits;
    int exponent;
    if (kind == DOUBLES) {
        memcpy(&wide, array + 8 * i, 8);
        return wide;
    }
    if (kind == FLOATS) {
        memcpy(&single, array + 4 * i, 4);
        return (double)single;
    }
    memcpy(&half, array + 2 * i, 2);
    if (kind == BFLOAT16) {
        bits = (uint32_t)half << 16;
        memcpy(&single, &bits, 4);
        return (double)single;
    }
    exponent = half >> 10 & 31;
    wide = half & 1023;
    if (exponent == 31)
        wide = wide > 0 ? (double)NAN : (double)INFINITY;
    else
        wide = exponent ? ldexp(1024 + wide, exponent - 25) : ldexp(wide, -24);
    return half >> 15 ? -wide : wide;
}

static int differs(const char *name, const void *ours, const void *theirs, size_t count, int kind,
                   double tolerance)
{
    double error = 0, scale = 0;
    size_t i;
    int same = 1;
    if (kind >= BITS) {
        same = memcmp(ours, theirs, count * (size_t)(kind - BITS)) == 0;
        printf("%s: %s\n", name, same ? "the same" : "DIFFERENT");
        return !same;
    }
    for (i = 0; i < count; i++) {
        const double x = value(ours, i, kind), y = value(theirs, i, kind);
        const double d = x > y || x < y ? fabs(x - y) : 0; /* infinities have to be the same */
        if (d > error || isnan(x))
            error = isnan(x) ? (double)INFINITY : d;
        if (isfinite(y) && fabs(y) > scale)
            scale = fabs(y);
    }
    same = error <= tolerance * scale;
    printf("%s: largest error %.3g where the largest value is %.3g%s\n", name, error, scale,
           same ? "" : ": DIFFERENT");
    return !same;
}
"""
