"""The kernel's edges, without policy."""
