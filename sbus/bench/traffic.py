"""Who is on a measured bus: crowds of clients that only wait, and groups of publishers."""

import contextlib
import resource
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sbus.bench import BenchmarkFailed
from sbus.limits import Limits

WINDOW_MESSAGES_MAX = 8_192
WINDOW_MESSAGES_MIN = 32
WARM_UP_FRACTION = 10
PHASE_SECONDS = 60.0
DELIVERIES_PER_SECOND_MIN = 5_000
REPLY_SECONDS_MAX = 60.0
REPLY_BYTES_MAX = 256
SPARE_DESCRIPTORS = 64
DESCRIPTORS_FOR_FRONT_AND_WORKERS = 4
"""Times the number of clients: what any one process of a bus may hold, with room to spare."""


@dataclass(frozen=True, kw_only=True)
class Bystanders:
    """Clients that subscribe and wait: they enlarge the bus and take no part in its traffic.

    Their patterns stand beside the measured keys, `bench/NNNNNNNNNNNN/G` (stream.c), under the
    same first segment, and match none of them: where a pattern has a letter, no key does. With
    `wildcards` each pattern has a segment that ends with `*`, otherwise all are literal.
    """

    clients: int
    patterns_per_client: int
    wildcards: bool

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


NO_BYSTANDERS = Bystanders(clients=0, patterns_per_client=0, wildcards=False)
CROWDS = {
    "20k literal": Bystanders(clients=1_000, patterns_per_client=20, wildcards=False),
    "10k wildcard": Bystanders(clients=10, patterns_per_client=1_000, wildcards=True),
}
"""Beside which round trips are measured."""


def allow_descriptors(count: int) -> None:
    """Let this process, and the server that it starts afterwards, hold that many at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BenchmarkFailed(f"{needed} file descriptors are needed, {hard} allowed: ulimit -n")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def allow_bystanders(crowds: Iterable[Bystanders]) -> None:
    """Let this process, and the servers that it starts afterwards, serve the largest of these."""
    most_clients = max((crowd.clients for crowd in crowds), default=0)
    allow_descriptors(most_clients * DESCRIPTORS_FOR_FRONT_AND_WORKERS)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a group publishes, and who is in it; `fillers` is where idle connections go (see
    client.h)."""

    messages: int
    size_bytes: int
    group: str = "m"
    """A letter: what this group publishes is for its own subscriber."""
    publishers: int = 1
    choices: tuple[str, ...] = ()
    """Control keys that the subscriber sends first."""
    fillers: str = "none"
    window_messages_max: int = WINDOW_MESSAGES_MAX

    @property
    def window_messages(self) -> int:
        """How far publishers may run ahead: half of what a backlog holds, so that none is full."""
        fitting = Limits().backlog_bytes_max // 2 // self.size_bytes
        return max(WINDOW_MESSAGES_MIN, min(self.window_messages_max, fitting))

    @property
    def seconds_max(self) -> float:
        """For all messages to arrive."""
        return PHASE_SECONDS + self.messages / DELIVERIES_PER_SECOND_MIN

    def arguments(self, address: str) -> tuple[object, ...]:
        """Of the C program `stream`."""
        how = (self.publishers, self.size_bytes, self.window_messages, self.fillers)
        return (address, self.group, *how, *self.choices)
