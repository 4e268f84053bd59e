"""The configuration of a bus: its settings, its configuration file and its access rules."""
