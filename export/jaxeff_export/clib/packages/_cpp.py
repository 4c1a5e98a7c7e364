"""The header for C++: a namespace and a class over the calls in C, for C++11 and later.

The class owns what a call needs beside its arguments: the workspace, the state and the threads.
Arrays are references to arrays, so one of another size or type does not compile. No header of C++'s
library is included, which compilers of microcontrollers may lack; nothing is allocated, and no
exception is thrown: what a call returns is an `enum class`.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxeff_export.clib.codegen import driver, render
from jaxeff_export.clib.codegen import threads as shared

Library = driver.Library


def cpp_header(library: Library) -> str:
    """Writes ``NAME.hpp``."""
    n, u = library.name, library.upper
    codes = ",\n".join(f"    {code.lower()} = {u}_{code}" for code in library.codes)
    # In C two structs keep names apart. Here they are parameters of one function.
    taken = {field.name for field in library.given}
    results = [(f, f"out_{f.name}" if f.name in taken else f.name) for f in library.returned]
    # An array of no elements is none in C++; one of C has at least one.
    arguments = [f"const {f.kind} (&{f.name})[{f.count or 1}]" for f in library.given]
    arguments += [f"{f.kind} (&{name})[{f.count or 1}]" for f, name in results]
    begun = [f"{n}_init(&state_);"] if library.state else []
    begun += [f"ready_ = static_cast<Status>({n}_start(&threads_));"] * (library.threads > 1)
    members = [f"{n}_state state_;"] if library.state else []
    members += [f"{n}_threads threads_;", "Status ready_;"] if library.threads > 1 else []
    blob = not library.embedded
    members += ["const void *parameters_;"] if blob else []
    return render(
        "library.hpp",
        name=n,
        NAME=u,
        codes=codes,
        remarks=[f"     * {name}: {f.remark}" for f, name in _named(library, results)],
        arguments=", ".join(arguments),
        constructor="explicit Model(const void *parameters)" if blob else "Model()",
        initial=" : parameters_(parameters)" if blob else "",
        begun=[f"        {line}" for line in begun],
        ended=_ended(library),
        checked=["        if (ready_ != Status::ok)", "            return ready_;"]
        if library.threads > 1
        else [],
        given=_given(library),
        filled=[f"        outputs.{f.name} = {name};" for f, name in results]
        or ["        outputs.nothing = 0;"],
        reset=_reset(library),
        members=[f"    {line}" for line in members],
        size=max(library.memory.size, 1),
    )


def _named(
    library: Library, results: Sequence[tuple[driver.Field, str]]
) -> list[tuple[driver.Field, str]]:
    return [*((f, f.name) for f in library.given), *results]


def _given(library: Library) -> list[str]:
    lines = [f"inputs.{f.name} = {f.name};" for f in library.given]
    lines += ["inputs.state = &state_;"] if library.state else []
    lines += [f"inputs.{shared.FIELD} = &threads_;"] if library.threads > 1 else []
    lines += [] if library.embedded else ["inputs.parameters = parameters_;"]
    return [f"        {line}" for line in lines or ["inputs.nothing = 0;"]]


def _ended(library: Library) -> list[str]:
    if library.threads == 1:
        return []
    # A class whose threads never began has none to stop.
    return [
        "    ~Model()",
        "    {",
        "        if (ready_ == Status::ok)",
        f"            {library.name}_stop(&threads_);",
        "    }",
    ]


def _reset(library: Library) -> list[str]:
    if not library.state:
        return []
    return [
        "",
        "    /** Begins the state again. */",
        "    void reset() noexcept",
        "    {",
        f"        {library.name}_init(&state_);",
        "    }",
        "",
        "    /** What stays from call to call, to be kept or looked at. */",
        f"    {library.name}_state &state() noexcept",
        "    {",
        "        return state_;",
        "    }",
    ]
