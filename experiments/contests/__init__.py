"""Engines that studies time against each other: what is the same in all of their contests."""
