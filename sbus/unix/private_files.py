"""Files that only their user may read, unless the umask lets the group read them, too."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

_OTHERS = 0o007
_GROUP_AND_OTHERS = 0o077


def keep_new_files_private() -> None:
    """Make the files and directories that this process makes from now on readable for its user
    only, or also for its group if the inherited umask keeps all others out.

    The usual umask, 022, lets everybody read. One that keeps others out was chosen, so what it
    leaves to the group is meant for it.
    """
    umask = os.umask(_GROUP_AND_OTHERS)
    if umask & _OTHERS == _OTHERS:
        os.umask(umask)


def cache_path(environment: Mapping[str, str], kind: str, *made_from: object) -> Path:
    """A path in the user's cache directory for what is made from these. The directory is made if
    need be. Raises OSError, and RuntimeError for a user without a home."""
    found = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sbus")
    found.mkdir(parents=True, exist_ok=True, mode=0o700)
    return found / f"{kind}-{hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]}"
