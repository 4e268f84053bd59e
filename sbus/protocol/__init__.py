"""The bus's language: pure functions and values, no input or output."""
