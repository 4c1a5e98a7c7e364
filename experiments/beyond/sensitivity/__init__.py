"""Cheap measures that might foresee what walking noise finds layer by layer."""
