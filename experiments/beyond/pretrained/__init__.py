"""Published weights under every transform: a classifier of files, and a language model."""
