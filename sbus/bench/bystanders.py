"""Clients that subscribe and wait: they make the bus large and take no part in its traffic.

Their patterns stand beside the measured keys, `bench/NNNNNNNNNNNN/G` (traffic.h), under the same
first segment, and match none of them: a digit never follows where they have a letter.
"""

import contextlib
import resource
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from sbus.bench.failures import BenchmarkFailed

REPLY_SECONDS_MAX = 60.0
REPLY_BYTES_MAX = 256
SPARE_DESCRIPTORS = 64


@dataclass(frozen=True)
class Bystanders:
    """`wildcards` asks for patterns that end a segment with `*`, else all are literal."""

    clients: int
    patterns_per_client: int
    wildcards: bool

    def patterns(self, client: int) -> list[bytes]:
        """Of one client; no pattern is another's too."""
        first = client * self.patterns_per_client
        numbers = range(first, first + self.patterns_per_client)
        if not self.wildcards:
            return [b"bench/client%05d/p%05d" % (client, number) for number in numbers]
        forms = (b"bench/n%05d*", b"bench/*/n%05d")
        return [forms[number % 2] % number for number in numbers]


@contextlib.contextmanager
def standing_by(address: str, bystanders: Bystanders) -> Iterator[None]:
    """All are connected and subscribed, as their whoami replies show, until the block ends."""
    with contextlib.ExitStack() as stack:
        for client in range(bystanders.clients):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(sock)
            sock.settimeout(REPLY_SECONDS_MAX)
            sock.connect(address)
            for pattern in bystanders.patterns(client):
                sock.send(b"SUB " + pattern)
            sock.send(b"CMSG !/cred/whoami")
            reply = sock.recv(REPLY_BYTES_MAX)
            if not reply.startswith(b"CMSG !/cred/whoami\0"):
                raise BenchmarkFailed(f"a bystander got {reply!r}, not a reply to whoami")
        yield


def allow_descriptors(count: int) -> None:
    """Let this process, and the server it starts afterwards, hold that many at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BenchmarkFailed(f"{needed} file descriptors are needed, {hard} allowed: ulimit -n")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
