"""How many files this process may have open.

A bus has a file descriptor for each client, and two in the processes that pass them on; the soft
limit of 1,024 that a login shell hands down is there for the sake of select(2), which nothing here
uses. This module does not know how many descriptors the bus needs.
"""

import resource

_DESCRIPTORS_PER_WATCHED_PROCESS = 4
"""Of so many descriptors one may be for watching a process; the rest are for clients."""
_DESCRIPTORS_FOR_CLIENTS_FIRST = 256
"""Where there are hardly more than these, clients need them more than watching does."""
_WATCHED_PROCESSES_LEAST = 2
_ADMINISTRATORS_MAX = 64
_DESCRIPTORS_PER_ADMINISTRATOR = 128
"""Where there are few descriptors, one of so many may be an administrator's."""


def raise_open_files_limit() -> int:
    """Raise RLIMIT_NOFILE to its hard limit, and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def administrators_max() -> int:
    """How many connections administrators may have; each may take two descriptors for a stream."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(_ADMINISTRATORS_MAX, limit // _DESCRIPTORS_PER_ADMINISTRATOR)


def watched_processes_max() -> int:
    """How many processes of clients a worker may watch: a share that clients cannot use up."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = (limit - _DESCRIPTORS_FOR_CLIENTS_FIRST) // _DESCRIPTORS_PER_WATCHED_PROCESS
    return max(_WATCHED_PROCESSES_LEAST, share)
