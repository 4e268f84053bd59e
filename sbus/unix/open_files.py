"""How many files this process may have open.

A bus has one file descriptor for each client, and two where it passes them on. The usual soft limit
of 1,024 exists for select(2), which the daemon does not use.
"""

import resource

_DESCRIPTORS_PER_WATCHED_PROCESS = 4
"""One of four descriptors may watch a process; the others are for clients."""
_DESCRIPTORS_FOR_CLIENTS_FIRST = 256
"""So many descriptors are for clients before any is for watching."""
_WATCHED_PROCESSES_LEAST = 4
_ADMINISTRATORS_MAX = 64
_DESCRIPTORS_PER_ADMINISTRATOR = 128
"""One of 128 descriptors may be for an administrator."""


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
    """How many processes of clients a worker may watch: a share that no client can use up."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = (limit - _DESCRIPTORS_FOR_CLIENTS_FIRST) // _DESCRIPTORS_PER_WATCHED_PROCESS
    return max(_WATCHED_PROCESSES_LEAST, share)
