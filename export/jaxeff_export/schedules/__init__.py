"""Recorded schedules: the folder that keeps them, and their use when a bundle is built.

They are found by `jaxeff_export.tuning`.
"""
