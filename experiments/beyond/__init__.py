"""Studies that hold ours against nothing that the source shows; README.md says what goes here."""
