"""Which subscribers a key goes to: pure data structures, no input or output."""
