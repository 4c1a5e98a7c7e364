"""Compares programs with those that are kept: `python -m tests.golden [MODEL ...]`.

    python -m tests.golden                        all networks of the laws and of the zoo
    python -m tests.golden vit resnet             some of them
    python -m tests.golden --write                keep what is found
    python -m tests.golden my_module:make --store mine.json
                                                  a model of yours: `make()` returns f, params and
                                                  a tuple of example arguments; kept in mine.json

Exits with 1 where a program differs, and names the model and the transform. Programs are those of
one version of JAX: with another one nothing can be compared.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path

import jax

from jaxeff.core import progress_bar
from tests.golden.models import MODELS
from tests.golden.programs import TRANSFORMS, Model, hashes

KEPT = Path(__file__).with_name("hashes.json")


def main() -> int:
    """Compares or keeps; returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m tests.golden", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names, or module:function")
    parser.add_argument("--write", action="store_true", help="keep what is found")
    parser.add_argument("--store", type=Path, default=KEPT, help="file of hashes [%(default)s]")
    parser.add_argument("--only", nargs="+", choices=TRANSFORMS, help="transforms [all]")
    asked = parser.parse_args()

    kept = json.loads(asked.store.read_text()) if asked.store.exists() else {}
    if kept.get("jax", jax.__version__) != jax.__version__ and not asked.write:
        print(f"{asked.store} is of JAX {kept['jax']}, here is {jax.__version__}", file=sys.stderr)
        return 2
    before = kept.get("programs", {}) if kept.get("jax") == jax.__version__ else {}
    names = [*(asked.models or MODELS)]
    tasks = [(name, transform) for name in names for transform in asked.only or TRANSFORMS]
    models: dict[str, Model] = {}
    different = missing = 0
    with progress_bar(None, "programs", len(tasks)) as advance:
        for name, transform in tasks:
            if name not in models:
                models = {name: _model(name)}  # one at a time: some are large
                if asked.write:  # what is done is kept if the rest isn't
                    _write(asked.store, before)
            new = hashes(models[name], transform)
            old = before.get(name, {}).get(transform)
            if old is None:
                missing += 1
            elif old != new:
                different += 1
                print(f"{name}, {transform}: {' '.join(old)} -> {' '.join(new)}", flush=True)
            if asked.write:
                before.setdefault(name, {})[transform] = new
            advance(1, f"{name}, {transform}")
    if asked.write:
        _write(asked.store, before)
    print(f"{len(tasks)} programs, {different} differ, {missing} not kept before")
    return 1 if different and not asked.write else 0


def _write(path: Path, programs: dict[str, dict[str, list[str]]]) -> None:
    kept = {"jax": jax.__version__, "programs": programs}
    path.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")


def _model(name: str) -> Model:
    if ":" not in name:
        return MODELS[name]()
    module, _, function = name.partition(":")
    sys.path.insert(0, "")
    return Model(*getattr(importlib.import_module(module), function)())


if __name__ == "__main__":
    sys.exit(main())
