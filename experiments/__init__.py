"""Studies and training scripts; each is a module run as ``python -m experiments.<name>``."""
