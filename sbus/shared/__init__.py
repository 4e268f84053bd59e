"""What the processes of a bus share: one segment, the log, the table."""
