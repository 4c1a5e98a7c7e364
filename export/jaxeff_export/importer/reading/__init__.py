"""From any accepted source to a legal StableHLO module: guards, parsing, expansions."""
