"""What a user waits for: reading, compiling, converting, and checking."""
