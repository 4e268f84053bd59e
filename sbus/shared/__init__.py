"""What the processes of a bus share: the memory with its lock, and what is kept in it."""
