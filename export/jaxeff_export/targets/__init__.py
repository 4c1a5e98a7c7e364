"""Targets: what is compiled for, and the programs that linking and emulating need."""
