"""What goes wrong with a file that was kept."""


class CheckpointError(ValueError):
    """What was kept on disk is damaged, or belongs to something else."""
