"""Studies that reproduce and extend the source; README.md says how to run and to add one."""
