"""A client of a running bus: what it sends, what must come of that, and what came."""

import socket
import struct
from functools import partial

from sbus.protocol.controls import SENDER_BYTES_MAX
from sbus.protocol.keys import Dialect
from tests.fuzz.access_model import AccessModel
from tests.fuzz.client_model import NOTICES_ON, RECEIPT, ClientModel
from tests.fuzz.live_setting import LIMITS
from tests.fuzz.user_process import UserProcess
from tests.history.names import Members
from tests.history.verdicts import Verdict, judge
from tests.support.senders import without_sender

_TIMEOUT = struct.pack("ll", 30, 0)


class LiveClient(ClientModel):
    """A connection of one user to the bus: what must come of it, and what came."""

    def __init__(
        self, process: UserProcess, dialect: Dialect, members: Members, access: AccessModel
    ) -> None:
        super().__init__(dialect, LIMITS, process.ids, members, access)
        self.may_see = partial(access.allows, "subscribe")
        self._to_all = b"sync%ball" % dialect.separator
        self._greeting = b"MSG %b\0hello " % self._to_all
        """What messages begin with by which clients learn their numbers."""
        self.sock = process.connect()
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.sock.setsockopt(socket.SOL_SOCKET, option, _TIMEOUT)
        self.received: list[bytes] = []
        self.is_leaving = False
        if dialect.has_control_messages:
            self.send(NOTICES_ON)
        self.subscribe_more(self._to_all)
        if dialect.has_control_messages:
            self._learn_number()

    def _learn_number(self) -> None:
        """Everybody receives the message for this, and does not count it."""
        own = self._greeting + b"%d of %b" % (self.sock.fileno(), self.own[2])
        for packet in (b"CMSG sender/on", own, b"CMSG sender/off"):
            self.sock.send(packet)
        greeting = b""
        while greeting != own:
            sender, greeting = without_sender(self._receive())
        assert sender is not None
        self.number = sender.client

    def send(self, packet: bytes) -> None:
        self.send_judged(packet, judge(packet, self._dialect, LIMITS))

    def send_judged(self, packet: bytes, verdict: Verdict) -> None:
        self.sock.send(packet)
        self.note(packet, verdict)

    def subscribe_more(self, pattern: bytes) -> None:
        """Subscribe for the harness: this pattern counts as one that was there before."""
        self.send(b"SUB " + pattern)
        self.lasting.add(pattern)

    def _receive(self) -> bytes:
        return self.sock.recv(LIMITS.packet_bytes_max + SENDER_BYTES_MAX)

    def receive(self) -> bytes:
        packet = self._greeting
        while packet.startswith(self._greeting):
            _, packet = without_sender(self._receive())
        self.received.append(packet)
        return packet

    def receive_until(self, last: bytes) -> None:
        while self.receive() != last:
            assert self.received[-1], f"disconnected without reason, told {self._told()}"

    def settle(self) -> None:
        """Wait until the bus has done what the client has asked for, or has let it go."""
        if self.code:
            self.receive_until_closed()
        else:
            number = len(self.told)
            self.send(b"CMSG !/sync\0settled %d" % number)
            self.receive_until(b"CMSG !/sync\0settled %d" % number)
        self.unsettled.clear()

    def receive_receipts(self) -> None:
        """The barrier does not wait for them."""
        missing = sum(map(len, self.receipts.values()))
        missing -= sum(RECEIPT.fullmatch(packet) is not None for packet in self.received)
        while missing > 0:
            missing -= RECEIPT.fullmatch(self.receive()) is not None

    def receive_until_closed(self) -> None:
        while self.receive():
            pass
        self.received.pop()

    def _told(self) -> list[bytes]:
        return self.shown([it for it in self.received if it.startswith(b"CMSG ")])

    def check_told(self) -> None:
        due = self.told if self._dialect.has_control_messages else []
        assert self._told() == due, f"told {self._told()}, not {due}"
