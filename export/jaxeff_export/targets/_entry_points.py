"""The functions of a compiled library that are called from outside, beside ``main``."""

OPERATOR_BY_OPERATOR = "operator_by_operator"
"""What ``main`` computes, interpreted, so that an instrument sees every operator."""
