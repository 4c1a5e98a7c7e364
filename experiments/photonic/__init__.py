"""Chaotic light, and a network whose randomness it is."""
