"""The header that users include, and the C source that calls the kernels.

State is a struct that the caller owns. Where arguments are rounded to codes, which have none for
NaN, a call refuses it. Threads live in a struct of the caller's, made by ``NAME_start`` and ended
by ``NAME_stop``, for a thread that is made for a call costs more than many a kernel. A call that is
given none, or some that another call has at the moment, runs by itself, with the same bits. Threads
wait by a mutex and a condition, never busily, so that a loop has to be worth the microseconds of
waking them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxeff_export.artifact import dtype_of
from jaxeff_export.clib._objects import CLibraryError
from jaxeff_export.clib.codegen._interface import STATE, Field, Library, grid_of, identifier
from jaxeff_export.clib.codegen._rendering import TYPES, constants, render

# Per dtype the bits without the sign, and infinity's: what is above them is NaN.
_BITS = {
    "float16": ("uint16_t", "0x7fffu", "0x7c00u"),
    "bfloat16": ("uint16_t", "0x7fffu", "0x7f80u"),
    "float32": ("uint32_t", "0x7fffffffu", "0x7f800000u"),
    "float64": ("uint64_t", "0x7fffffffffffffffu", "0x7ff0000000000000u"),
}


def nan_functions(library: Library) -> list[str]:
    """Writes the functions that look for NaN, one per dtype of the arguments."""
    dtypes = dict.fromkeys(field.spec.dtype for field in _checked(library))
    return [line for dtype in dtypes for line in _function(dtype, library)]


def nan_checks(library: Library) -> list[str]:
    """Writes the lines of a call that check its arguments for NaN."""
    lines = []
    for field in _checked(library):
        lines += [
            f"    if (has_nan_{field.spec.dtype}(inputs->{field.name}, {field.count}))",
            f"        return {library.upper}_NOT_A_NUMBER;",
        ]
    return lines


def _checked(library: Library) -> list[Field]:
    if not library.rounds_inputs:
        return []
    exact = ("bool", "int", "uint")  # these have no NaN
    return [f for f in library.passed if f.count and not f.spec.dtype.startswith(exact)]


def _function(dtype: str, library: Library) -> list[str]:
    """Writes a function that looks for NaN.

    Bits are compared, not floats: no flag of a compiler (``-ffast-math``) changes the result.
    """
    if dtype not in _BITS:
        name = next(f.spec.name for f in library.inputs if f.spec.dtype == dtype)
        raise CLibraryError(
            f"{name} is of dtype {dtype}, which a C library can't look through for NaN, and the "
            "function rounds its data to codes; give it float32"
        )
    kind, magnitude, infinity = _BITS[dtype]
    element = next(f.kind for f in library.inputs if f.spec.dtype == dtype)
    text = render(
        "not_a_number.c",
        dtype=dtype,
        element=element,
        kind=kind,
        size=dtype_of(dtype).itemsize,
        magnitude=magnitude,
        infinity=infinity,
    )
    return text.splitlines()


_IN_A_LINE = 16  # bytes


def state_declarations(library: Library) -> list[str]:
    """Writes the struct and its function, for the header."""
    if not library.state:
        return []
    n = library.name
    lines = [
        "/* What stays from one call to the next, and is updated in place. The caller owns it, one",
        f"   for each session; {n}_init sets it to what a session begins with, at any time.",
        "   It has no pointers: keep its bytes, and copy them back, to go on after a restart. */",
        "typedef struct {",
    ]
    for field in library.state:
        # Inline, so that one address is all there is to a session; C has no arrays of no elements.
        lines += [
            f"    /* {field.remark} */",
            f"    {field.kind} {field.name}[{field.count or 1}];",
        ]
    return [*lines, f"}} {n}_state;", "", f"void {n}_init({n}_state *state);", ""]


def state_pointer(library: Library) -> list[str]:
    """Writes the field of the inputs that leads to it."""
    n = library.name
    return [f"    /* see {n}_init */", f"    {n}_state *{STATE};"] if library.state else []


def state_functions(library: Library) -> list[str]:
    """Writes the function, for what calls the kernels."""
    if not library.state:
        return []
    constants: list[str] = []
    lines = [f"void {library.name}_init({library.name}_state *state)", "{"]
    for field, value in zip(library.state, library.initial, strict=True):
        data = np.asarray(value).tobytes()
        # An empty cache is zeros: no constant as large as itself.
        if not any(data):
            lines.append(f"    memset(state->{field.name}, 0, sizeof(state->{field.name}));")
            continue
        constants += [
            f"static const unsigned char first_{field.name}[] = {{",
            *_byte_lines(data),
            "};",
        ]
        lines.append(f"    memcpy(state->{field.name}, first_{field.name}, {len(data)});")
    return [*constants, *lines, "}", ""]


def _byte_lines(data: bytes) -> list[str]:
    starts = range(0, len(data), _IN_A_LINE)
    return ["    " + "".join(f"{byte}," for byte in data[i : i + _IN_A_LINE]) for i in starts]


THREADS_FIELD = "threads"  # of the inputs


def thread_declarations(library: Library) -> list[str]:
    """Writes the struct and its functions, for the header."""
    return render(
        "threads.h", name=library.name, NAME=library.upper, threads=library.threads
    ).splitlines()


def thread_functions(library: Library, steps: list[str]) -> list[str]:
    """Writes the functions, for what calls the kernels.

    `steps` are the calls of the loops that are shared, in order, of `inputs`, `outputs`, `at`,
    `task` and `tasks`.
    """
    n, u = library.name, library.upper
    # The name by which embedded constants are known: the calls are the same text.
    parameters = []
    if not library.embedded and library.parameters.blob:
        parameters = [f"    const unsigned char *const {n}_parameters = inputs->parameters;"]
        # No loop may be worth a thread, and then nothing here reads them.
        parameters += [f"    (void){n}_parameters;"]
    cases = "\n".join(
        f"    case {i}:\n        {call}\n        break;" for i, call in enumerate(steps)
    )
    text = render("threads.c", name=n, NAME=u, parameters=parameters, cases=cases)
    return text.splitlines()


def header(library: Library) -> str:
    """Writes ``NAME.h``."""
    n, u, memory = library.name, library.upper, library.memory
    blob = state_pointer(library)
    if not library.embedded:
        blob += [
            f"    /* the content of {n}_parameters.bin, {u}_PARAMETER_BYTES, aligned to "
            f"{u}_PARAMETER_ALIGNMENT */",
            "    const void *parameters;",
        ]
    # Only a library for several threads has the field, and needs POSIX threads for it.
    if library.threads > 1:
        blob += ["    /* NULL, or started */", f"    {n}_threads *{THREADS_FIELD};"]
    sizes = [
        line
        for name, field in _macros(library.passed, library.returned)
        for line in (
            f"#define {u}_{name}_SIZE {field.count} /* elements of {field.kind} */",
            *grid_of(field, f"{u}_{name}"),
        )
    ]
    codes = ",\n".join(f"    {u}_{code} = {number}" for code, number in library.codes.items())
    rounded = []
    if library.refuses_nan:
        rounded = [
            "/* The function rounds its arguments to codes, which have no NaN: a call returns",
            f"   {u}_NOT_A_NUMBER where one holds it, before it writes anything. An infinity",
            "   becomes an end of its range. */",
        ]
    return render(
        "library.h",
        name=n,
        NAME=u,
        indent=" " * len(n),
        made_for=library.made_for,
        pthread=["#include <pthread.h>"] if library.threads > 1 else [],
        workspace=memory.size,
        workspace_alignment=memory.alignment,
        parameters=len(library.parameters.blob),
        parameter_alignment=library.parameters.alignment,
        sizes=sizes,
        codes=codes,
        threads=thread_declarations(library) if library.threads > 1 else [],
        rounded=rounded,
        state=state_declarations(library),
        inputs=[*_struct(library.passed, "const "), *blob],
        outputs=_struct(library.returned, ""),
    )


def source(library: Library) -> str:
    """Writes ``NAME.c``."""
    n, u = library.name, library.upper
    places = _places(library)
    (body, shared), copies = _calls(library, places), _copies(library, places)
    if library.threads > 1:
        # Threads that another call has are not waited for: this call runs alone, to the same bits.
        body = [
            f"    {n}_threads *threads = inputs->{THREADS_FIELD};",
            "    if (threads != NULL && pthread_mutex_trylock(&threads->taken) != 0)",
            "        threads = NULL;",
            *([] if shared else ["    (void)share; /* no loop is worth waking a thread */"]),
            *body,
        ]
        copies += ["    if (threads != NULL)", "        pthread_mutex_unlock(&threads->taken);"]
    declared = []
    if library.kernel_source is not None:
        declared = _source_of_kernels(library)
    elif library.embedded and library.parameters.blob:
        declared = [f"extern const unsigned char {n}_parameters[];"]
    if library.kernel_source is None:
        declared += [line for name in _used(library) for line in _declarations(library, name)]
    unpacked = []
    if not library.embedded and library.parameters.blob:
        # Under the name that the archive's own constants would have: calls are written once.
        unpacked = [f"    const unsigned char *const {n}_parameters = inputs->parameters;"]
    check = []
    if library.memory.size:
        check = [
            f"    if (workspace_bytes < {u}_WORKSPACE_BYTES)",
            f"        return {u}_WORKSPACE_TOO_SMALL;",
        ]
    return render(
        "library.c",
        name=n,
        NAME=u,
        indent=" " * len(n),
        declared=declared,
        threads=thread_functions(library, shared) if library.threads > 1 else [],
        numbers=nan_functions(library),
        state=state_functions(library),
        unpacked=unpacked,
        # NaN is looked for before threads are taken, which a return would keep.
        refused=[*check, *nan_checks(library)],
        body=[*body, *copies],
        checks=_checks(library),
    )


def _struct(fields: Sequence[Field], qualifier: str) -> list[str]:
    if not fields:
        return ["    char nothing; /* C has no empty structs */"]
    lines = []
    for field in fields:
        lines += [f"    /* {field.remark} */", f"    {qualifier}{field.kind} *{field.name};"]
    return lines


def _macros(inputs: Sequence[Field], outputs: Sequence[Field]) -> list[tuple[str, Field]]:
    """Names the macros of fields of both structs, each differently.

    A result that has an argument's name gets another one, and of x and X the second.
    """
    passed = {field.name.upper() for field in inputs}
    taken: set[str] = set()
    named = []
    for field in (*inputs, *outputs):
        name = field.name.upper()
        if name in passed and any(field is output for output in outputs):
            name = f"OUT_{name}"
        name = identifier(name, taken)
        taken.add(name)
        named.append((name, field))
    return named


def _places(library: Library) -> dict[int, str]:
    """Maps each array to the expression in C of where it lies."""
    program, n = library.program, library.name
    places = {number: f"at + {offset}" for number, offset in library.memory.arrays.items()}
    # Of results that are one array the first has it; one that is an argument or a constant lies
    # there. `_copies` fills the others.
    for number, field in zip(program.outputs, library.outputs, strict=True):
        places.setdefault(number, field.within("outputs"))
    for number, field in zip(program.inputs, library.inputs, strict=True):
        places[number] = field.within("inputs")
    for number, offset in library.parameters.offsets.items():
        places[number] = f"{n}_parameters + {offset}"
    if library.kernel_source is not None and library.embedded:
        owners = library.parameters.owners
        places |= {number: _constant_name(owner) for number, owner in owners.items()}
    return places


def _constant_name(number: int) -> str:
    return f"parameter_{number}"


def _source_of_kernels(library: Library) -> list[str]:
    """Writes all that the calls need into one file: parameters and kernels."""
    values = library.parameters.values if library.embedded else {}
    return [
        "#include <float.h>",
        "#include <math.h>",
        "",
        *render("floats.c", file=f"{library.name}.c").splitlines(),
        "/* Places of the workspace hold numbers of one type now and of another later. */",
        "#if defined(__GNUC__)",
        "#define ANY_TYPE __attribute__((__may_alias__))",
        "#else",
        "#define ANY_TYPE",
        "#endif",
        *(f"typedef ANY_TYPE {kind} any_{kind};" for kind in dict.fromkeys(TYPES.values())),
        "",
        *constants({_constant_name(number): values[number] for number in values}),
        *(library.kernel_source or ()),
    ]


def _calls(library: Library, places: Mapping[int, str]) -> tuple[list[str], list[str]]:
    """Writes the calls of a run, and those that its threads share."""
    lines: list[str] = []
    shared: list[str] = []
    steps = zip(library.program.calls, library.memory.scratch, strict=True)
    for step, (call, scratch) in enumerate(steps):
        kernel = library.kernels[call.kernel]
        arrays = [places[number] for number in (*call.arguments, *call.results)]
        alone = [*arrays, *(f"at + {offset}" for offset in scratch)]
        # Scratch with a stride is one piece per thread; what has none all of them share.
        several = arrays + [
            f"at + {offset} + {piece.stride} * task" if piece.stride else f"at + {offset}"
            for offset, piece in zip(scratch, kernel.scratch, strict=True)
        ]
        for part in kernel.parts:
            if part.turns is None:
                lines.append(f"    {part.symbol}({', '.join(alone)});")
                continue
            # A thread's turns are contiguous: it shares lines of the cache at their ends alone.
            ends = [f"turn({part.turns}, task{more}, tasks)" for more in ("", " + 1")]
            lines.append(f"    share(threads, {len(shared)}, inputs, outputs, at);")
            shared.append(f"{part.symbol}({', '.join([*several, *ends])});")
        lines.append(f"    {library.upper}_KERNEL_DONE({step});")
    return lines, shared


def _copies(library: Library, places: Mapping[int, str]) -> list[str]:
    """Writes the copies of results that no kernel writes.

    They are arguments, constants, and results that are there twice.
    """
    lines = []
    for number, field in zip(library.program.outputs, library.outputs, strict=True):
        here = field.within("outputs")
        if places[number] != here and field.size:
            lines.append(f"    memcpy({here}, {places[number]}, {field.size});")
    return lines


def _used(library: Library) -> list[str]:
    return list(dict.fromkeys(call.kernel for call in library.program.calls))


def _declarations(library: Library, name: str) -> list[str]:
    # All calls of a kernel pass as many arrays, so that any of them declares it.
    call = next(c for c in library.program.calls if c.kernel == name)
    kernel = library.kernels[name]
    kinds = ["const void *"] * len(call.arguments)
    kinds += ["void *"] * (len(call.results) + len(kernel.scratch))
    lines = []
    for part in kernel.parts:
        more = [] if part.turns is None else ["int32_t", "int32_t"]
        lines.append(f"void {part.symbol}({', '.join([*kinds, *more]) or 'void'});")
    return lines


def _checks(library: Library) -> list[str]:
    pointers = [(f"inputs->{f.name}", f"sizeof(*inputs->{f.name})", f.size) for f in library.passed]
    pointers += [
        (f"outputs->{f.name}", f"sizeof(*outputs->{f.name})", f.size) for f in library.returned
    ]
    if library.state:
        # Whether it is there at all; its arrays lie in it as C aligns them.
        # The offset of a struct behind a char is its alignment: C99 has no operator for it.
        behind = f"struct {{ char first; {library.name}_state state; }}"
        pointers.append(("inputs->state", f"offsetof({behind}, state)", 1))
    workspace = f"{library.upper}_WORKSPACE_ALIGNMENT"
    pointers.append(("workspace", workspace, library.memory.size))
    if not library.embedded:
        alignment = f"{library.upper}_PARAMETER_ALIGNMENT"
        pointers.append(("inputs->parameters", alignment, len(library.parameters.blob)))
    lines = []
    # An array of no bytes may be anywhere, NULL included.
    for pointer, alignment, size in pointers:
        if size:
            lines += [
                f"    found = bad({pointer}, {alignment});",
                "    worst = found > worst ? found : worst;",
            ]
    return lines or ["    found = 0;", "    (void)found, (void)bad;"]
