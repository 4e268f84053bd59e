"""What a bus is told to do: its settings, its configuration file and its access rules."""
