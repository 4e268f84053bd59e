"""What a client has chosen in tests of what keeps it."""

CHOICES = (b"echo/off", b"!/notices/on", b"blocking/soft/discard", b"order/stack", b"age/86400000")
"""Each unlike the default."""
