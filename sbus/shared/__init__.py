"""What the processes of a bus share: the memory, the log, the table."""
