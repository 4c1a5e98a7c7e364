"""The functions of a compiled library that are called from outside, beside ``main``."""

OPERATOR_BY_OPERATOR = "operator_by_operator"
"""The same as ``main``, interpreted, so that an instrument sees every operator."""
