"""The studies: `python -m experiments` lists them, `python -m experiments.<name> --help` one."""

import importlib

from experiments.harness import Study

MODULES = (
    "accelerators",
    "activations",
    "analog",
    "analog_posterior",
    "bridges",
    "c_library",
    "certainty",
    "chip_queries",
    "compression",
    "decoding",
    "deep_light",
    "diffusion",
    "dirty_mnist",
    "ensembles",
    "fuzz",
    "galen",
    "gaussian_limits",
    "hardening",
    "hardening.vant",
    "integer",
    "keyword_spotting",
    "latency",
    "microcontroller",
    "moment_variances",
    "out_of_domain",
    "photonic",
    "photonic_attention",
    "policies",
    "pretrained",
    "pruning",
    "quickstart",
    "random_layers",
    "replicates",
    "scaling",
    "throughput",
    "tokens",
    "transforms",
    "vit_formats",
    "walking_noise",
    "walking_noise.sensitivity",
    "zoo",
)


def load(name: str) -> Study:
    """The study that `python -m experiments.<name>` runs."""
    module = importlib.import_module(f"experiments.{name}")
    if hasattr(module, "__path__"):  # a package, which runs its __main__
        module = importlib.import_module(f"experiments.{name}.__main__")
    study: Study = module.STUDY
    return study


if __name__ == "__main__":
    for name in MODULES:
        print(f"{name:28}{load(name).about.splitlines()[0]}")
