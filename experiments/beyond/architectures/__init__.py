"""Architectures of other libraries, read and traced without computing anything."""
