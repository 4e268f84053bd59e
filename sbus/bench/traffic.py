"""Who is on a measured bus besides those that are measured: crowds of clients that only wait."""

import contextlib
import resource
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from sbus.bench import BenchmarkFailed

REPLY_SECONDS_MAX = 60.0
REPLY_BYTES_MAX = 256
SPARE_DESCRIPTORS = 64
DESCRIPTORS_FOR_FRONT_AND_WORKERS = 4
"""Times the number of clients: what any one process of a bus may hold, with room to spare."""


@dataclass(frozen=True, kw_only=True)
class Bystanders:
    """Clients that subscribe and wait: they enlarge the bus and take no part in its traffic.

    Their patterns stand beside the measured key, `bench/peers`, under the same first segment, and
    do not match it. With `wildcards` each pattern has a segment that ends with `*`, otherwise all
    are literal.
    """

    clients: int
    patterns_per_client: int = 0
    wildcards: bool = False

    def patterns(self, client: int) -> list[bytes]:
        """Of one client; all patterns are different."""
        first = client * self.patterns_per_client
        numbers = range(first, first + self.patterns_per_client)
        if not self.wildcards:
            return [b"bench/client%05d/p%05d" % (client, number) for number in numbers]
        forms = (b"bench/n%05d*", b"bench/*/n%05d")
        return [forms[number % 2] % number for number in numbers]

    @contextlib.contextmanager
    def connected(self, address: str) -> Iterator[None]:
        """All are subscribed, as their whoami replies show, until the block ends."""
        with contextlib.ExitStack() as stack:
            for client in range(self.clients):
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                stack.enter_context(sock)
                sock.settimeout(REPLY_SECONDS_MAX)
                sock.connect(address)
                for pattern in self.patterns(client):
                    sock.send(b"SUB " + pattern)
                sock.send(b"CMSG !/cred/whoami")
                reply = sock.recv(REPLY_BYTES_MAX)
                if not reply.startswith(b"CMSG !/cred/whoami\0"):
                    raise BenchmarkFailed(f"a bystander got {reply!r}, not a reply to whoami")
            yield


def allow_descriptors(count: int) -> None:
    """Let this process, and the server that it starts afterwards, hold that many at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BenchmarkFailed(f"{needed} file descriptors are needed, {hard} allowed: ulimit -n")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
