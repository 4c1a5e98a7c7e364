"""Error of all loaders: it names the file, what was expected, and what to do."""


class DataError(Exception):
    """A data file is missing, cut short, or not in the format its name promises."""
