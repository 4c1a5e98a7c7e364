"""The one error every loader raises: it names the file, what was expected, and the way out."""


class DataError(Exception):
    """A data file is missing, cut short, or not in the format its name promises."""
