"""The studies: `python -m experiments` lists them, `python -m experiments.<name> --help` one."""

import importlib

from experiments.harness import Study

MODULES = (
    "activations",
    "bridges",
    "compression",
    "compression.peers",
    "dirty_mnist",
    "gaussian_limits",
    "hardening",
    "hardening.vant",
    "latency",
    "moment_variances",
    "policies",
    "pruning",
    "pruning.peer",
    "pruning.speed",
    "quickstart",
    "replicates",
    "scaling",
    "scaling.ess",
    "transforms",
    "walking_noise",
    "walking_noise.sensitivity",
)
_PACKAGES = (
    "activations", "bridges", "compression", "dirty_mnist", "hardening", "latency",
    "moment_variances", "policies", "pruning", "quickstart", "scaling", "transforms",
    "walking_noise",
)  # fmt: skip


def load(name: str) -> Study:
    """The study that `python -m experiments.<name>` runs."""
    main = ".__main__" if name in _PACKAGES else ""
    return importlib.import_module(f"experiments.{name}{main}").STUDY


if __name__ == "__main__":
    for name in MODULES:
        print(f"{name:28}{load(name).about.splitlines()[0]}")
