"""What administrators and users may ask the bus, and who answers."""
