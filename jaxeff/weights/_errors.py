"""The error of weights that don't load."""


class WeightsError(ValueError):
    """A file of weights is damaged, of another model, or fits in more than one way."""
