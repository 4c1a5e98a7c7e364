"""Bridges between sampling and variational inference."""
