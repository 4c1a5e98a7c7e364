"""A network as a C library: a header, an archive, and nothing that runs beneath them.

Kernels are those of a bundle, compiled to functions of plain pointers (`kernels.py`). What calls
them one after the other (`program.py`) is written in C (`driver.py`), with every array in between
at a place planned in advance (`memory.py`). There is no allocation, no state and no runtime.
"""
