"""StableHLO export: from a JAX function to a library for this machine or an ARM board.

```python
import jaxeff_export
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
bundle = jaxeff_export.deploy(f, (params, x[:10]), path="small")   # target="cortex-a72"
bundle.check()                                                     # "emulated"
logits = bundle.run(x[:10])                                        # board="rpc://raspberrypi:9090"
logits = jaxeff_export.load("small").run(x[:10])                   # elsewhere, without JAX
```

This is the only room that imports TVM, and it does so only when something is compiled or run.
Names are found when they are asked for: importing the package loads neither TVM nor JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxeff_export.targets import require_extra

if TYPE_CHECKING:
    from jaxeff_export.artifact import Artifact as Artifact
    from jaxeff_export.artifact import ArtifactError as ArtifactError
    from jaxeff_export.artifact import SignatureError as SignatureError
    from jaxeff_export.artifact import export as export
    from jaxeff_export.boards import Board as Board
    from jaxeff_export.boards import BoardError as BoardError
    from jaxeff_export.bundle import BoardResult as BoardResult
    from jaxeff_export.bundle import Bundle as Bundle
    from jaxeff_export.bundle import deploy as deploy
    from jaxeff_export.bundle import deploy_artifact as deploy_artifact
    from jaxeff_export.bundle import run_on_boards as run_on_boards
    from jaxeff_export.bundle.files import BundleError as BundleError
    from jaxeff_export.clib import CLibrary as CLibrary
    from jaxeff_export.clib import CLibraryError as CLibraryError
    from jaxeff_export.compiler import compile_module as compile_module
    from jaxeff_export.importer import StableHLOParseError as StableHLOParseError
    from jaxeff_export.importer import UnsupportedOpError as UnsupportedOpError
    from jaxeff_export.importer import import_stablehlo as import_stablehlo
    from jaxeff_export.latency import channel_multiple as channel_multiple
    from jaxeff_export.latency import measured_latency as measured_latency
    from jaxeff_export.latency import modelled_latency as modelled_latency
    from jaxeff_export.latency import table_latency as table_latency
    from jaxeff_export.latency import vela_latency as vela_latency
    from jaxeff_export.litert_files import LitertError as LitertError
    from jaxeff_export.litert_files import LitertFile as LitertFile
    from jaxeff_export.litert_files import from_litert as from_litert
    from jaxeff_export.litert_files import to_litert as to_litert
    from jaxeff_export.onnx_files import OnnxError as OnnxError
    from jaxeff_export.onnx_files import OnnxFile as OnnxFile
    from jaxeff_export.onnx_files import from_onnx as from_onnx
    from jaxeff_export.onnx_files import to_onnx as to_onnx
    from jaxeff_export.onnx_files import to_qonnx as to_qonnx
    from jaxeff_export.runtime import LoadedBundle as LoadedBundle
    from jaxeff_export.runtime import load as load
    from jaxeff_export.schedules import TuningError as TuningError
    from jaxeff_export.targets import ARM_TARGETS as ARM_TARGETS
    from jaxeff_export.targets import C_TARGETS as C_TARGETS
    from jaxeff_export.targets import PROCESSORS as PROCESSORS
    from jaxeff_export.targets import BoardMemory as BoardMemory
    from jaxeff_export.targets import MissingExtraError as MissingExtraError
    from jaxeff_export.targets import Processor as Processor
    from jaxeff_export.targets import TargetError as TargetError
    from jaxeff_export.targets import ToolchainError as ToolchainError
    from jaxeff_export.targets import resolve_target as resolve_target
    from jaxeff_export.targets import target_names as target_names
    from jaxeff_export.tuning import tune as tune

_MODULES = {
    "artifact": ("Artifact", "ArtifactError", "SignatureError", "export"),
    "boards": ("Board", "BoardError"),
    "bundle": ("Bundle", "BoardResult", "deploy", "deploy_artifact", "run_on_boards"),
    "bundle.files": ("BundleError",),
    "clib": ("CLibrary", "CLibraryError"),
    "compiler": ("compile_module",),
    "importer": ("StableHLOParseError", "UnsupportedOpError", "import_stablehlo"),
    "latency": (
        "channel_multiple",
        "measured_latency",
        "modelled_latency",
        "table_latency",
        "vela_latency",
    ),
    "litert_files": ("LitertError", "LitertFile", "from_litert", "to_litert"),
    "onnx_files": ("OnnxError", "OnnxFile", "from_onnx", "to_onnx", "to_qonnx"),
    "runtime": ("LoadedBundle", "load"),
    "schedules": ("TuningError",),
    "targets": (
        "ARM_TARGETS",
        "C_TARGETS",
        "PROCESSORS",
        "BoardMemory",
        "MissingExtraError",
        "Processor",
        "TargetError",
        "ToolchainError",
        "resolve_target",
        "target_names",
    ),
    "tuning": ("tune",),
}
"""The public names by the package that offers them."""

_NEED_TVM = ("compiler", "importer", "latency")
"""Packages among them whose import loads TVM."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name == "boards":  # `jaxeff_export.boards.emulated.prepare()` needs no import of its own
        return import_module(f"{__name__}.boards")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULE_OF[name]
    if module in _NEED_TVM:
        require_extra("tvm", f"{__name__}.{name}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value  # found once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
