"""Models as people bring them, and every transform of each."""
