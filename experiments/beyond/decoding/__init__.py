"""Matrix products of few rows, and what decoders make of them."""
