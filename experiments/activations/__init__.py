"""What the activation function does to uncertainty: `python -m experiments.activations`."""
