"""A keyword spotter whose last layer learns on its device: a new word, another speaker."""
