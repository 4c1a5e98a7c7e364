"""The emulated board's file system: an ARM Python with TVM's runtime, in a cache folder.

Two sources, each fetched with its own ordinary client and checked by it. Debian's arm64 Python and
its libraries come through apt, which is given a private state folder: nothing is installed, the
system's own package lists stay untouched, and no root is needed. TVM's aarch64 wheel and what its
runtime imports come through pip. TVM's compiler library (240 MB) is left out: a board only runs.

Every step leaves a finished folder or none, so preparing again after an interruption goes on where
it stopped. Set ``JAXEFF_CACHE`` to keep the folder elsewhere than ``~/.cache/jaxeff``.

Sharp edges: needs a Debian system, or one whose apt sources serve arm64 (Ubuntu's are on
ports.ubuntu.com, and have to be added). Deleting the folder is always safe.
"""

from __future__ import annotations

import compileall
import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from jaxeff.store import write_atomically
from jaxeff_export.boards._board import BoardError
from jaxeff_export.targets import find_emulator, require_extra

_PYTHONS = ("3.13", "3.12", "3.11")
# Same version here and there: the two ends of TVM's RPC share formats. The others just have to run.
_SAME_VERSION = ("apache-tvm", "apache-tvm-ffi")
_ANY_VERSION = ("numpy", "ml_dtypes", "typing_extensions", "tornado", "psutil", "cloudpickle")
_PLATFORMS = (
    *(f"manylinux_2_{minor}_aarch64" for minor in (28, 27, 26, 24, 17)),
    "manylinux2014_aarch64",
)
_LEFT_OUT = ("libtvm_compiler.so", "libtvm_runtime_cuda.so", "/include/", "/tests/", ".a", ".pyi")

Progress = Callable[[str], None]


class Sysroot:
    """A prepared (or yet to be prepared) file system of the emulated board.

    Attributes:
      folder: path of the folder; its name holds the versions, so a new TVM gets a new one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def default(cls) -> Sysroot:
        """Locates the one for the installed TVM, in the cache folder."""
        from jaxeff.store import cache_folder  # loads all of jaxeff, which no other board needs

        require_extra("tvm", "the emulated board")
        versions = "-".join(metadata.version(name) for name in _SAME_VERSION)
        return cls(cache_folder() / f"emulated-aarch64-tvm-{versions}")

    @property
    def root(self) -> Path:
        """The unpacked Debian packages."""
        return self.folder / "root"

    @property
    def packages(self) -> Path:
        """The unpacked wheels."""
        return self.folder / "site-packages"

    @property
    def ready(self) -> bool:
        """Whether every step was finished and the result was seen to run."""
        return (self.folder / "ready").is_file()

    def python(self) -> Path:
        """Finds the emulated machine's Python."""
        for version in _PYTHONS:
            if (path := self.root / "usr" / "bin" / f"python{version}").is_file():
                return path
        raise BoardError(f"no ARM Python in {self.root}; prepare the emulated board first")

    def command(self, cpu: str, arguments: Sequence[str]) -> list[str]:
        """Makes the command line that runs the emulated Python on an emulated `cpu`."""
        return [
            *(find_emulator(), "-cpu", cpu, "-L", str(self.root)),
            *(str(self.python()), *arguments),
        ]

    def environment(self) -> dict[str, str]:
        """Lists what the emulated Python must find in its environment, and nothing of this one."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "TMPDIR": tempfile.gettempdir(),
            "PYTHONHOME": str(self.root / "usr"),
            "PYTHONPATH": str(self.packages),
            "PYTHONNOUSERSITE": "1",
            "TVM_USE_RUNTIME_LIB": "1",
            # Emulated threads are real ones; TVM's pool spins, and would starve this machine.
            "TVM_NUM_THREADS": "1",
        }


def prepare(progress: Progress | None = print) -> Sysroot:
    """Downloads and unpacks the emulated board's file system; does nothing if it is there.

    About 35 MB are downloaded from apt's sources and 115 MB from the package index; 250 MB stay.

    Args:
      progress: called with one line per step; None for silence.

    Returns:
      The prepared file system.

    Raises:
      ToolchainError: if qemu is not installed.
      BoardError: if apt, dpkg-deb or pip is missing or fails; the message says what to do.
    """
    say = progress or (lambda line: None)
    find_emulator()
    sysroot = Sysroot.default()
    if sysroot.ready:
        return sysroot
    # Two processes that filled one folder would each see the other's half.
    with _locked(sysroot.folder):
        if sysroot.ready:  # another process was faster
            return sysroot
        with _step(sysroot.root) as unfinished:
            if unfinished is not None:
                _unpack_debian(unfinished, sysroot.folder / "apt", say)
        shutil.rmtree(sysroot.folder / "apt", ignore_errors=True)
        with _step(sysroot.packages) as unfinished:
            if unfinished is not None:
                version = sysroot.python().name.removeprefix("python")
                _unpack_wheels(unfinished, sysroot.folder / "wheels", version, say)
        shutil.rmtree(sysroot.folder / "wheels", ignore_errors=True)
        # Only what was seen to run counts as ready.
        say("starting it once")
        probe = "import tvm, tvm.rpc.server, platform; print(tvm.__version__, platform.machine())"
        answer = _run(
            sysroot.command("cortex-a72", ["-c", probe]),
            "the unpacked ARM Python does not start TVM",
            environment=sysroot.environment(),
        )
        if answer.split() != [metadata.version("apache-tvm"), "aarch64"]:
            raise BoardError(f"the emulated board answers {answer!r}; delete {sysroot.folder}")
        write_atomically(sysroot.folder / "ready", answer)
    say(f"the emulated board is ready in {sysroot.folder}")
    return sysroot


def _unpack_debian(destination: Path, state: Path, say: Progress) -> None:
    for program, package in (("apt-get", "apt"), ("dpkg-deb", "dpkg")):
        if shutil.which(program) is None:
            raise BoardError(
                f"{program} not found: the emulated board unpacks Debian's arm64 packages, "
                f"so it needs a Debian system ({package}), or JAXEFF_CACHE copied from one"
            )
    for folder in ("lists/partial", "archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    # An empty list of installed packages: all dependencies are downloaded as well.
    (state / "status").touch()
    # State and cache of its own: neither root nor the system's lists are touched. apt would
    # download as the user `_apt`, who can't write here.
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Install-Recommends": "0",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Debug::NoLocking": "1",
        "Dir::State": str(state),
        "Dir::State::lists": str(state / "lists"),
        "Dir::State::status": str(state / "status"),
        "Dir::Cache": str(state),
        "Dir::Cache::archives": str(state / "archives"),
    }
    flags = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    say("reading the arm64 package lists")
    # A third-party source without arm64 fails the update as a whole; only our packages matter.
    subprocess.run(["apt-get", *flags, "update"], capture_output=True, check=False)
    version = next((v for v in _PYTHONS if _offered(flags, f"python{v}-minimal")), None)
    if version is None:
        raise BoardError(
            f"apt offers no arm64 Python among {', '.join(_PYTHONS)}: its sources must be "
            "reachable and serve arm64 (on Ubuntu, add ports.ubuntu.com to them)"
        )
    say(f"downloading Debian's arm64 Python {version}")
    wanted = [f"python{version}-minimal", f"libpython{version}-stdlib", "libstdc++6", "libgcc-s1"]
    _run(
        ["apt-get", *flags, "install", "--yes", "--download-only", *wanted],
        "apt could not download the arm64 packages",
    )
    say("unpacking it")
    for file in sorted((state / "archives").glob("*.deb")):
        _run(
            ["dpkg-deb", "--extract", str(file), str(destination)],
            f"{file.name} does not unpack; delete {state} and try again",
        )


def _offered(flags: Sequence[str], package: str) -> bool:
    policy = subprocess.run(
        ["apt-cache", *flags, "policy", package], capture_output=True, text=True, check=False
    )
    candidate = [line for line in policy.stdout.splitlines() if "Candidate:" in line]
    return bool(candidate) and "(none)" not in candidate[0]


def _unpack_wheels(destination: Path, downloads: Path, version: str, say: Progress) -> None:
    if importlib.util.find_spec("pip") is None:
        raise BoardError(f"pip not found for {sys.executable}: run python -m ensurepip first")
    downloads.mkdir(parents=True, exist_ok=True)
    wanted = [f"{name}=={metadata.version(name)}" for name in _SAME_VERSION]
    say(f"downloading the aarch64 wheels of {', '.join((*wanted, *_ANY_VERSION))}")
    _run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--only-binary=:all:", "--implementation", "cp", "--python-version", version),
            *(part for name in _PLATFORMS for part in ("--platform", name)),
            *("--dest", str(downloads), *wanted, *_ANY_VERSION),
        ],
        "pip could not download the aarch64 wheels",
    )
    say("unpacking them")
    for wheel in sorted(downloads.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            members = [
                # TVM's compiler alone has 240 MB; a board only runs.
                name
                for name in archive.namelist()
                if not any(
                    name.endswith(part) if not part.endswith("/") else part in name
                    for part in _LEFT_OUT
                )
            ]
            archive.extractall(destination, members)
    if tuple(map(int, version.split("."))) == sys.version_info[:2]:
        # Same bytecode here and there, and compiling it under emulation would take minutes.
        compileall.compile_dir(str(destination), quiet=2)


@contextlib.contextmanager
def _step(finished: Path) -> Iterator[Path | None]:
    """Yields a folder to fill that becomes `finished` on success; None if it exists already."""
    if finished.is_dir():
        yield None
        return
    # Under another name until it is complete: an interrupted step starts over.
    unfinished = finished.with_name(finished.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    unfinished.rename(finished)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lets one process at a time prepare `folder`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "w")  # noqa: SIM115 (closed below, with the lock)
    except OSError as error:
        raise BoardError(
            f"cannot write the cache folder {folder} ({error}); set JAXEFF_CACHE to another one"
        ) from error
    # The kernel frees the lock when the process ends, however it ends.
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(
    command: Sequence[str], complaint: str, *, environment: dict[str, str] | None = None
) -> str:
    """Runs a command and returns its output; raises `BoardError` with its last complaint."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        last = lines[-1].strip() if lines else f"exit status {done.returncode}"
        raise BoardError(f"{complaint}: {last}")
    return done.stdout
