"""Names of users for people; the bus knows only their ids."""

import pwd
from functools import cache


@cache
def user_name(uid: int) -> str:
    """The user's name, or the id of a user without one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
