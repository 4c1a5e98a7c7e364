"""How sure a language model is of every token."""
