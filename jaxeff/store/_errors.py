"""Errors of stored files."""


class CheckpointError(ValueError):
    """A stored file is damaged, or belongs to another run."""
