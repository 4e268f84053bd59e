"""Results of the admin protocol as lines of text."""
