"""Engines of other libraries: which are there, and how they are set up before they are measured.

A study keeps what it runs on them in a package of modules `with_<engine>`. Those that need packages
which the project doesn't are left out where they can't be imported.
"""

import importlib
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from experiments.harness import Refused, Run

PACKAGES = {
    "ggml": ("xllamacpp",),
    "iree": ("iree",),
    "onnxruntime": ("onnx", "onnxruntime"),
    "openvino": ("onnx", "openvino"),
    "pyro": ("torch", "pyro"),
    "torch": ("torch",),
}
"""What an engine needs beyond the project's own requirements."""
APART = {
    "ggml": "xllamacpp",
    "iree": "iree-base-compiler iree-base-runtime",
    "openvino": "onnx openvino",
}
"""What is installed for engines that the extra leaves out."""


def available(names: Iterable[str]) -> list[str]:
    """Those of the named engines that can be imported here."""
    return [name for name in names if not _missing(name)]


def require(names: Iterable[str]) -> None:
    """Refuses engines that can't be imported.

    Raises:
        Refused: One of them can't; says how to get it.
    """
    for name in names:
        if missing := _missing(name):
            packages = " and ".join(missing)
            raise Refused(f"{name} needs {packages}: pip install {_installed(name)}")


def say_missing(run: Run[Any], names: Iterable[str]) -> None:
    """Says which of the named engines are left out."""
    for name in names:
        if missing := _missing(name):
            packages = " and ".join(missing)
            # A bracket would be markup to the terminal.
            how = _installed(name).replace("[", "\\[")
            run.say(f"without {name} ({packages}): pip install {how}")


def load(package: str, name: str) -> Any:
    """What a study's package runs on an engine."""
    return importlib.import_module(f"{package}.with_{name}")


def fresh_pyro(threads: int) -> None:
    """Pyro as in a new process: its threads, seed and parameters."""
    import pyro
    import torch

    torch.set_num_threads(threads)
    pyro.set_rng_seed(0)
    pyro.clear_param_store()


def _installed(name: str) -> str:
    return APART.get(name, '"jaxeff[benchmark]"')


def _missing(name: str) -> list[str]:
    return [package for package in PACKAGES.get(name, ()) if find_spec(package) is None]
