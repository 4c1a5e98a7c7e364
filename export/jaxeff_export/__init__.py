"""StableHLO export: from a JAX function to a library for this machine or an ARM board."""
