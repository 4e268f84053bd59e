"""A lab that plays sections: whole workers in this process, which work only while somebody waits.

So a barrier is exact, and takes no time: the workers go on until none of them has anything to do.
"""

import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import msgspec

from sbus.broker.admin.statistics import StatisticsCollector
from sbus.broker.ipc.queries import ActivityQuery, ActivityReply
from sbus.broker.ipc.worker_protocol import RunQuery
from sbus.limits import Limits
from sbus.protocol.controls import FloodControl
from sbus.shared.accounts import DROPPED
from sbus.unix.send_buffer import small_buffer_bytes
from tests.fuzz.one_process_bus import CREDENTIALS, OneProcessBus, one_process_bus
from tests.protocol.accounts import check_ledger, difference, different_fields
from tests.protocol.configurations import Configuration
from tests.protocol.events import pause
from tests.protocol.packets import Identity
from tests.protocol.plain_link import PlainLink
from tests.protocol.player import Bus, Link, Tally
from tests.protocol.transcript import Section
from tests.support.flood import filling

_ME = re.compile(r"!/me\b")
_OWN_EVENTS = ("close", "shutdown-read", "shutdown-write", "stop", "continue", "die", "wait")
_reply: msgspec.msgpack.Decoder[ActivityReply] = msgspec.msgpack.Decoder(ActivityReply)


def needs_front(section: Section, configuration: Configuration) -> str:
    """What a section needs besides workers; "" if it can be played in the lab."""
    if "user_connections_max" in section.bus:
        return "the front's refusals"
    row = section.rows[configuration.row]
    if any(map(_ME.search, (*row.values(), *(text for _, text in section.lines)))):
        return "`!/me`"
    for step in section.steps(row, configuration.event):
        words = step.text.split()
        if step.verb == "admin" and words[0] != "clients":
            return f"`admin {words[0]}`"
        if step.verb == "!" and words[1] not in _OWN_EVENTS:
            return f"`! {words[1]}`"
    return ""


class LabLink(PlainLink):
    """A client's connection to a worker of the lab."""

    def __init__(self, bus: OneProcessBus, worker: int, buffer_bytes: int) -> None:
        self.peer = bus.connect(worker, buffer_bytes=buffer_bytes)
        super().__init__(self.peer.sock)
        self._bus = bus
        own = CREDENTIALS
        self.identity = Identity(own.gid, own.uid, own.pid, self.peer.number)

    def send(self, packet: bytes) -> None:
        try:
            self.sock.send(packet, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._bus.settle()
            self.sock.send(packet, socket.MSG_DONTWAIT)

    def receive(self, *, wait: bool = True) -> bytes | None:
        if wait:
            self._bus.settle()
        return super().receive(wait=False)


class LabBus(Bus):
    """One section plays on it."""

    def __init__(
        self, bus: OneProcessBus, limits: Limits, configuration: Configuration, *, is_dot: bool
    ) -> None:
        self.is_dot = is_dot
        self._bus = bus
        self._buffer_bytes = small_buffer_bytes(limits)
        self._workers = configuration.workers
        self._place = configuration.place
        self._counts_anew = False
        nothing = cast(Any, None)
        self._statistics = StatisticsCollector(
            bus.memory, nothing, nothing, nothing, bus.book, nothing
        )
        self._publisher = LabLink(bus, 0, self._buffer_bytes)
        self._connected = [self._publisher.peer.number]
        """The numbers of all clients."""

    # -- clients -------------------------------------------------------------------------------
    def connect(self, number: int) -> Link:
        worker = number % self._workers if self._place == "other" else 0
        link = LabLink(self._bus, worker, self._buffer_bytes)
        self._bus.settle()
        self._connected.append(link.peer.number)
        return link

    def report(self, link: Link) -> dict[str, Any]:
        assert isinstance(link, LabLink)
        query = RunQuery(1, ActivityQuery([link.peer.number]))
        self._bus.tell(link.peer.worker, query)
        self._bus.settle()
        reply = self._bus.replies.pop()
        found = _reply.decode(reply.data)[link.peer.number]
        return msgspec.structs.asdict(found)

    def barrier(self, senders: Sequence[Link]) -> None:
        self._bus.settle()

    def unread_at_rest(self, link: Link) -> int:
        assert isinstance(link, LabLink)
        self._bus.settle()
        return link.unread_bytes()

    def fill(self, link: Link, key: bytes) -> int:
        packets = filling(key)
        for packet in packets:
            self._publisher.send(packet)
        self._bus.settle()
        assert self.report(link)["backlog"] == 0, "more than its socket takes"
        return len(packets)

    # -- what is seen from inside --------------------------------------------------------------
    def admin(self, verb: str, link: Link | None, text: str) -> None:
        assert verb == "clients", f"no request of the lab: {verb}"
        assert link is not None
        different = different_fields(self.report(link), text)
        assert not different, different

    def check(self, refused: Mapping[str, int], tallies: Mapping[int, tuple[Link, Tally]]) -> None:
        traffic = msgspec.structs.asdict(self._statistics.totals()[0])
        different = difference(traffic, Counter(), Counter(refused))
        assert not different, different
        for link, tally in tallies.values():
            check_ledger(self.report(link), tally, False, self._counts_anew)

    def finish(self) -> None:
        self._publisher.close()
        self._bus.settle()
        assert sorted(self._bus.gone) == self._connected, "not all clients are gone"
        left = {kind: use for kind in range(DROPPED) if (use := self._bus.account.use(kind))}
        assert not left, f"their account still has {left}"

    def event(self, name: str, link: Link | None) -> None:
        if name.startswith("wait "):
            pause(int(name.split()[1]))
            self._bus.settle()
            return
        assert isinstance(link, LabLink)
        worker = link.peer.worker
        if name == "stop":
            self._bus.settle()
            self._bus.stopped.add(worker)
        elif name == "continue":
            self._bus.stopped.clear()
            self._bus.settle()
        else:
            assert name == "die", name
            self._counts_anew = True
            if not self._bus.stopped:
                self._bus.settle()
            worker = min(self._bus.stopped, default=worker)
            self._bus.stopped.discard(worker)
            self._bus.replace(worker)
            self._bus.settle()


@contextmanager
def lab_bus(section: Section, configuration: Configuration) -> Iterator[LabBus]:
    """A lab for this section during the block."""
    options = dict(section.bus)
    dialect = options.pop("dialect", "slash")
    choices = {name: options.pop(name) for name in ("soft", "hard", "order") if name in options}
    limits = msgspec.convert(options, Limits, strict=False)
    choice = msgspec.convert(choices, FloodControl)
    with one_process_bus(
        dialect, limits, configuration.workers, choice, step=configuration.step
    ) as bus:
        yield LabBus(bus, limits, configuration, is_dot=dialect == "dot")
