"""`load`: a bundle that is only called, without JAX, Flax or a compiler.

```python
import jax.numpy as jnp
import numpy as np

import jaxeff_export

jaxeff_export.deploy(lambda w, x: x @ w, (jnp.eye(3), jnp.ones((2, 3))), path="small")
model = jaxeff_export.load("small")                      # in any later process, a moment
y = model.run(np.ones((2, 3), np.float32))               # as Bundle.load("small").run does
```

Sharp edges: loading runs native code, as `Bundle.load` does. A `jaxeff.Gaussian` in a result loads
JAX, and where PyTorch is installed, TVM's runtime imports it. Checks, timings, sessions and other
boards are `Bundle`'s.
"""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxeff_export.runtime import _device_runner as device_runner
from jaxeff_export.runtime._structures import SignatureError, named_leaves, rebuild
from jaxeff_export.runtime._threads import run_on_threads

PROGRAM = Path(device_runner.__file__)
"""The program that runs a bundle on a device; every bundle has a copy."""


class BundleError(ValueError):
    """A folder that is no bundle, a damaged bundle, or one that cannot run where it should."""


class LoadedBundle:
    """A bundle in this process, to be called; made by `load`.

    Args:
      model: the bundle, as the program on a device has it.
    """

    def __init__(self, model: device_runner.Model) -> None:
        self._model = model
        self._turn = threading.Lock()

    def run(self, *inputs: Any) -> Any:
        """Calls the function on data inputs; the parameters are in the bundle.

        Any number of threads may call it; calls take turns.

        Args:
          *inputs: the data arguments, as arrays, or dicts, lists, tuples or dataclasses of them.

        Returns:
          What the function returned under JAX, with numpy arrays as leaves.

        Raises:
          SignatureError: naming an input of another shape or dtype than it was compiled for, or
            one that holds NaN and is rounded to codes.
        """
        model = self._model
        arrays = _flattened(inputs, model.manifest)
        with self._turn:
            try:
                results = run_on_threads(model.cores, lambda: model.run(arrays))
            except device_runner.Refused as refused:
                raise SignatureError(str(refused)) from refused
        return rebuild(model.manifest["structure"], results)


def load(path: str | Path) -> LoadedBundle:
    """Opens a bundle to be called here, by TVM's runtime alone: in a moment, and in little memory.

    Args:
      path: the bundle's folder. Every file that a call needs is checked against the manifest.

    Returns:
      The bundle; `run` calls it, as `Bundle.run` does.

    Raises:
      BundleError: if it is no bundle, damaged, or for another processor or version of TVM.
      TypeError: if `path` is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"load: path must be the bundle's folder, not {path!r:.100}")
    try:
        model = device_runner.Model(Path(path))
    except device_runner.Refused as refused:
        raise BundleError(f"{path}: {refused}") from refused
    try:
        # A trial with numbers for arrays: what a stranger wrote shows now, not in a call.
        rebuild(model.manifest["structure"], range(len(model.manifest["outputs"])))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(f"{path}: structure cannot be rebuilt: {error}") from error
    return LoadedBundle(model)


def _flattened(inputs: Sequence[Any], manifest: dict[str, Any]) -> list[np.ndarray]:
    """Flattens inputs, if they are what the library was compiled for."""
    names, specs = manifest["arguments"], manifest["inputs"]
    if len(inputs) != len(names):
        raise SignatureError(
            f"{len(inputs)} inputs were given, {len(names)} are expected: {', '.join(names)}"
        )
    leaves = {
        name: np.asarray(leaf)
        for argument, tree in zip(names, inputs, strict=True)
        for name, leaf in named_leaves(tree, argument)
    }
    wanted = [spec["name"] for spec in specs]
    if differing := sorted(leaves.keys() ^ set(wanted)):
        kind = "not expected" if differing[0] in leaves else "missing"
        raise SignatureError(f"input {differing[0]} is {kind}; expected are {', '.join(wanted)}")
    try:
        return device_runner.checked([leaves[name] for name in wanted], specs, "the call")
    except device_runner.Refused as refused:
        raise SignatureError(str(refused)) from refused
