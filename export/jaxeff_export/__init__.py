"""StableHLO export: from a JAX function to a library for this machine or an ARM board.

```python
import jaxeff_export
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
bundle = jaxeff_export.deploy(f, (params, x[:10]), path="small")   # target="cortex-a72"
bundle.check()                                                     # "emulated"
logits = bundle.run(x[:10])                                        # board="rpc://raspberrypi:9090"
```

This is the only room that imports TVM, and it does so only when something is compiled or run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxeff_export.artifact.artifact import Artifact, ArtifactError, export
from jaxeff_export.artifact.signature import SignatureError
from jaxeff_export.boards import Board, BoardError
from jaxeff_export.bundle.bundle import Bundle, BundleError
from jaxeff_export.deployment import deploy, deploy_artifact
from jaxeff_export.fleet import Outcome, on_boards
from jaxeff_export.schedules.errors import TuningError
from jaxeff_export.targets.target import ARM_TARGETS, TargetError, resolve_target, target_names
from jaxeff_export.targets.toolchain import ToolchainError
from jaxeff_export.tuning.tune import tune

if TYPE_CHECKING:
    from jaxeff_export.compiler.compilation import compile_module
    from jaxeff_export.importer import (
        StableHLOParseError,
        UnsupportedOpError,
        import_stablehlo,
    )

__all__ = [
    "ARM_TARGETS",
    "Artifact",
    "ArtifactError",
    "Board",
    "BoardError",
    "Bundle",
    "BundleError",
    "Outcome",
    "SignatureError",
    "StableHLOParseError",
    "TargetError",
    "ToolchainError",
    "TuningError",
    "UnsupportedOpError",
    "compile_module",
    "deploy",
    "deploy_artifact",
    "export",
    "import_stablehlo",
    "on_boards",
    "resolve_target",
    "target_names",
    "tune",
]

# What imports TVM on import, and where it is.
_NEED_TVM = {
    "compile_module": "jaxeff_export.compiler.compilation",
    "import_stablehlo": "jaxeff_export.importer",
    "StableHLOParseError": "jaxeff_export.importer",
    "UnsupportedOpError": "jaxeff_export.importer",
}


def __getattr__(name: str) -> Any:
    if name in _NEED_TVM:
        return getattr(import_module(_NEED_TVM[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
