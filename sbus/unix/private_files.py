"""Files that nobody else may read unless the user wants that."""

import os

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
