"""From recordings to a board: a keyword spotter, all the way."""
