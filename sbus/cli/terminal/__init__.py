"""How commands print results and errors, and how they end."""
