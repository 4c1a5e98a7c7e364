"""From an imported module to machine code: kernels fused, merged, scheduled and lowered."""
