"""What every transform makes of a model, as hashes: whether a change of code changed a program.

Transforms map programs to programs, so a change that only moves or renames code must leave each
program as it is, to the last equation and number. `python -m tests.golden` reads every network of
the laws and of the zoo through every transform (tracing only: nothing is compiled or run but what
a plan or a converter computes), and names what differs from the hashes that are kept.
"""
