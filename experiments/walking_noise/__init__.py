"""Walking noise: what noise networks tolerate, layer by layer, and how they learn to."""
