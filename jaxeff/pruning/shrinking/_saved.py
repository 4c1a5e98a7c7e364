"""`save_pruned` and `load_pruned`: a smaller model in a folder, its plan as text beside it.

```python
from jaxeff.nn import small_classifier
from jaxeff.pruning import Prune, channels, load_pruned, prune_plan, pruned, save_pruned

f, params, (x, y) = small_classifier()
plan = prune_plan(f, params, x, {"fc1": Prune(0.5)})
save_pruned("small", plan, plan.shrink(params))

plan, small = load_pruned("small", channels(f, params, x), params)
logits = pruned(f, plan)(small, x)
```

The folder holds `plan.json`, to be read by people, and `params.safetensors`, which says which plan
it belongs to. The code of the model isn't kept: whoever loads it has `f`. The folder appears whole
or not at all; one that holds something else isn't overwritten.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from jaxeff.core import instance_of, parameter_tree, validate
from jaxeff.pruning.dependencies import Channels, PlanError
from jaxeff.pruning.shrinking._plan import Plan
from jaxeff.store import atomic_folder, load_metadata, load_pytree, save_pytree, write_atomically

PLAN, NUMBERS = "plan.json", "params.safetensors"


@validate(plan=instance_of(Plan), small=parameter_tree)
def save_pruned(folder: str | os.PathLike[str], plan: Plan, small: Any) -> Path:
    """Writes a smaller model, replacing one that is there.

    Args:
        folder: Folder of the model; made when missing.
        plan: Channels that were kept.
        small: A tree of what it leaves: parameters, with running statistics or an optimizer's state
            where these are to be kept as well.

    Raises:
        PlanError: The plan can't be carried out, or a leaf has another shape than it leaves.
        FileExistsError: Something else is in the folder.
    """
    text = plan.text()
    plan.check_small(small)
    with atomic_folder(Path(folder), PLAN, _listed) as temporary:
        # The digest ties the numbers to their plan: two files can be replaced one at a time.
        save_pytree(temporary / NUMBERS, small, {"plan": _digest(text)})
        write_atomically(temporary / PLAN, text)
    return Path(folder)


@validate(channels=instance_of(Channels), like=parameter_tree)
def load_pruned(folder: str | os.PathLike[str], channels: Channels, like: Any) -> tuple[Plan, Any]:
    """Reads a smaller model.

    Args:
        folder: Folder that `save_pruned` wrote.
        channels: The groups of the whole model, as `jaxeff.channels` reads them.
        like: A tree of the whole model's shapes, of the structure that was saved; only shapes
            matter.

    Returns:
        The plan, and what it leaves.

    Raises:
        FileNotFoundError: There is none.
        PlanError: The plan is damaged, or of another model, or the numbers belong to another plan.
        CheckpointError: The numbers are damaged, or of another structure.
    """
    text = (Path(folder) / PLAN).read_bytes()
    plan = Plan.from_text(text, channels, str(Path(folder) / PLAN))
    path = Path(folder) / NUMBERS
    if load_metadata(path).get("plan") != _digest(text.decode()):
        raise PlanError(
            f"{path} belongs to another plan than {Path(folder) / PLAN}; one of them has been "
            "replaced."
        )
    return plan, load_pytree(path, jax.eval_shape(plan.shrink, like))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _listed(content: bytes) -> Iterable[str]:
    """Returns the other files of a plan's folder."""
    found = json.loads(content)
    if not isinstance(found, dict) or "keep" not in found:
        raise ValueError("it is no plan")
    return [NUMBERS]


__all__ = ["load_pruned", "save_pruned"]
