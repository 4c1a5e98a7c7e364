"""What `jaxeff.search` is told of a candidate: measured, looked up by layer, or modelled."""
