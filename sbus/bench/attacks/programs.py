"""The attacks, by name: what each does, with how many users, and the options of its bus.

A program is one process of one user. It yields False after each piece of its preparation, and True
after each step of its attack, for ever.
"""

import contextlib
import ctypes
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, cycle, repeat

from sbus.bench.attacks.connections import NOTICES, WAIT_SECONDS, WHOAMI, Connections
from sbus.bench.attacks.interrupted_waits import interrupt_waits
from sbus.bench.attacks.victims import KEY

Program = Callable[[Connections], Iterator[bool]]
Visit = Callable[[Connections, socket.socket], None]
Packets = Callable[[int], Iterator[bytes] | None]
"""What a client sends, by its number; None: nothing."""

TURN_PACKETS = 32
VISITS_AT_ONCE = 32
LINGER_SECONDS = 3_600
LINGERING_MAX = 128
SMALL, LARGE = bytes(100), bytes(400_000)
RING = 10
BOMBERS = 8
MEMBERS = 300
PASSIVE = 500
MANY = 800
SORTERS = 10
FILTERED = 200
SO_ATTACH_FILTER = 26
LOAD, LOAD_INDEX, LOAD_MESSAGE, RETURN = 0x00, 0x01, 0x20, 0x06
"""Instructions of classic BPF, the third of which reads the packet, or calls a function."""
FIND_ATTRIBUTE = 0xFFFFF00C
"""The function that looks for an attribute of netlink: it walks the packet to its end."""
INSTRUCTIONS_MAX = 4_096
ATTRIBUTES = struct.pack("=HH", 4, 0) * 250
"""None of them is the one that is looked for."""
NAMED, MANY_NAMED = 20, 300
LONGEST_WILL = b"a\0" + bytes(4_094)
WATCH_NAMES, LEAVE, ASK_WHO = b"SUB !/presence/*/*", b"CMSG !/leave", b"CMSG !/members\0*/*"
PASSIVE_CHOICES = [b"CMSG blocking/soft/%b" % soft for soft in (b"discard", b"queue", b"block")]
CHOICES = (
    *(b"CMSG blocking/soft/discard", b"CMSG order/stack", b"CMSG blocking/soft/queue"),
    *(b"CMSG order/random", b"CMSG blocking/soft/block", b"CMSG order/queue"),
    *(b"CMSG blocking/soft/queue", b"CMSG blocking/hard/block", b"CMSG blocking/hard/discard"),
)


def bombs(side: int) -> tuple[bytes, list[bytes]]:
    """A key, and `side` times `side` patterns that all match each key that begins so."""
    key = b"%b/%b/" % (b"x" * side, b"x" * side)
    sides = [b"x" * length for length in range(side)]
    return key, [b"%b*/%b*/" % (left, right) for left in sides for right in sides]


BOMB, BOMB_PATTERNS = bombs(155)
MEMBER_KEY, MEMBER_PATTERNS = bombs(11)
"""So few that `user_match_steps_max` allows them."""


def message(key: bytes, payload: bytes = SMALL) -> bytes:
    return b"MSG %b\0%b" % (key, payload)


def join(number: int, will: bytes = b"") -> bytes:
    """Take a name, which no other client of the attack has."""
    return b"\0".join([b"CMSG !/join", b"n%d" % number, *([will] if will else [])])


# -- kinds of programs -----------------------------------------------------------------------------
def crowd(
    size: int,
    packets: Packets,
    opening: Callable[[int], Sequence[bytes]] = lambda number: (),
    is_reading: bool = True,
    prepare: Callable[[socket.socket], None] = lambda sock: None,
) -> Program:
    """Clients that stay. Each, by its number, sends its opening, is prepared, and then sends its
    packets, as fast as they are taken."""

    def attack(bus: Connections) -> Iterator[bool]:
        poll = select.poll()
        clients = {}
        for number in range(size):
            sock, own = bus.admitted(opening(number)), packets(number)
            prepare(sock)
            clients[sock.fileno()] = sock, None if own is None else turns(bus, sock, own)
            waits_for = (select.POLLIN * is_reading) | (select.POLLOUT * (own is not None))
            poll.register(sock, waits_for)
            yield False
        while True:
            for fd, events in poll.poll(WAIT_SECONDS * 1_000):
                sock, sending = clients[fd]
                if events & ~select.POLLOUT:
                    bus.receive(sock)
                if events & select.POLLOUT and sending:
                    next(sending)
            yield True

    return attack


def turns(bus: Connections, sock: socket.socket, packets: Iterator[bytes]) -> Iterator[None]:
    """Each turn sends what the socket takes, and not too much."""
    for number, packet in enumerate(packets, 1):
        while not bus.send(sock, packet, socket.MSG_DONTWAIT):
            yield
        if number % TURN_PACKETS == 0:
            yield


def storm(visit: Visit, staying: int = 0) -> Program:
    """Clients that come and go, beside some that stay."""

    def attack(bus: Connections) -> Iterator[bool]:
        for _ in range(staying):
            bus.admitted()
            yield False
        visitors: deque[socket.socket] = deque()
        while True:
            with contextlib.suppress(BlockingIOError):
                visitors.append(bus.connect())
                with contextlib.suppress(ConnectionError):
                    visit(bus, visitors[-1])
            if len(visitors) > VISITS_AT_ONCE:
                bus.close(visitors.popleft())
            yield True

    return attack


def sending(*packets: bytes) -> Visit:
    def visit(bus: Connections, sock: socket.socket) -> None:
        for packet in packets:
            bus.send(sock, packet)

    return visit


def hearing(visit: Visit, every: int) -> Visit:
    """The same visit; one of so many visitors waits for what the bus says."""
    numbers = count()

    def hear(bus: Connections, sock: socket.socket) -> None:
        visit(bus, sock)
        if next(numbers) % every == 0:
            bus.wait_for_packet(sock)

    return hear


def publishing(packet: bytes, publishers: int, listeners: int, is_reading: bool = True) -> Program:
    """One message again and again, to a number of subscribers."""
    return crowd(
        listeners + publishers,
        lambda number: None if number < listeners else repeat(packet),
        lambda number: [b"SUB a"] if number < listeners else (),
        is_reading,
    )


def numbered(key: bytes) -> Iterator[bytes]:
    """Messages of which each has another key."""
    return (message(b"%b%d" % (key, number)) for number in count())


def changing(patterns: Sequence[bytes]) -> Callable[[int], Iterator[bytes]]:
    """Subscribe to all of these, undo all of that, and so on."""
    changes = [word + pattern for word in (b"SUB ", b"UNSUB ") for pattern in patterns]
    return lambda number: cycle(changes)


# -- programs of their own -------------------------------------------------------------------------
def bomb_patterns(number: int) -> list[bytes]:
    """The share of one bomber."""
    return [b"SUB " + pattern for pattern in BOMB_PATTERNS[number::BOMBERS]]


def member_patterns(number: int) -> list[bytes]:
    """Those of each of many clients: the same."""
    return [b"CMSG blocking/soft/discard", *(b"SUB " + pattern for pattern in MEMBER_PATTERNS)]


def flushing(size: int, opening: Callable[[int], Sequence[bytes]], key: bytes) -> Program:
    """Clients make keys that begin with this one dear to match. Publish such keys, and then cheap
    ones, which makes the window wide. Have the other workers forget their routes, and publish the
    dear ones again."""
    dear = [message(b"%b%d" % (key, number)) for number in range(400)]
    change = [b"SUB */*/", b"UNSUB */*/", WHOAMI]

    def attack(bus: Connections) -> Iterator[bool]:
        for number in range(size):
            bus.admitted([*opening(number), *([b"SUB cheap"] if number < BOMBERS else [])])
            yield False
        publisher, *others = [bus.admitted() for _ in range(4)]
        while True:
            for packets in (dear, [message(b"cheap")] * 5_000):
                bus.tell(publisher, packets)
                yield True
            for other in others:
                bus.tell(other, change)
            bus.tell(publisher, dear)
            yield True

    return attack


def sort_backlogs(bus: Connections) -> Iterator[bool]:
    """Fill the backlogs of clients, and have all of them sorted while their clients read a little
    and leave the order again."""
    sorters = []
    for _ in range(SORTERS):
        sorters.append(bus.admitted([b"SUB a"]))
        yield False
    publisher = bus.admitted()
    while True:
        bus.tell(publisher, [message(b"a", b"")] * 1_000)
        yield True
        for choice in (b"CMSG order/random", b"CMSG order/stack"):
            for sorter in sorters:
                bus.tell(sorter, [choice])
                yield True


def linger(bus: Connections) -> Iterator[bool]:
    """Send descriptors that take an hour to close: ahead of a packet that ends the connection,
    and behind it."""
    peers: deque[socket.socket] = deque(maxlen=LINGERING_MAX)

    def visit(bus: Connections, sock: socket.socket) -> None:
        for packet in (message(b"a"), b"garbage", message(b"a")):
            lingering, peer = lingering_pair()
            peers.append(peer)
            try:
                socket.send_fds(sock, [packet], [lingering.fileno()])
                bus.counts["descriptors_sent"] += 1
            except PermissionError:
                bus.counts["descriptors_refused"] += 1
            finally:
                with interrupt_waits():
                    lingering.close()

    yield from storm(visit)(bus)


def lingering_pair() -> tuple[socket.socket, socket.socket]:
    """A TCP socket with unsent data that lingers for an hour while the other one is open."""
    lingering = socket.socket()
    with socket.create_server(("127.0.0.1", 0)) as server:
        lingering.connect(server.getsockname())
        peer, _ = server.accept()
    lingering.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            lingering.send(LARGE)
    lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_SECONDS))
    return lingering, peer


def attach_filter(sock: socket.socket) -> None:
    """Have the kernel walk every `slow_message` to this socket two thousand times, in `send`. For
    any other message that takes some 16 us."""
    offset = len(slow_message()) - len(ATTRIBUTES)
    find = [(LOAD, offset), (LOAD_MESSAGE, FIND_ATTRIBUTE)]
    times = INSTRUCTIONS_MAX // 2 - 1
    program = [(LOAD_INDEX, 1), *find * times, (RETURN, 0xFFFFFFFF)]
    code = b"".join(struct.pack("=HBBI", name, 0, 0, value) for name, value in program)
    buffer = ctypes.create_string_buffer(code)
    descriptor = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, descriptor)


def slow_message() -> bytes:
    return message(b"a", ATTRIBUTES)


def send_slowly(bus: Connections) -> Iterator[bool]:
    """Clients whose filters make every `send` to them take milliseconds, and that read."""
    filtered = []
    for _ in range(FILTERED):
        filtered.append(bus.admitted([b"SUB a", b"SUB " + KEY]))
        attach_filter(filtered[-1])
        yield False
    publisher = bus.admitted()
    while True:
        bus.tell(publisher, [slow_message()])
        for sock in filtered:
            bus.receive(sock)
        yield True


def leave_wills(bus: Connections) -> Iterator[bool]:
    """Clients come, watch names, take one, and go without a word but their wills."""
    numbers = count()

    def visit(bus: Connections, sock: socket.socket) -> None:
        for packet in (WATCH_NAMES, b"SUB a", join(next(numbers), LONGEST_WILL)):
            bus.send(sock, packet)

    yield from storm(visit)(bus)


# -- all of them -----------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Attack:
    """One row of the table."""

    program: Program
    users: int = 1
    options: tuple[str, ...] = ()
    """Of the bus that is attacked."""


FEW_CONNECTIONS = ("--limit", "user_connections_max=40")

ATTACKS = {
    "flood": Attack(program=publishing(message(b"a"), 190, listeners=10)),
    "large": Attack(program=publishing(message(b"a", LARGE), 4, listeners=4)),
    "new-keys": Attack(program=crowd(10, lambda number: numbered(b"a/" * 120))),
    "fan-out": Attack(program=publishing(message(b"a"), 1, listeners=500, is_reading=False)),
    "passive-subscribers": Attack(
        program=crowd(
            PASSIVE,
            lambda number: None,
            lambda number: [PASSIVE_CHOICES[number % len(PASSIVE_CHOICES)], b"SUB " + KEY],
            is_reading=False,
        )
    ),
    "many-subscribers": Attack(
        program=crowd(
            MANY, lambda number: None, lambda number: [b"SUB " + KEY], prepare=attach_filter
        )
    ),
    "order-random": Attack(program=sort_backlogs),
    "slow-send": Attack(program=send_slowly),
    "connect": Attack(program=storm(sending())),
    "connect-use": Attack(program=storm(sending(b"SUB a", message(b"a"), WHOAMI))),
    "connect-refused": Attack(
        program=storm(hearing(sending(), every=100), staying=40), options=FEW_CONNECTIONS
    ),
    "connect-garbage": Attack(
        program=storm(hearing(sending(NOTICES, *[message(b"a")] * 60, b"garbage"), every=100))
    ),
    "wills": Attack(program=leave_wills),
    "names": Attack(
        program=crowd(
            NAMED,
            lambda number: cycle([join(number, LONGEST_WILL), LEAVE]),
            lambda number: [WATCH_NAMES],
        )
    ),
    "members": Attack(
        program=crowd(
            MANY_NAMED,
            lambda number: repeat(ASK_WHO) if number < NAMED else None,
            lambda number: [join(number)],
        )
    ),
    "subscriptions": Attack(program=crowd(4, changing([b"a/%d/*" % at for at in range(10_000)]))),
    "compaction": Attack(program=crowd(4, changing([b"%04000d" % at for at in range(100)]))),
    "me": Attack(program=crowd(20, lambda number: repeat(b"CMSG !/me"))),
    "whoami": Attack(program=crowd(20, lambda number: repeat(WHOAMI))),
    "patterns": Attack(
        program=crowd(
            BOMBERS + 1,
            lambda number: None if number < BOMBERS else numbered(BOMB),
            lambda number: bomb_patterns(number) if number < BOMBERS else (),
        )
    ),
    "cache-flush": Attack(program=flushing(BOMBERS, bomb_patterns, BOMB)),
    "member-bomb": Attack(program=flushing(MEMBERS, member_patterns, MEMBER_KEY)),
    "descriptors": Attack(program=linger, users=3, options=FEW_CONNECTIONS),
    "disconnect-descriptors": Attack(
        program=linger, users=3, options=(*FEW_CONNECTIONS, "--disconnect-descriptors")
    ),
    "policies": Attack(
        program=crowd(
            20,
            lambda number: cycle(p for choice in CHOICES for p in (message(b"a"), choice)),
            lambda number: [b"SUB a"],
            is_reading=False,
        )
    ),
    "block-cycle": Attack(
        program=crowd(
            RING,
            lambda number: repeat(message(b"ring/%d" % ((number + 1) % RING))),
            lambda number: [b"CMSG blocking/soft/block", b"SUB ring/%d" % number],
            is_reading=False,
        )
    ),
}
