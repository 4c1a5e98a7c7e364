"""Artifacts: functions lowered to StableHLO, and what goes in and out of them written down."""
