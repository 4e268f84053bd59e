"""`sbusctl top`: the busiest clients, users, workers and keys."""
