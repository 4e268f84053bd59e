"""The address of a bus if none is given."""

import os

SYSTEM_ADDRESS = "/run/sbus.socket"


def runtime_directory() -> str:
    """Where the files of a bus of this user are: `$XDG_RUNTIME_DIR`, or `/run` for root and for a
    user without that directory."""
    own = os.environ.get("XDG_RUNTIME_DIR", "") if os.geteuid() else ""
    return own if os.path.isabs(own) else "/run"


def own_address() -> str:
    """Where a bus of this user listens."""
    return f"{runtime_directory()}/sbus.socket"


def default_address() -> str:
    """The bus that this user's programs connect to: at `$SBUS_ADDRESS`, else the user's own if
    there is one, else that of the system."""
    own = own_address()
    nearest = own if os.path.exists(own) else SYSTEM_ADDRESS
    return os.environ.get("SBUS_ADDRESS") or nearest
