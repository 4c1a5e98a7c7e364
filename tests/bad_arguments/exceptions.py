"""What is taken although it looks bad, each with the reason; and the words that name an argument.

An entry of `ACCEPTED` is (function, parameter, what it is), a pattern each, as a shell has them.
"""

from fnmatch import fnmatchcase

WORDS = {
    "data": ("targets", "labels", "examples"),
    "spec": ("setting", "board"),
    "validation": ("labels",),
    "specs": ("spec", "setting"),
    "inputs": ("batch",),
    "model": ("flax.nnx.Module",),
    "args": ("argument 1", "argument 2"),
    "arrays": ("array",),
    "batches": ("batch",),
    "raw": ("levels",),
    "train": ("training points",),
    "audio": ("samples",),
    "name": ("data set", "constants", "activation"),
}
"""What an error may call an argument instead of by its name."""

SHAPES = (
    "channels", "cost", "sites", "summary", "trace", "noise.slots", "bayes.prior_scales",
)  # fmt: skip
SHAPES_OF_BATCHES = (
    "compression.initial_ranges", "compression.memory", "compression.penalty",
    "compression.random_weights", "photonics.levels_per_activation", "uncertainty.dense_head",
    "adapters.init_lora", "adapters.merge_lora", "adapters.untied",
)  # fmt: skip
"""Functions that read a program, not the numbers it is given."""

ACCEPTED: dict[tuple[str, str, str], str] = {
    # Numbers that are no sizes
    ("*", "low", "negative"): "a range may begin below zero",
    ("*", "high", "negative"): "a range may lie below zero; one in the wrong order is refused",
    ("jaxeff.hardening.clamped", "high", "negative"): "the same",
    ("jaxeff.compression.allocate_bits", "budget", "a fraction"): "bits of a code may be"
    " fractions",
    ("jaxeff.search.search", "steps", "zero"): "candidates may be judged without training",
    ("*", "pad", "zero"): "no padding",
    ("*", "warmup", "zero"): "no warm-up",
    ("*", "ramp_steps", "zero"): "no ramp",
    ("*", "epochs", "zero"): "a run of no epochs is its start",
    ("*", "parameters", "zero"): "no argument holds parameters",
    ("*", "axis", "negative"): "counted from the end",
    ("*", "axis", "zero"): "the first axis",
    ("jaxeff.robustness.logistic", "*", "negative"): "any curve of this form",
    ("jaxeff.robustness.logistic", "mu", "infinity"): "a midpoint that isn't reached",
    ("jaxeff.robustness.preserved_accuracy", "level", "negative"): "levels of any kind",
    ("jaxeff.bayes.*", "step_size", "a function"): "a schedule",
    ("jaxeff.bayes.*", "kl", "a function"): "a schedule",
    ("jaxeff.bayes.*", "temperature", "a function"): "a schedule",
    ("jaxeff.analog_hardware.pulsed", "learning_rate", "a function"): "a schedule",
    ("jaxeff.analog_hardware.tiki_taka", "learning_rate", "a function"): "a schedule",
    ("jaxeff.bayes.ivon", "learning_rate", "a function"): "a schedule",
    ("jaxeff.bayes.swag", "start", "zero"): "from the first update",
    ("jaxeff.bayes.*", "prior", "a number"): "one deviation for all",
    ("jaxeff.ensembles.repulsive", "strength", "a function"): "a schedule",
    # Arrays
    ("jaxeff.ensembles.choose_random", "outside", "complex"): "the same as x",
    ("*", "x", "complex"): "a network may compute with complex numbers",
    ("*", "batch", "complex"): "a network may compute with complex numbers",
    ("*", "inputs", "complex"): "a network may compute with complex numbers",
    ("jaxeff.uncertainty.selective", "threshold", "negative"): "a score may be negative",
    ("jaxeff.uncertainty.accepted_prefix", "threshold", "negative"): "a score may be negative",
    ("jaxeff.uncertainty.accepted_prefix", "uncertainty", "NaN"): "a text ends there",
    ("jaxeff.uncertainty.in_batches", "inputs", "NaN"): "the function says what it takes",
    ("jaxeff.nn.log_mel", "audio", "negative"): "sound has both signs",
    ("jaxeff.nn.log_mel", "audio", "too large"): "int32 is louder",
    ("jaxeff.dirty_mnist.mix_codes", "labels", "negative"): "labels are compared, not counted",
    ("jaxeff.dirty_mnist.mix_codes", "labels", "too large"): "labels are compared, not counted",
    ("jaxeff.compression.dequantize", "codes", "*"): "codes are any numbers of a grid's dtype",
    ("jaxeff.compression.straight_through", "*", "empty"): "JAX names the two shapes",
    ("jaxeff.compression.straight_through", "x", "NaN"): "y says what becomes of it",
    ("jaxeff.bayes.mixing", "values", "NaN"): "R-hat is infinite: chains that didn't converge",
    ("jaxeff.robustness.bin_edges", "arrays", "NaN in one"): "edges of the values that are finite",
    ("jaxeff.robustness.bin_edges", "arrays", "an array"): "iterated over",
    ("jaxeff.robustness.bin_edges", "arrays", "one empty"): "edges of the values there are",
    **{(f"jaxeff.{name}", "args", "[!tw]*"): "only shapes and dtypes are read" for name in SHAPES},
    **{
        (f"jaxeff.{name}", "batch", "[!tw]*"): "only shapes and dtypes are read"
        for name in SHAPES_OF_BATCHES
    },
    ("*", "args", "complex"): "a network may compute with complex numbers",
    ("jaxeff.training.run_epochs", "key", "keys"): "one for each replicate",
    ("jaxeff.nn.cell_targets", "labels", "negative"): "there is no object",
    ("jaxeff.nn.cell_targets", "labels", "too large"): "classes of any number",
    ("jaxeff.uncertainty.nms", "classes", "negative"): "classes are compared, not counted",
    ("jaxeff.uncertainty.nms", "classes", "too large"): "classes are compared, not counted",
    ("jaxeff.uncertainty.mean_average_precision", "classes", "negative"): "no detection",
    ("jaxeff.uncertainty.mean_average_precision", "*", "too large"): "of no class that is asked",
    ("jaxeff.uncertainty.match_detections", "least", "negative"): "overlap may be minus a distance",
    ("jaxeff.uncertainty.detect", "doubt", "infinity"): "none is refused",
    ("*", "truths", "zero"): "no objects: NaN",
    ("*", "ignored", "negative"): "no class has that label",
    ("*", "ignored", "zero"): "the background may not count",
    # What the loss, the metric or the model decides
    ("jaxeff.robustness.*accuracy*", "data", "fractional labels"): "a metric takes any targets",
    ("jaxeff.robustness.*accuracy*", "data", "labels beyond the classes"): "the metric knows them",
    ("jaxeff.robustness.*accuracy*", "data", "negative labels"): "the metric knows the classes",
    ("jaxeff.training.run_epochs", "data", "*"): "the epoch says what it takes",
    ("jaxeff.training.*", "data", "NaN"): "a loss may mask NaN; one that doesn't diverges",
    ("jaxeff.*.learn_budget", "data", "NaN"): "a loss may mask NaN; one that doesn't diverges",
    ("jaxeff.pruning.prune_iteratively", "data", "*"): "the loss says what it takes",
    # Names that mean something later, or anything
    ("jaxeff.uncertainty.scored", "site", "unknown"): "sites are known when it is called",
    ("jaxeff.hardening.relu_quantization", "*", "unknown"): "sites are known when it is applied",
    ("jaxeff.analog_hardware.train_for_chip", "sites", "unknown"): "known when a model is traced",
    ("jaxeff.adapters.frozen", "pattern", "unknown"): "paths are known when training starts",
    ("jaxeff.moment_propagation.check_gaussian", "name", "unknown"): "any name",
    ("jaxeff.load_weights", "source", "text"): "a path, of a file that isn't there",
    ("jaxeff.weights.packaged_file", "*", "unknown"): "a package or file that isn't there",
    ("jaxeff.store.write_atomically", "content", "unknown"): "any text",
    ("*", "verdict", "unknown"): "any text",
    ("jaxeff.report", "title", "unknown"): "any text",
    ("jaxeff.report", "outside", "complex"): "a network may compute with complex numbers",
    ("jaxeff.bayes.svi", "calibrate", "complex"): "a network may compute with complex numbers",
    ("jaxeff.hardening.scale_levels", "spec", "*"): "any pytree",
    ("*", "rules", "numbers as names"): "rules are those of primitives, no names",
    ("jaxeff.functional", "model", "a model"): "it is one",
    ("jaxeff.restore", "model", "a model"): "it is one",
    ("jaxeff_export.to_litert", "batches", "None"): "products are computed in float",
    ("jaxeff.compression.ptq", "batches", "an array"): "it is one batch",
    ("jaxeff.compression.calibrate", "batches", "an array"): "it is one batch",
    ("jaxeff_export.*", "target", "*"): "resolved when a candidate is timed",
    ("jaxeff_export.*", "board*", "*"): "connected to when a candidate is timed",
}  # fmt: skip


def is_accepted(function: str, parameter: str, what: str) -> bool:
    """Whether an entry of `ACCEPTED` says so."""
    return any(
        all(map(fnmatchcase, (function, parameter, what), patterns)) for patterns in ACCEPTED
    )
