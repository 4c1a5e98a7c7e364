#!/usr/bin/env python3
"""Runs the bundle that this file lies in, on this machine.

    python run.py                           check the results against what JAX computed
    python run.py inputs.npz outputs.npz    call the function on arrays from a file
    python run.py --benchmark --profile     time the whole and each compiled operator

It needs numpy and TVM's runtime, of the version the bundle was compiled with, and nothing else:
    pip install numpy apache-tvm==VERSION apache-tvm-ffi==VERSION    (inspect names the versions)

Every bundle has a copy of this file. Sharp edge: loading a library runs native code; the checksums
guard against damage, not against malice.
"""

import argparse
import ctypes
import errno
import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import math
import os
import platform
import reprlib
import stat
import statistics
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

MANIFEST = "manifest.json"
ARRAYS = ("parameters.npz", "derived.npz", "selfcheck.npz")
FILES = ("library.so", "artifact.zip", "run.py", *ARRAYS)
SPEC = {"name": str, "shape": [(int, str)], "dtype": str}
FORM = {  # what a manifest has to have; numbers are counts
    **{name: str for name in ("target_name", "machine")},
    **{name: [str] for name in ("processor_features", "arguments")},
    "target": {},
    "structure": {},
    **{name: [SPEC] for name in ("parameters", "derived", "inputs", "outputs")},
    "operands": [int],
    "rounds_inputs": bool,
    "versions": {"apache-tvm": str, "apache-tvm-ffi": str},
    "files": {name: {"size": int, "sha256": str} for name in FILES},
}
# The limits of jaxeff_export.artifact, which is not there on a device.
MOST_TEXT = 1 << 24  # bytes of a manifest
ROOM, RATIO = 1 << 28, 64  # bytes, and times its size, that a file may be inflated to
FORMAT, FORMAT_VERSIONS = "jaxeff-bundle", (2, 3)  # 3 if the batch may vary


class Refused(Exception):
    """A refusal with its reason, in one line."""


def read_manifest(folder: Path) -> dict:
    """Reads the bundle's manifest, if it is whole and of the version that this file reads."""
    try:
        document = json.loads(read_regular(folder / MANIFEST, MOST_TEXT))
        checksum = document.pop("sha256")
        # The bytes whose checksum was taken when it was written: keys sorted, no white space.
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    except OSError as error:
        raise Refused(f"{folder} is no bundle: {MANIFEST}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(f"{MANIFEST} is damaged; copy the bundle again") from error
    if hashlib.sha256(canonical).hexdigest() != checksum:
        raise Refused(
            f"{MANIFEST} is damaged: its checksum does not match its content; copy the bundle again"
        )
    version = document.get("format_version")
    if document.get("format") != FORMAT or version not in FORMAT_VERSIONS:
        versions = " or ".join(map(str, FORMAT_VERSIONS))
        raise Refused(f"{MANIFEST} is not of a {FORMAT}, version {versions}")
    require_form(document, FORM, "")
    inputs, batches = document["inputs"], document.get("batches", [])
    require_form(batches, [int], "batches")
    cores = document["target"].get("num-cores", 1)
    require_form(cores, int, "target.num-cores")
    # Every entry has its form; now whether they agree, which all below relies on.
    bound = document["parameters"] + document["derived"]
    if any(map(varies, bound)):
        raise Refused(f"{MANIFEST}: parameters or derived has a shape that varies")
    if sorted(document["operands"]) != list(range(len(bound))):
        raise Refused(f"{MANIFEST}: operands does not have each of parameters and derived once")
    if bool(batches) != any(map(varies, inputs)) or bool(batches) != (version == 3):
        raise Refused(f"{MANIFEST}: batches, inputs and format_version differ")
    if 0 in [*batches, cores]:
        raise Refused(f"{MANIFEST}: batches or target.num-cores has a 0")
    return document


def require_form(value: object, form: object, where: str) -> None:
    """Refuses an entry of the manifest that is something else than the form says."""
    if isinstance(form, dict) and isinstance(value, dict):
        for name, inner in form.items():
            if name not in value:
                raise Refused(f"{MANIFEST}: {where}{name} is missing")
            require_form(value[name], inner, f"{where}{name}.")
    elif isinstance(form, list) and isinstance(value, list):
        for index, item in enumerate(value):
            require_form(item, form[0], f"{where.rstrip('.')}[{index}].")
    elif not (
        # The type itself: to `isinstance`, True is a number as well. Beyond 2**53, JSON readers
        # that take numbers as floats would see another one.
        any(type(value) is kind for kind in (form if isinstance(form, tuple) else (form,)))
        and (isinstance(value, str) or value in range(2**53))
    ):
        raise Refused(f"{MANIFEST}: {where.rstrip('.')} is {reprlib.repr(value)}")


def read_regular(path: Path, most: int) -> bytes:
    """Reads the first bytes of a regular file, one more than `most` if it has them.

    A link leads elsewhere, a pipe may never be written to, and a device may never end.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    # Refused here too, in case a link has taken its place since.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(handle, "rb") as file:
        return file.read(min(most, os.fstat(handle).st_size) + 1)


def read_file(folder: Path, manifest: dict, name: str) -> bytes:
    """Reads a file, if it is what the manifest says."""
    facts = manifest["files"][name]
    try:
        data = read_regular(folder / name, facts["size"])
    except OSError as error:
        raise Refused(
            f"{name} is missing or unreadable ({error.strerror}); copy the bundle again"
        ) from error
    if len(data) != facts["size"] or hashlib.sha256(data).hexdigest() != facts["sha256"]:
        raise Refused(
            f"{name} is damaged: its checksum differs from the manifest's; copy the bundle again"
        )
    return data


def require_fit(manifest: dict) -> None:
    """Refuses a library for another architecture, processor, or version of TVM."""
    known = {"arm64": "aarch64", "amd64": "x86_64"}
    here = known.get(platform.machine().lower(), platform.machine().lower())
    made_for = f"{manifest['machine']} ({manifest['target_name']})"
    if here != manifest["machine"]:
        raise Refused(f"the library is for {made_for}, this machine is {here}")
    reported = processor_features(here)
    # Where the kernel reports nothing, the library is tried.
    if lacking := sorted(set(manifest["processor_features"]) - reported if reported else ()):
        raise Refused(f"the library is for {made_for}, this processor lacks {', '.join(lacking)}")
    compiled_by = manifest["versions"]["apache-tvm"]
    try:
        installed = importlib.metadata.version("apache-tvm")
    except importlib.metadata.PackageNotFoundError:
        raise Refused(f"TVM is not installed: pip install {' '.join(wanted(manifest))}") from None
    if installed != compiled_by:
        raise Refused(
            f"the library was compiled by TVM {compiled_by}, this is TVM {installed}: "
            f"pip install {' '.join(wanted(manifest))}"
        )


def wanted(manifest: dict) -> list[str]:
    """Lists what pip has to install for the bundle to run."""
    versions = manifest["versions"]
    return [f"{name}=={versions[name]}" for name in ("apache-tvm", "apache-tvm-ffi")]


def processor_features(machine: str) -> set[str]:
    """Reads what the kernel reports the processor to have; empty where it reports nothing."""
    key = "Features" if machine == "aarch64" else "flags"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    lines_of_key = [
        line.partition(":")[2] for line in lines if line.partition(":")[0].strip() == key
    ]
    return set(lines_of_key[0].split()) if lines_of_key else set()


def dtype_of(name: str) -> np.dtype:
    """Finds the dtype of a name; ml_dtypes (which TVM brings) knows bfloat16 and its like."""
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):  # the latter for commas
        dtype = np.dtype(object)
    if dtype.kind in "OV":  # ml_dtypes' are void to NumPy, once something has imported them
        import ml_dtypes

        scalar = getattr(ml_dtypes, name, None)
        if not (isinstance(scalar, type) and issubclass(scalar, np.generic)):
            raise Refused(f"no dtype is called {name!r}") from None
        return np.dtype(scalar)
    if dtype.kind not in "biufc" or dtype.name != name:  # "O" and "f4,f4" are dtypes as well
        raise Refused(f"no dtype is called {name!r}")
    return dtype


def unpack(name: str, data: bytes, specs: list[dict]) -> list[np.ndarray]:
    """Reads the arrays of an npz file of the bundle, if they are what the specs say."""
    # One budget for all arrays: together they must not inflate to more than memory holds.
    left = max(ROOM, RATIO * len(data))
    arrays = []
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(archive.namelist()) != len(specs):
                raise Refused(f"it has {len(archive.namelist())} arrays, not {len(specs)}")
            for index, spec in enumerate(specs):
                arrays.append(unpack_one(archive, f"{index:05d}.npy", spec, left))
                left -= arrays[-1].nbytes
    except Refused as refused:
        raise Refused(f"{name} is damaged: {refused}") from refused
    except Exception as error:  # at a zip file that is none, nearly any
        raise Refused(f"{name} is damaged: it is no readable npz file ({error})") from error
    return arrays


def unpack_one(archive: zipfile.ZipFile, name: str, spec: dict, most: int) -> np.ndarray:
    """Reads one of them; it is inflated only if its header promises what the spec does."""
    member, dtype = archive.getinfo(name), dtype_of(spec["dtype"])
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Refused(f"{name} is compressed in another way than deflated")
    with archive.open(member) as file:
        if np.lib.format.read_magic(file) != (1, 0):  # later ones have headers of any length
            raise Refused(f"{name} has another header than bundles have")
        shape, _, stored = np.lib.format.read_array_header_1_0(file)
    if stored != dtype and stored != np.dtype(f"u{dtype.itemsize}"):
        raise Refused(f"{spec['name']} has dtype {stored}, not {spec['dtype']}")
    if not admits(spec, shape) or any(size < 0 for size in shape):
        raise Refused(f"{spec['name']} has shape {shape}, not {spec['shape']}")
    if math.prod(shape) * stored.itemsize > most:
        raise Refused(f"{spec['name']} is inflated to more than such a file may hold")
    with archive.open(member) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):  # its checksum is looked at where the member ends
            raise Refused(f"{spec['name']} is followed by something else")
    return array.view(dtype)


def varies(spec: dict) -> bool:
    """Tells whether the shape of an array depends on the batch: such a size is text."""
    return any(isinstance(size, str) for size in spec["shape"])


def shaped(array: np.ndarray, spec: dict) -> np.ndarray:
    """Gives an array its shape, if that is fixed."""
    return array if varies(spec) else array.reshape(spec["shape"])


def admits(spec: dict, shape: tuple[int, ...]) -> bool:
    """Tells whether an array of that shape fits."""
    return len(shape) == len(spec["shape"]) and all(
        isinstance(expected, str) or expected == size
        for expected, size in zip(spec["shape"], shape, strict=True)
    )


def read_inputs(path: str, specs: list[dict]) -> list[np.ndarray]:
    """Reads the arrays of a user's npz file, one per input name."""
    arrays = []
    try:
        with np.load(path, allow_pickle=False) as archive:
            for spec in specs:
                if spec["name"] not in archive:
                    names = ", ".join(one["name"] for one in specs)
                    raise Refused(f"{path} has no array {spec['name']}; it needs {names}")
                arrays.append(archive[spec["name"]])
    except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise Refused(f"{path} is no readable npz file: {error}") from error
    return checked(arrays, specs, path)


def checked(arrays: list[np.ndarray], specs: list[dict], where: str) -> list[np.ndarray]:
    """Refuses arrays of other shapes or dtypes than the library was compiled for."""
    for array, spec in zip(arrays, specs, strict=True):
        if not admits(spec, array.shape) or str(array.dtype) != spec["dtype"]:
            sizes = ", ".join(map(str, spec["shape"]))
            raise Refused(
                f"input {spec['name']} is {array.dtype}{list(array.shape)}, the library was "
                f"compiled for {spec['dtype']}[{sizes}]"
            )
    batches = {len(array) for array, spec in zip(arrays, specs, strict=True) if varies(spec)}
    if len(batches) > 1 or 0 in batches:
        listed = ", ".join(map(str, sorted(batches)))
        raise Refused(f"{where} has batches of {listed}; all have to be the same, and at least 1")
    return arrays


def require_numbers(arrays: list[np.ndarray], specs: list[dict]) -> None:
    """Refuses NaN in data that are rounded to codes, none of which could stand for it."""
    for array, spec in zip(arrays, specs, strict=True):
        integral = array.dtype.kind in "biu" or spec["dtype"].startswith(("int", "uint"))
        if not integral and np.isnan(array).any():
            raise Refused(
                f"input {spec['name']} holds NaN, and the function rounds its data to codes, which "
                "have none; replace NaN by numbers before the call"
            )


@functools.cache
def runtime() -> Any:
    """Loads TVM's runtime, and nothing else of TVM, whose package takes a second to import."""
    import tvm_ffi
    from tvm_ffi.libinfo import load_lib_ctypes

    package = importlib.util.find_spec("tvm")
    places = (package and package.submodule_search_locations) or []
    # Global, as TVM's package does it: compiled libraries find their symbols there.
    folders = [Path(place) / "lib" for place in places]
    load_lib_ctypes("tvm", "tvm_runtime", "RTLD_GLOBAL", extra_lib_paths=folders)
    return tvm_ffi


def runtime_function(name: str) -> Any:
    """Finds a function of TVM's runtime."""
    return runtime().get_global_func(name)


def load_library(library: Path) -> Any:
    """Loads a compiled library into this process, as the file is now.

    The system's loader knows a library that is loaded by the name it was given: a file that has
    come in its place since, or one of the same name in another working folder, would be taken for
    it. So each is loaded by a name of its own, which need not outlive the call; TVM's package would
    look for the name behind it.
    """
    with tempfile.TemporaryDirectory(prefix="jaxeff-library-") as folder:
        alias = Path(folder) / library.name
        alias.symlink_to(library.resolve())
        return runtime().load_module(str(alias))


def tensor(array: np.ndarray) -> Any:
    """Copies an array to where kernels may read it, which is memory of TVM's alignment."""
    array, ffi = np.asarray(array, order="C"), runtime()
    allocate = runtime_function("runtime.TVMTensorAllocWithScope")
    dtype = ffi.dtype(str(array.dtype))
    there = allocate(ffi.Shape(array.shape), dtype, ffi.device("cpu"), None)
    pointer = ctypes.c_void_p(array.ctypes.data)
    runtime_function("runtime.TVMTensorCopyFromBytes")(there, pointer, array.nbytes)
    return there


class CompiledFunctions:
    """The functions of a compiled library, called by TVM's virtual machine on this CPU."""

    CPU, POOLED = 1, 2  # as TVM numbers devices and ways to allocate memory

    def __init__(self, library: Path) -> None:
        self._library = load_library(library)
        self._machine = self._library["vm_load_executable"]()
        self._machine["vm_initialization"](self.CPU, 0, self.POOLED)

    def set_input(self, name: str, *tensors: Any) -> None:
        """Sets what a function is called on."""
        self._machine["set_input"](name, *tensors)

    def invoke(self, name: str) -> None:
        """Calls a function."""
        self._machine["invoke_stateful"](name)

    def output(self, name: str, index: int, dtype: np.dtype) -> np.ndarray:
        """Copies a result of the last call."""
        # A single result is no tuple of one, which is said by a negative number of them.
        single = self._machine["get_output_arity"](name) < 0
        result = self._machine["get_output"](name, *([] if single else [index]))
        array = np.empty(tuple(result.shape), dtype)
        pointer = ctypes.c_void_p(array.ctypes.data)
        runtime_function("runtime.TVMTensorCopyToBytes")(result, pointer, array.nbytes)
        return array


class Model:
    """The bundle in a folder, loaded into this process."""

    def __init__(self, folder: Path) -> None:
        self.manifest = manifest = read_manifest(folder)
        require_fit(manifest)
        # All files are checked before any of them is used: the library runs as native code.
        files = {name: read_file(folder, manifest, name) for name in FILES}
        bound = unpack("parameters.npz", files["parameters.npz"], manifest["parameters"])
        bound += unpack("derived.npz", files["derived.npz"], manifest["derived"])
        self.batches = manifest.get("batches") or [None]
        specs = manifest["inputs"] + manifest["outputs"]
        arrays = unpack("selfcheck.npz", files["selfcheck.npz"], specs * len(self.batches))
        pairs = [arrays[start : start + len(specs)] for start in range(0, len(arrays), len(specs))]
        count = len(manifest["inputs"])
        self.recorded = [(pair[:count], pair[count:]) for pair in pairs]
        self.inputs = self.recorded[0][0]
        for batch, (inputs, _) in zip(self.batches, self.recorded, strict=True):
            for spec, array in zip(manifest["inputs"], inputs, strict=True):
                if varies(spec) and array.shape[:1] != (batch,):
                    raise Refused(f"{MANIFEST}: batches says {batch} for {array.shape}")

        self.cores = min(int(manifest["target"].get("num-cores", 1)), os.cpu_count() or 1)
        self._folder = folder
        self._machine = CompiledFunctions(folder / "library.so")
        self._operands = [tensor(bound[index]) for index in manifest["operands"]]

    def set_inputs(self, arrays: list[np.ndarray]) -> None:
        """Sets what the next calls work on."""
        self._machine.set_input("main", *self._operands, *map(tensor, arrays))

    def run(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Calls the function, and returns its results."""
        if self.manifest["rounds_inputs"]:
            require_numbers(arrays, self.manifest["inputs"])
        self.set_inputs(arrays)
        self._machine.invoke("main")
        specs = self.manifest["outputs"]
        dtypes = [dtype_of(spec["dtype"]) for spec in specs]
        results = [self._machine.output("main", i, dtype) for i, dtype in enumerate(dtypes)]
        return [shaped(result, spec) for result, spec in zip(results, specs, strict=True)]

    def repeat_inputs(self, batch: int) -> None:
        """Sets the benchmark to so many examples: the recorded ones, repeated."""
        specs = self.manifest["inputs"]
        if not any(map(varies, specs)):
            raise Refused(f"--batch {batch}: the library was compiled for the recorded shapes only")
        self.inputs = [
            array[np.arange(batch) % len(array)] if varies(spec) else array
            for array, spec in zip(self.inputs, specs, strict=True)
        ]

    def check(self) -> bool:
        """Replays the recorded inputs; prints how far the results are from JAX's."""
        passed = True
        for batch, (inputs, expected) in zip(self.batches, self.recorded, strict=True):
            of = "" if batch is None else f" of a batch of {batch}"
            for spec, ours, theirs in zip(
                self.manifest["outputs"], self.run(inputs), expected, strict=True
            ):
                error, allowed = deviation(ours, theirs)
                good = error <= allowed
                passed = passed and good
                verdict = "agrees" if good else "DISAGREES"
                by = f"max abs error {error:.3g}"
                if error != error:
                    by = "NaN or infinity at other places"
                print(f"{spec['name']}{of}: {verdict} with JAX, {by}")
        return passed

    def benchmark(self, number: int, repeat: int) -> None:
        """Times the function on the recorded inputs and prints the median."""
        machine, _, cpu = self._timed("main")
        timer = machine.time_evaluator("invoke_stateful", cpu, number=number, repeat=repeat)
        times = [1000 * seconds for seconds in timer("main").results]
        print(
            f"median {statistics.median(times):.4g} ms over {repeat} x {number} calls, "
            f"spread {max(times) - min(times):.2g} ms"
        )

    def profile(self, number: int, repeat: int) -> None:
        """Prints the time per compiled operator: mean over `number` calls, median over `repeat`."""
        watched = "operator_by_operator"  # as main, but interpreted, which can be watched
        machine, library, _ = self._timed(watched)
        machine.invoke_stateful(watched)
        register = library.get_function("profile_register", True)
        times: dict[str, list[float]] = {}
        calls: dict[str, float] = {}
        for _ in range(repeat):
            # A fresh instrument has counted nothing yet: each repetition is measured on its own.
            machine.module["set_instrument"](register())
            for _ in range(number):
                machine.invoke_stateful(watched)
            for count, nanoseconds, name in self._recorded(library):
                times.setdefault(name, []).append(nanoseconds / number / 1e6)
                calls[name] = count / number
        machine.set_instrument(lambda *_: 0)
        medians = {name: statistics.median(values) for name, values in times.items()}
        total = sum(medians.values()) or 1.0
        print(f"{'ms':>10} {'share':>6} {'calls':>6}  operator")
        for name, value in sorted(medians.items(), key=lambda item: -item[1]):
            print(f"{value:10.4g} {value / total:6.1%} {calls[name]:6g}  {name}")

    def _timed(self, name: str) -> tuple[Any, Any, Any]:
        """Loads the library by TVM's package, which times what it calls, with inputs set."""
        os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")  # the compiler is not needed here
        import tvm
        from tvm.runtime.vm import VirtualMachine

        library = load_library(self._folder / "library.so")
        machine = VirtualMachine(library, tvm.cpu())
        # Past the package, which takes only tensors that were made since it was imported.
        machine.module["set_input"](name, *self._operands, *map(tensor, self.inputs))
        return machine, library, tvm.cpu()

    @staticmethod
    def _recorded(library: Any) -> list[tuple[int, int, str]]:
        """Reads calls, nanoseconds and name of each operator since the instrument was set."""
        entry = library.get_function("profile_entry", True)
        recorded = []
        index = 0
        while line := entry(index):
            calls, nanoseconds, name = line.split(" ", 2)
            # Builtins of the virtual machine (allocation, shapes) are no operators.
            if not name.startswith("vm.builtin"):
                recorded.append((int(calls), int(nanoseconds), name))
            index += 1
        return recorded


def deviation(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Computes the largest error against JAX's result, and what passes as rounding.

    The error is NaN if they differ in what is NaN or infinite.
    """
    wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
    a, b = np.asarray(ours, wide), np.asarray(theirs, wide)
    finite = np.isfinite(b)
    if a.shape != b.shape or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("nan"), 0.0
    error = float(np.max(np.abs(a - b), where=finite, initial=0.0))
    if theirs.dtype.kind in "biu":
        return error, 0.0
    if theirs.dtype.kind in "fc":
        precision = float(np.finfo(theirs.dtype).eps)
    else:
        import ml_dtypes

        precision = float(ml_dtypes.finfo(theirs.dtype).eps)
    scale = float(np.max(np.abs(b), where=finite, initial=0.0))
    return error, precision * (1000.0 if precision < 1e-6 else 8.0) * scale


def write_outputs(path: str, named: dict[str, np.ndarray]) -> None:
    """Writes an npz file, whole or not at all."""
    link = os.readlink(path) if os.path.islink(path) else ""  # /dev/stdout leads to /proc
    if link.startswith(("/proc/", "/dev/")) or (os.path.exists(path) and not os.path.isfile(path)):
        raise Refused(f"{path} cannot be written: it is no regular file")
    # Under another name first: a process killed while writing leaves no half file.
    unfinished = Path(path + ".unfinished")
    try:
        with unfinished.open("wb") as file:
            np.savez(file, allow_pickle=False, **named)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise Refused(f"{path} cannot be written: {error.strerror or error}") from error


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    folder = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(
        description="Run the bundle that this file lies in; without arguments, check it."
    )
    parser.add_argument("inputs", nargs="?", help="an npz file, one array per input name")
    parser.add_argument("outputs", nargs="?", help="the npz file to write, one array per result")
    parser.add_argument("--check", action="store_true", help="compare with what JAX computed")
    parser.add_argument("--benchmark", action="store_true", help="time the function")
    parser.add_argument("--profile", action="store_true", help="time each compiled operator")
    parser.add_argument("--number", type=int, default=10, help="calls per measurement (10)")
    parser.add_argument("--repeat", type=int, default=10, help="measurements (10)")
    parser.add_argument("--batch", type=int, help="examples per call, for a library for any batch")
    parser.add_argument("--threads", type=int, help="threads to use (the target's num-cores)")
    parser.add_argument("--bundle", type=Path, default=folder, help="another bundle's folder")
    options = parser.parse_args()
    if (options.inputs is None) != (options.outputs is None):
        parser.error("give both inputs.npz and outputs.npz")
    more = [n for n in (options.threads, options.batch) if n is not None]
    if min(options.number, options.repeat, *more) < 1:
        parser.error("--number, --repeat, --threads and --batch must be positive")
    return options


def main() -> int:
    """Does what the command line asks for, and returns the exit status."""
    options = arguments()
    if options.threads:
        os.environ["TVM_NUM_THREADS"] = str(options.threads)
    try:
        model = Model(options.bundle)
        # Before the first call, which reads it; by itself TVM takes half of an x86's cores.
        os.environ.setdefault("TVM_NUM_THREADS", str(model.cores))
        if options.inputs is not None:
            results = model.run(read_inputs(options.inputs, model.manifest["inputs"]))
            names = [spec["name"] for spec in model.manifest["outputs"]]
            write_outputs(options.outputs, dict(zip(names, results, strict=True)))
        if options.batch:
            model.repeat_inputs(options.batch)
        if options.benchmark:
            model.benchmark(options.number, options.repeat)
        if options.profile:
            model.profile(options.number, options.repeat)
        if options.check or not (options.inputs or options.benchmark or options.profile):
            return 0 if model.check() else 1
    except Refused as refused:
        print(f"error: {refused}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
