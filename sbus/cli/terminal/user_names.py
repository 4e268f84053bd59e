"""Users as people know them: the bus knows numbers only.

This module asks the host's databases, once for each user, and nobody else.
"""

import pwd
from functools import cache


@cache
def user_name(uid: int) -> str:
    """The user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
