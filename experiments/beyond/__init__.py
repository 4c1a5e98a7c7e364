"""Studies of what the thesis doesn't show; README.md says what goes here."""
