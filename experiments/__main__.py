"""The studies: `python -m experiments` lists them, `python -m experiments.<name> --help` one."""

import importlib

from experiments.harness import Study

MODULES = (
    "activations",
    "analog",
    "compression",
    "dataflow",
    "dirty_mnist",
    "ensembles",
    "galen",
    "gaussian_limits",
    "hardening",
    "hardening.vant",
    "latency",
    "operator_forms",
    "photonic",
    "pruning",
    "quickstart",
    "scaling",
    "throughput",
    "walking_noise",
    "beyond.accelerators",
    "beyond.analog_posterior",
    "beyond.architectures",
    "beyond.bridges",
    "beyond.c_library",
    "beyond.certainty",
    "beyond.chip_queries",
    "beyond.contexts",
    "beyond.decoding",
    "beyond.deep_light",
    "beyond.diffusion",
    "beyond.drift",
    "beyond.ethos_search",
    "beyond.exits",
    "beyond.fuzz",
    "beyond.integer",
    "beyond.keyword_spotting",
    "beyond.learning_memories",
    "beyond.learning_spotter",
    "beyond.microcontroller",
    "beyond.moment_gaps",
    "beyond.moment_growth",
    "beyond.moment_prices",
    "beyond.moment_sharing",
    "beyond.moment_variances",
    "beyond.out_of_domain",
    "beyond.peers",
    "beyond.perception",
    "beyond.photonic_attention",
    "beyond.policies",
    "beyond.pretrained",
    "beyond.random_layers",
    "beyond.replicates",
    "beyond.residual_streams",
    "beyond.selective",
    "beyond.sensitivity",
    "beyond.tiny_networks",
    "beyond.tokens",
    "beyond.transforms",
    "beyond.vit_formats",
    "beyond.waiting",
    "beyond.zoo",
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
        print(f"{name:32}{load(name).about.splitlines()[0]}")
