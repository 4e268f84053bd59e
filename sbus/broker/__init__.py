"""The broker: a front, workers, and what is between them."""
