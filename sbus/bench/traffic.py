"""Measuring CPU time per delivered message: the traffic, one measurement, and repetitions.

The CPU time of every process of the server is read at two moments when nothing is under way: after
set-up and a warm-up, and when every subscriber has every message.
"""

import contextlib
import resource
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sbus.bench import BenchmarkFailed, proc
from sbus.bench.servers import RunSettings, Server, Start
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

    Their patterns stand beside the measured keys, `bench/NNNNNNNNNNNN/G` (traffic.h), under the
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
    """What is sent, and who is there; `fillers` is where idle connections go (see client.h)."""

    messages: int
    size_bytes: int
    group: str = "m"
    """A letter: what this group publishes is for its own subscribers."""
    publishers: int = 1
    subscribers: int = 1
    choices: tuple[str, ...] = ()
    """Control keys that every subscriber sends first."""
    keys: int = 16
    """Different keys in turn; 0: a new one in each message."""
    fillers: str = "none"
    window_messages_max: int = WINDOW_MESSAGES_MAX
    bystanders: Bystanders = NO_BYSTANDERS

    @property
    def window_messages(self) -> int:
        """How far publishers may run ahead: half of what a backlog holds, so that none is full."""
        fitting = Limits().backlog_bytes_max // 2 // self.size_bytes
        return max(WINDOW_MESSAGES_MIN, min(self.window_messages_max, fitting))

    @property
    def seconds_max(self) -> float:
        """For all messages to arrive."""
        return PHASE_SECONDS + self.messages * self.subscribers / DELIVERIES_PER_SECOND_MIN

    def arguments(self, address: str) -> tuple[object, ...]:
        """Of the C program `stream`."""
        counts = (self.publishers, self.subscribers, self.size_bytes, self.keys)
        return (address, self.group, *counts, self.window_messages, self.fillers, *self.choices)


@dataclass(frozen=True)
class Sample:
    """One measurement; `waits` counts how often the window held the publisher back."""

    deliveries: int
    wall_ns: int
    waits: int
    cpu_ns: tuple[int, ...]
    """Of each process of the server, the front first."""

    @property
    def cpu_us_per_delivery(self) -> float:
        return sum(self.cpu_ns) / self.deliveries / 1_000

    @property
    def deliveries_per_second(self) -> float:
        return self.deliveries * 1e9 / self.wall_ns

    @property
    def busy_percent(self) -> float:
        """CPU time per elapsed time: well below 100, the load did not keep the server busy."""
        return sum(self.cpu_ns) / self.wall_ns * 100


def measure(run: RunSettings, server: Server, traffic: Traffic) -> Sample:
    """Warm up, then measure once; raises BenchmarkFailed when a message is lost or altered."""
    seconds = traffic.seconds_max
    with (
        run.load("stream", *traffic.arguments(server.address)) as load,
        traffic.bystanders.connected(server.address),
    ):
        load.ask(f"go {max(1, traffic.messages // WARM_UP_FRACTION)}", "done", seconds)
        pids = server.pids()
        before = proc.run_times_ns(pids)
        done = load.ask(f"go {traffic.messages}", "done", seconds)
        after = proc.run_times_ns(pids)
    expected = traffic.messages * traffic.subscribers
    if done["deliveries"] != expected:
        raise BenchmarkFailed(f"{done['deliveries']} deliveries instead of {expected}")
    cpu_ns = tuple(after[pid] - before[pid] for pid in pids)
    return Sample(done["deliveries"], done["wall_ns"], done["waits"], cpu_ns)


@dataclass(frozen=True)
class Case:
    """One line of a benchmark: a server and the traffic through it."""

    start: Start
    traffic: Traffic
    reference: str = ""
    """The case that this one is compared with, if any."""


def measure_in_turn(run: RunSettings, cases: Mapping[str, Case]) -> Mapping[str, Sequence[Sample]]:
    """Each measurement has a server of its own. The n-th samples of two cases are a pair."""
    samples: dict[str, list[Sample]] = {name: [] for name in cases}
    for label, name, case in run.rounds(cases):
        with case.start() as server:
            sample = measure(run, server, case.traffic)
        samples[name].append(sample)
        run.progress(
            f"{label}: {sample.cpu_us_per_delivery:.2f} µs, {sample.deliveries_per_second:,.0f}/s"
        )
    return samples
