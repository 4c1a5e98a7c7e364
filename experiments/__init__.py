"""Studies that reproduce and extend Klein's thesis; README.md says how to run and to add one."""
