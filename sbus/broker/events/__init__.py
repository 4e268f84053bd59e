"""Events of one process: where they are logged, and who is shown them."""
