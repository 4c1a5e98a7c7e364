"""Packages of a C library for build systems, and its header for C++.

A package is the library's folder with a few files more, which describe it to one build system:
nothing is compiled again, and the example beside it stays as it was.

Of C99 source each package has the file in place of the archive, and compiles it for any processor.
"""

import dataclasses
import io
import zipfile
from collections.abc import Callable, Mapping
from typing import Any
from xml.sax.saxutils import escape

from jaxeff_export.clib._objects import CLibraryError
from jaxeff_export.clib.codegen import driver, identifier, render

VERSION = "1.0.0"
"""Of every package: a network has no version of its own; whoever releases one writes theirs."""


@dataclasses.dataclass(frozen=True)
class Package:
    """A library that is packed.

    Attributes:
        library: what its C was written from.
        core: LLVM's name of the processor.
        flags: what names the processor to the compiler.
        file: name of what has the code: the archive, or the C source.
        code: its content.
        headers: content of the headers by name.
    """

    library: driver.Library
    core: str
    flags: tuple[str, ...]
    file: str
    code: bytes
    headers: dict[str, str]

    @property
    def name(self) -> str:
        """The library's name."""
        return self.library.name

    @property
    def source(self) -> bool:
        """Whether it is C source."""
        return self.library.kernel_source is not None

    @property
    def sentence(self) -> str:
        """What it is, in a sentence."""
        return f"A neural network compiled for {self.library.made_for}."


def cpp_header(library: driver.Library) -> str:
    """Writes ``NAME.hpp``.

    A class owns what a call needs beside its arguments: the workspace, the state and the
    threads. Arrays are references to arrays, so one of another size or type does not compile. No
    header of C++'s library is included, which compilers of microcontrollers may lack; nothing is
    allocated, and no exception is thrown: what a call returns is an `enum class`. C++11 and later
    have all it needs.
    """
    n, u = library.name, library.upper
    codes = ",\n".join(f"    {code.lower()} = {u}_{code}" for code in library.codes)
    passed, results = _parameters(library)
    # An array of no elements is none in C++; one of C has at least one.
    arguments = [f"const {f.kind} (&{name})[{f.count or 1}]" for f, name in passed]
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
        remarks=[f"     * {name}: {f.remark}" for f, name in [*passed, *results]],
        arguments=", ".join(arguments),
        constructor="explicit Model(const void *parameters)" if blob else "Model()",
        initial=" : parameters_(parameters)" if blob else "",
        begun=[f"        {line}" for line in begun],
        ended=_ended(library),
        checked=["        if (ready_ != Status::ok)", "            return ready_;"]
        if library.threads > 1
        else [],
        assignments=_assignments(library, passed),
        filled=[f"        outputs.{f.name} = {name};" for f, name in results]
        or ["        outputs.nothing = 0;"],
        reset=_reset(library),
        members=[f"    {line}" for line in members],
        size=max(library.memory.size, 1),
    )


Named = list[tuple[driver.Field, str]]


def _parameters(library: driver.Library) -> tuple[Named, Named]:
    """Names arguments and results as parameters of one function.

    In C two structs keep them apart, and from the function's own variables.
    """
    taken = {"inputs", "outputs"}
    named: Named = []
    for field in (*library.passed, *library.returned):
        name = identifier(field.name, taken)
        if field.name in {f.name for f in library.passed} and len(named) >= len(library.passed):
            name = identifier(f"out_{field.name}", taken)
        taken.add(name)
        named.append((field, name))
    return named[: len(library.passed)], named[len(library.passed) :]


def _assignments(library: driver.Library, passed: Named) -> list[str]:
    lines = [f"inputs.{f.name} = {name};" for f, name in passed]
    lines += ["inputs.state = &state_;"] if library.state else []
    lines += [f"inputs.{driver.THREADS_FIELD} = &threads_;"] if library.threads > 1 else []
    lines += [] if library.embedded else ["inputs.parameters = parameters_;"]
    return [f"        {line}" for line in lines or ["inputs.nothing = 0;"]]


def _ended(library: driver.Library) -> list[str]:
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


def _reset(library: driver.Library) -> list[str]:
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


VENDOR = "jaxeff"
LEAST, MOST = 2, 32  # letters of a component's name, by the schema
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The first date of ZIP files: the same library makes the same pack."""


def require_arm(core: str) -> None:
    """Refuses processors that the format has no name for."""
    if not core.startswith("cortex-"):
        raise CLibraryError(
            f"style='cmsis-pack' describes Arm's Cortex processors, and {core} is none; take "
            "style='cmake'"
        )


def cmsis_pack(package: Package) -> Mapping[str, str | bytes]:
    """Writes the description and the pack.

    A description of one component, and the pack, which is a ZIP file of all of it.
    Elements and attributes are those of the schema ``PACK.xsd`` 1.7 of Open-CMSIS-Pack. Keil, IAR
    and the CMSIS-Toolbox read it.
    """
    n = package.name
    if not LEAST <= len(n) <= MOST:
        raise CLibraryError(
            f"style='cmsis-pack' takes names of {LEAST} to {MOST} letters, and {n!r} has {len(n)}"
        )
    # Source is for any processor and compiler: nothing has to hold for it.
    category = "sourceC" if package.source else "library"
    # LLVM's cortex-m0plus is Cortex-M0+ there.
    core = f"Cortex-{package.core.removeprefix('cortex-').replace('plus', '+').upper()}"
    conditions = [
        "  <conditions>",
        '    <condition id="processor">',
        "      <description>The processor that the archive is for.</description>",
        f'      <require Dcore="{core}"/>',
        '      <accept Tcompiler="GCC"/>',
        '      <accept Tcompiler="CLANG"/>',
        "    </condition>",
        "  </conditions>",
    ]
    description = render(
        "pack.pdsc",
        vendor=VENDOR,
        name=n,
        NAME=package.library.upper,
        version=VERSION,
        sentence=escape(package.sentence),
        conditions=[] if package.source else conditions,
        condition="" if package.source else ' condition="processor"',
        files=[
            *(f'        <file category="header" name="{h}"/>' for h in sorted(package.headers)),
            f'        <file category="{category}" name="{package.file}"/>',
        ],
    )
    pdsc = f"{VENDOR}.{n}.pdsc"
    content: dict[str, str | bytes] = {pdsc: description, package.file: package.code}
    content |= package.headers
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in sorted(content.items()):
            # Dates of files would make each pack another one.
            file.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return {pdsc: description, f"{VENDOR}.{n}.{VERSION}.pack": packed.getvalue()}


def arduino(package: Package) -> Mapping[str, str | bytes]:
    """Writes the files of a library for the Arduino IDE and `arduino-cli`.

    A precompiled library, by Arduino's library specification (revision 2.2). With
    ``precompiled=true`` archives are looked for in ``src/{build.mcu}``, where the board's platform
    says what ``build.mcu`` is; ``ldflags`` name them to the linker; only ``src`` is compiled and
    searched for headers where it exists, so that ``main.c`` beside it is left alone.
    """
    n = package.name
    properties = {
        "name": n,
        "version": VERSION,
        "author": "jaxeff",
        "maintainer": "jaxeff",
        "sentence": package.sentence,
        "paragraph": "Header and archive. No allocation, no runtime.",
        "category": "Data Processing",
        "url": "https://github.com",
        # Not one platform's alone: many of them have boards with the same core.
        "architectures": "*",
        "includes": f"{n}.hpp",
    }
    if not package.source:
        properties |= {"precompiled": "true", "ldflags": f"-l{n} -lm"}
    place = "src" if package.source else f"src/{package.core}"
    text = "".join(f"{key}={value}\n" for key, value in properties.items())
    passed, returned = _parameters(package.library)
    # With a sign behind them: a sketch has names such as y1 and index from its headers.
    arrays = [(field, f"{name}_") for field, name in (*passed, *returned)]
    buffers = [f"static {field.kind} {name}[{field.count or 1}];" for field, name in arrays]
    sketch = render(
        "sketch.ino", name=n, buffers=buffers, arguments=", ".join(name for _, name in arrays)
    )
    headers = {f"src/{name}": content for name, content in package.headers.items()}
    return {
        "library.properties": text,
        f"{place}/{package.file}": package.code,
        f"examples/{n}_example/{n}_example.ino": sketch,
        **headers,
    }


def zephyr(package: Package) -> Mapping[str, str | bytes]:
    """Writes the module's description, its CMake file and its option.

    A module, which ``west`` or ``ZEPHYR_EXTRA_MODULES`` finds by ``zephyr/module.yml``.
    """
    n, u = package.name, package.library.upper
    depends = []
    if package.core.startswith("cortex-") and not package.source:
        # Arguments in registers of the floating-point unit are an interface of its own: without
        # it nothing would link.
        core = package.core.upper().replace("-", "_")
        depends = [f"\tdepends on CPU_{core}"]
        if "-mfloat-abi=hard" in package.flags:
            depends.append("\tdepends on FPU && FP_HARDABI")
    path = f'"${{CMAKE_CURRENT_LIST_DIR}}/../{package.file}"'
    code = [f"    zephyr_library_import({n} {path})"]
    if package.source:
        code = [f"    zephyr_library_named({n})", f"    zephyr_library_sources({path})"]
    values: dict[str, Any] = {"name": n, "NAME": u, "depends": depends, "code": code}
    values["made_for"] = package.library.made_for
    return {
        f"zephyr/{file}": render(template, **values)
        for file, template in (
            ("module.yml", "zephyr_module.yml"),
            ("CMakeLists.txt", "zephyr.cmake"),
            ("Kconfig", "zephyr.Kconfig"),
        )
    }


SCRIPT = "platformio_link.py"


def platformio(package: Package) -> Mapping[str, str | bytes]:
    """Writes the script, which an archive needs; `manifest` has the keys.

    A ``library.json`` and the script that names the archive to its linker. A manifest
    can say where headers lie, and has no field for an archive: the script adds it. The file is the
    one that a library's own facts stand in already; PlatformIO leaves keys alone that it does not
    know.
    """
    return {} if package.source else {SCRIPT: render(SCRIPT, name=package.name)}


def manifest(package: Package) -> dict[str, Any]:
    """Makes the keys of ``library.json`` that PlatformIO reads."""
    # Sources are in the archive already: none is compiled.
    build = {"srcFilter": "-<*>", "includeDir": ".", "srcDir": ".", "extraScript": SCRIPT}
    if package.source:
        build = {"srcFilter": f"-<*> +<{package.file}>", "includeDir": ".", "srcDir": "."}
        build["flags"] = "-lm"
    return {
        "name": package.name,
        "version": VERSION,
        "description": package.sentence,
        "headers": sorted(package.headers),
        "frameworks": "*",
        "platforms": "*",
        "build": build,
    }


_WRITERS: Mapping[str, Callable[[Package], Mapping[str, str | bytes]]] = {
    "cmake": lambda package: {},  # the library's own folder is one
    "arduino": arduino,
    "platformio": platformio,
    "zephyr": zephyr,
    "cmsis-pack": cmsis_pack,
}

STYLES = tuple(_WRITERS)
"""Names of the styles."""


def require_style(style: str, core: str | None, *, embed: bool, threads: int) -> None:
    """Refuses a style that there isn't, or that has no place for such a library.

    `core` is LLVM's name of the processor, None of source, which is for any; `embed` says whether
    the parameters are part of the code.
    """
    if style not in STYLES:
        raise CLibraryError(f"no style {style!r}; there are {', '.join(STYLES)}")
    if style == "cmake":
        return
    # These packages are code and headers: nothing in them loads a file or links threads.
    if not embed:
        raise CLibraryError(
            f"style={style!r} has no place for a file of parameters; leave embed=True, or take "
            "style='cmake'"
        )
    if threads > 1:
        raise CLibraryError(
            f"style={style!r} links no threads; leave threads at 1, or take style='cmake'"
        )
    if style == "cmsis-pack" and core is not None:
        require_arm(core)


def package_files(style: str, package: Package) -> Mapping[str, str | bytes]:
    """Writes the files that a style adds to a library's folder, by their paths in it."""
    return _WRITERS[style](package)


def facts_of(style: str, package: Package) -> dict[str, Any]:
    """Lists what a style has to say in the library's own ``library.json``."""
    return manifest(package) if style == "platformio" else {}
