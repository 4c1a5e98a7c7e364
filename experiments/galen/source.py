"""What Klein's thesis reports (tables 4.1 and 4.2), and what differs here."""

FLOAT = {"accuracy": 0.930, "ms": 330.0, "macs": 4.75e10, "bops": 4.86e13}

AGENTS = {
    ("pruning", 0.3): {"macs": 1.42e10, "bops": 1.45e13, "ms": 98.0, "accuracy": 0.930},
    ("quantization", 0.3): {"macs": 4.75e10, "bops": 8.23e11, "ms": 98.0, "accuracy": 0.925},
    ("joint", 0.3): {"macs": 4.35e10, "bops": 9.42e11, "ms": 99.0, "accuracy": 0.932},
    ("pruning", 0.2): {"macs": 9.24e9, "bops": 9.45e12, "ms": 66.0, "accuracy": 0.924},
    ("quantization", 0.2): {"macs": 4.75e10, "bops": 4.01e11, "ms": 57.0, "accuracy": 0.450},
    ("joint", 0.2): {"macs": 2.82e10, "bops": 6.74e11, "ms": 64.0, "accuracy": 0.928},
}
"""By agent and share of the latency."""

SENSITIVITY = {
    "joint, blind": {"macs": 1.68e10, "bops": 8.10e11, "share": 0.200, "accuracy": 0.9266},
    "joint": {"macs": 2.82e10, "bops": 6.75e11, "share": 0.194, "accuracy": 0.9277},
}
"""At a share of 0.2."""

DIFFERENCES = (
    "the source: ResNet-18 on a Raspberry Pi 4; here the network and data of `config`, timed on "
    "one core of this machine (x86). Compare shares of the latency, not milliseconds",
    "the source's baseline is untuned (7 % of the core's peak); ours is this compiler's float32, "
    "so the same share is harder to reach. `of_untuned` is the share of a build for a processor "
    "that the compiler knows nothing of",
    "latencies in a search are sums of kernels' times from a table with nodes, filled by "
    "measuring; the best candidate is then measured end to end, and moved a layer at a time until "
    "it lands. `told` and `took` are shares by the table and by the clock of the first one",
    "below --full: far fewer episodes, so that the agent makes many updates an episode, and a few "
    "steps of retraining in the place of an epoch, after which running statistics are settled",
    "where layers in float or of other widths read the same array, it is written once more: the "
    "table has one time per number for that, and doesn't know of sums of floats and codes",
    "all seeds of a search share one trained network",
)
