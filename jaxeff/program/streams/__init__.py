"""Functions of sliding windows that compute what is new alone."""

from jaxeff.program.streams._streaming import StreamError, streaming

__all__ = ["StreamError", "streaming"]
