"""C libraries packed for build systems: each is built here by the rules that its system documents.

What stands in for a build system says what it doesn't cover: Arduino's and PlatformIO's tools are
not asked, nor Zephyr's; of CMSIS-Pack's schema the elements are checked that it requires.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import xml.etree.ElementTree as ET
import zipfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import STRICT, call, require
from jaxeff_export import CLibraryError, deploy
from jaxeff_export.clib import CLibrary, ExampleProgram
from jaxeff_export.clib._packages import STYLES
from jaxeff_export.targets import emulation

from jaxeff.store import require_absent

SHOWN = np.asarray([3.0, 5.0, 7.0], np.float32)
MAIN = """
#include <net.hpp>
#include <stdio.h>

static net::Model model;

int main()
{
    const float x[3] = {1, 2, 3};
    float result[3];
    if (model.run(x, result) != net::Status::ok || model.run(x, result) != net::Status::ok)
        return 1;
    printf("%g %g %g\\n", double(result[0]), double(result[1]), double(result[2]));
#ifdef KEPT
    printf("%g\\n", double(model.state().kept[0]));
    model.reset();
    printf("%g\\n", double(model.state().kept[0]));
#endif
    return 0;
}
"""
ARDUINO = """
#include <stdio.h>
static struct {
    void begin(long) {}
    void print(const char *text) { printf("%s", text); }
    void print(int number) { printf("%d", number); }
    void println(unsigned long) { printf("\\n"); }
} Serial;
static unsigned long micros() { return 0; }
static void delay(int) {}
"""
ZEPHYR = """
cmake_minimum_required(VERSION 3.20)
project(app C CXX)
add_library(zephyr_interface INTERFACE)
add_library(app_libraries INTERFACE)
function(zephyr_include_directories)
    target_include_directories(zephyr_interface INTERFACE ${ARGN})
endfunction()
function(zephyr_library_named name)
    set(ZEPHYR_CURRENT_LIBRARY ${name} PARENT_SCOPE)
    add_library(${name} STATIC)
    target_link_libraries(${name} PUBLIC zephyr_interface)
    target_link_libraries(app_libraries INTERFACE ${name} m)
endfunction()
function(zephyr_library_sources)
    target_sources(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endfunction()
function(zephyr_library_import name path)
    add_library(${name} STATIC IMPORTED GLOBAL)
    set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${path})
    target_link_libraries(zephyr_interface INTERFACE ${name} m)
endfunction()
set(CONFIG_NET y)
add_subdirectory(net/zephyr)
add_executable(app main.cpp)
target_link_libraries(app PRIVATE zephyr_interface app_libraries)
"""


def twice(params, x):
    """Ones in, so that a stranger sees at once whether it is right."""
    return x * params + 1


@pytest.fixture(scope="module")
def bundle():
    return deploy(twice, (np.float32(2), jnp.ones(3)))


@pytest.fixture
def packed(bundle, tmp_path):
    def pack(style: str, source: bool = False) -> CLibrary:
        library = bundle.export_c(tmp_path / "net", style=style, source=source)
        # The example and its facts are those of any library.
        facts = json.loads((library.folder / "library.json").read_text())
        assert facts["format"] == "jaxeff-c-library"
        assert set(facts["files"]) >= {"net.h", "net.hpp", "main.c", "CMakeLists.txt"}
        (tmp_path / "main.cpp").write_text(MAIN)
        return library

    return pack


@pytest.mark.parametrize("compiler", ["g++", pytest.param("clang++", marks=pytest.mark.slow)])
def test_the_header_for_cpp_is_strict_cpp_11(packed, tmp_path, compiler):
    require(compiler)
    folder = packed("cmake").folder
    flags = ("-std=c++11", *STRICT, "-fno-exceptions", "-fno-rtti", "-I", folder)
    call(compiler, *flags, "main.cpp", folder / "libnet.a", "-lm", "-o", "user", folder=tmp_path)
    assert call("./user", folder=tmp_path) == "3 5 7\n"


@pytest.mark.slow
def test_an_array_of_another_size_does_not_compile(packed, tmp_path):
    require("g++")
    folder = packed("cmake").folder
    (tmp_path / "main.cpp").write_text(MAIN.replace("result[3]", "result[4]"))
    with pytest.raises(AssertionError, match="result"):
        call("g++", "-std=c++11", "-I", folder, "-c", "main.cpp", folder=tmp_path)


@pytest.mark.slow
def test_state_threads_and_parameters_of_the_class(tmp_path):
    require("g++")

    def sums(params, x, kept):
        return x * params + 1, kept + x[0]

    kept = jnp.full(1, 5.0)
    bundle = deploy(sums, (np.float32(2), jnp.ones(3), kept), state=("kept",), target="host")
    folder = bundle.export_c(tmp_path / "net", threads=2, embed=False).folder
    (tmp_path / "main.cpp").write_text(
        MAIN.replace("static net::Model model;", "alignas(64) static const float two[16] = {2};\n"
                     "static net::Model model(two);")
    )  # fmt: skip
    files = ("main.cpp", folder / "libnet.a", "-pthread", "-lm", "-o", "user")
    call("g++", "-std=c++17", *STRICT, "-DKEPT", "-I", folder, *files, folder=tmp_path)
    # Each call adds its first argument, 1, to the state, which begins with 5.
    assert call("./user", folder=tmp_path).split() == ["3", "5", "7", "7", "5"]


@pytest.mark.parametrize("source", [False, True], ids=["archive", "source"])
def test_arduino(packed, tmp_path, source):
    """Its library specification: src compiled and included, src/{build.mcu} searched, ldflags."""
    require("g++")
    folder = packed("arduino", source).folder
    properties = dict(
        line.split("=", 1) for line in (folder / "library.properties").read_text().splitlines()
    )
    # All the fields that the specification requires.
    assert properties.keys() >= {
        "name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url",
        "architectures",
    }  # fmt: skip
    code = ["-x", "c", *(folder / "src").rglob("*.c"), "-x", "none"]
    if source:
        assert "precompiled" not in properties
        assert len(code) == 5
    else:
        assert properties["precompiled"] == "true"
        (archive,) = (folder / "src").glob("*/*.a")
        code = ["-L", archive.parent, *properties["ldflags"].split()]
    sketch = folder / "examples/net_example/net_example.ino"
    # A sketch is C++ with Arduino's own header before it, and main() around it.
    program = ARDUINO + sketch.read_text() + "int main() { setup(); loop(); }\n"
    (tmp_path / "sketch.cpp").write_text(program)
    flags = ("-I", folder / "src", "sketch.cpp")
    call("g++", *flags, *code, "-lm", "-o", "user", folder=tmp_path)
    assert call("./user", folder=tmp_path).startswith("status 0")


@pytest.mark.slow
def test_platformio_of_source(packed, tmp_path):
    """Its manifest: one file of srcDir is compiled, nothing else."""
    require("g++")
    folder = packed("platformio", source=True).folder
    build = json.loads((folder / "library.json").read_text())["build"]
    assert build.keys() == {"srcFilter", "includeDir", "srcDir", "flags"}
    assert build["srcFilter"] == "-<*> +<net.c>"
    code = ("-x", "c", folder / build["srcDir"] / "net.c", "-x", "none")
    flags = ("-I", folder / build["includeDir"], "main.cpp", *code, *build["flags"].split())
    call("g++", *flags, "-o", "user", folder=tmp_path)
    assert call("./user", folder=tmp_path) == "3 5 7\n"


@pytest.mark.slow
def test_platformio(packed, tmp_path):
    """Its manifest: headers from includeDir, no source compiled, the script adds the archive."""
    require("g++")
    folder = packed("platformio").folder
    manifest = json.loads((folder / "library.json").read_text())
    assert manifest["name"] == "net"
    build = manifest["build"]
    assert build["srcFilter"] == "-<*>"
    added: dict[str, list[str]] = {}

    class Environment:
        """What the script asks of SCons."""

        def Append(self, **lists):
            added.update(lists)

    script = (folder / build["extraScript"]).read_text().replace("os.getcwd()", repr(str(folder)))
    exec(script, {"DefaultEnvironment": Environment})
    linked = [f"-L{path}" for path in added["LIBPATH"]] + [f"-l{name}" for name in added["LIBS"]]
    flags = ("-std=gnu++11", "-I", folder / build["includeDir"], "main.cpp")
    call("g++", *flags, *linked, "-o", "user", folder=tmp_path)
    assert call("./user", folder=tmp_path) == "3 5 7\n"


@pytest.mark.slow
@pytest.mark.parametrize("source", [False, True], ids=["archive", "source"])
def test_zephyr(packed, tmp_path, source):
    """Its module: files where module.yml says, and a CMake file whose calls CMake makes."""
    require("cmake")
    folder = packed("zephyr", source).folder
    lines = (folder / "zephyr/module.yml").read_text().splitlines()
    found = {key.strip(): value.strip() for key, value in (line.split(":") for line in lines)}
    assert found == {"name": "net", "build": "", "cmake": "zephyr", "kconfig": "zephyr/Kconfig"}
    assert (folder / found["kconfig"]).read_text().startswith("config NET\n\tbool ")
    (tmp_path / "CMakeLists.txt").write_text(ZEPHYR)
    call("cmake", "-S", ".", "-B", "build", folder=tmp_path)
    call("cmake", "--build", "build", folder=tmp_path)
    assert call("build/app", folder=tmp_path) == "3 5 7\n"


def test_styles_that_do_not_fit_are_refused_by_name(bundle, tmp_path):
    for more, message in (
        ({"style": "bazel"}, "no style 'bazel'; there are cmake, arduino,"),
        ({"style": "cmsis-pack"}, "Cortex processors, and"),
        ({"style": "arduino", "embed": False}, "leave embed=True"),
        ({"style": "zephyr", "threads": 2}, "leave threads at 1"),
    ):
        with pytest.raises(CLibraryError, match=message):
            bundle.export_c(tmp_path / "net", **more)
    assert not (tmp_path / "net").exists()


@pytest.mark.slow
def test_a_package_is_replaced_by_another_and_a_strangers_file_is_not(bundle, packed):
    folder = packed("arduino").folder
    first = {path.relative_to(folder) for path in folder.rglob("*")}
    assert {path.relative_to(folder) for path in packed("arduino").folder.rglob("*")} == first
    packed("zephyr")
    assert not (folder / "src").exists()
    packed("arduino")
    (folder / "src" / "mine.h").write_text("mine")
    with pytest.raises(FileExistsError, match=r"src/mine\.h"):
        bundle.export_c(folder, name="net")
    (folder / "src" / "mine.h").rename(folder / "mine.h")
    (folder / "src" / "empty").mkdir()
    with pytest.raises(FileExistsError, match=r"mine\.h, src/empty"):
        bundle.export_c(folder, name="net")


def test_no_link_leads_out_of_a_package(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a").write_text("mine")
    (tmp_path / "net").mkdir()
    (tmp_path / "net/mark").write_text("src/a")
    (tmp_path / "net/src").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="lists: src"):
        require_absent(tmp_path / "net", "mark", lambda content: [content.decode()])


def test_a_pack_of_source_asks_for_no_processor(packed, tmp_path):
    library = packed("cmsis-pack", source=True)  # this machine is no Cortex
    with zipfile.ZipFile(library.folder / "jaxeff.net.1.0.0.pack") as file:
        file.extractall(tmp_path / "pack")
    package = ET.parse(tmp_path / "pack/jaxeff.net.pdsc").getroot()
    files = {entry.get("name"): entry.get("category") for entry in package.iter("file")}
    assert files == {"net.h": "header", "net.hpp": "header", "net.c": "sourceC"}
    assert (tmp_path / "pack/net.c").read_text() == (library.folder / "net.c").read_text()
    assert not [*package.iter("condition"), *package.iter("require")]
    (component,) = package.iter("component")
    assert component.get("condition") is None


@pytest.mark.slow
def test_packages_for_a_microcontroller(tmp_path):
    """The example of each runs in the emulator; Arduino's and the pack's archives link."""
    require("arm-none-eabi-g++", "qemu-system-arm")
    bundle = deploy(twice, (np.float32(2), jnp.asarray([1.0, 2.0, 3.0])), target="cortex-m7")
    for style in STYLES:
        library = bundle.export_c(tmp_path / style.replace("-", "_") / "net", style=style)
        folder, archive = library.folder, None
        if style == "zephyr":
            assert "depends on CPU_CORTEX_M7" in (folder / "zephyr/Kconfig").read_text()
        if style == "arduino":
            archive = folder / "src/cortex-m7/libnet.a"
        if style == "cmsis-pack":
            archive = _unpacked(folder, tmp_path / "pack") / "libnet.a"
        if archive is not None:  # the packed one is what the example is linked with
            shutil.copy(archive, folder / "libnet.a")
        (result,) = ExampleProgram(library, "cortex-m7").run()
        np.testing.assert_array_equal(result, SHOWN)
    # The class too: the example's own main, replaced by the one of these tests.
    shutil.copytree(library.folder, tmp_path / "cpp")
    (tmp_path / "cpp/main.cpp").write_text(MAIN)
    # Compiled as C++ and linked as C: Debian's compiler comes without C++'s library.
    flags = [word for word in library.build if word.startswith(("-m", "-O"))]
    call("arm-none-eabi-g++", *flags, "-std=c++11", "-fno-exceptions", "-I.", "-c",
         "main.cpp", "-o", "main.o", folder=tmp_path / "cpp")  # fmt: skip
    given = {"main.c": "main.o", "recorded.S": "-DCPP"}
    call(*(given.get(word, word) for word in library.build), "-o", "user.elf",
         folder=tmp_path / "cpp")  # fmt: skip
    command = emulation("cortex-m7", library.target, tmp_path / "cpp/user.elf")
    assert call(*command, folder=tmp_path) == "3 5 7\n"


def _unpacked(folder: Path, into: Path) -> Path:
    """Opens a pack, after what its schema requires has been looked for."""
    (pack,) = folder.glob("*.pack")
    with zipfile.ZipFile(pack) as file:
        file.extractall(into)
    package = ET.parse(into / "jaxeff.net.pdsc").getroot()
    assert package.get("schemaVersion")
    required = ("vendor", "name", "description", "url", "releases")
    assert all(package.find(name) is not None for name in required)
    assert [file.get("version") for file in package.iter("release")] == ["1.0.0"]
    assert pack.name == "jaxeff.net.1.0.0.pack"  # vendor, name and version
    (component,) = package.iter("component")
    assert set(component.keys()) >= {"Cclass", "Cgroup", "Cversion"}
    assert component.find("description") is not None
    conditions = [condition.get("id") for condition in package.iter("condition")]
    assert component.get("condition") in conditions
    assert [core.get("Dcore") for core in package.iter("require")] == ["Cortex-M7"]
    for file in component.iter("file"):
        assert file.get("category") in ("header", "library")
        assert (into / str(file.get("name"))).is_file()
    return into


def test_names_of_a_pack_are_as_long_as_its_schema_allows(bundle, tmp_path):
    for_m7 = dataclasses.replace(bundle.manifest, target_name="cortex-m7")
    assert for_m7.target_name in bundle.manifest.target_name or for_m7.target_name == "cortex-m7"
