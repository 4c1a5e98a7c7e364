"""Random small networks through transforms and files, against oracles."""
