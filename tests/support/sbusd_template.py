"""A process that has imported what a bus needs, and forks buses: `python -m` this file FD.

A packet on the descriptor FD is JSON. It is either what `ForkedSbusd` asks for, a new bus with its
arguments, environment and working directory, beside the descriptors of its standard output and
error and those that a service manager passes it, and is answered with the pid; or it is the pid of
one that has ended, and is answered with its exit status, negative for a signal. This process has
one thread, so forking is sound.
"""

import fcntl
import gc
import json
import os
import socket
import sys
from collections.abc import Callable

import sbus.broker.bus
import sbus.cli.sbusd.rights  # noqa: F401
from sbus.cli.sbusd.command import main as sbusd

PACKET_BYTES_MAX = 100_000
DESCRIPTORS_MAX = 253
"""As many as a packet has room for. Source: unix(7)."""


def serve(link: socket.socket, main: Callable[[], object]) -> None:
    """Fork processes that run `main`."""
    while True:
        packet, descriptors, _, _ = socket.recv_fds(link, PACKET_BYTES_MAX, DESCRIPTORS_MAX)
        if not packet:
            return
        asked = json.loads(packet)
        if isinstance(asked, int):
            _, status = os.waitpid(asked, 0)
            answer = os.waitstatus_to_exitcode(status)
        elif (answer := os.fork()) == 0:
            link.close()
            become(descriptors, **asked)
            main()
            sys.exit()
        for descriptor in descriptors:
            os.close(descriptor)
        link.send(b"%d" % answer)


def become(
    descriptors: list[int],
    program: list[str],
    arguments: list[str],
    environment: dict[str, str],
    directory: str,
) -> None:
    """Make it as if this process had been started for this program."""
    os.chdir(directory)
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 1_000) for descriptor in descriptors]
    for number, descriptor in enumerate(high, start=1):
        os.dup2(descriptor, number)
    os.closerange(1 + len(high), 1_000 + len(high))
    os.environ.clear()
    os.environ.update(environment)
    if len(high) > 2:
        os.environ["LISTEN_PID"] = str(os.getpid())
    sys.orig_argv[1:] = [*program, *arguments]
    sys.argv[1:] = arguments


if __name__ == "__main__":
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])), sbusd)
