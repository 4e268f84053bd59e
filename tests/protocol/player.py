"""Plays a section on a bus, and tests the test: what it did not mention must not have happened.

`Bus` and `Link` are all that a transcript needs of a bus. `any_bus` implements them for an address,
`real_bus` for an sbusd of this tree.

Needs nothing but the standard library.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.protocol.configurations import Configuration
from tests.protocol.packets import (
    Identity,
    Known,
    TranscriptError,
    mismatch,
    shown,
    to_send,
)
from tests.protocol.transcript import STATEMENT, Section, Step

WHOAMI = b"CMSG !/cred/whoami"
DOT_BARRIER = b"transcript.barrier."
"""How the keys begin of the messages that a bus without `whoami` takes for barriers. They match the
patterns for everything, and no transcript mentions them."""
_MESSAGE = re.compile(rb"MSG |CMSG !/from\0")
_LOST = re.compile(rb"CMSG !/lost\0(\d+|\?)")
_REFUSAL = re.compile(
    rb"CMSG !/(?:error\0|join\0[^\0]*\0|receipt\0[^\0]*\0refused |members\0refused )"
    rb"((?!too-many-connections)[a-z-]+) ",
    re.DOTALL,
)
"""The bus counts what it has told of as well, but for connections that it does not admit."""
_SENDER = re.compile(rb"^CMSG !/from\0(\d+ ){5}")
_REQUEST = re.compile(rb"CMSG !/(cred/whoami|sync|publish\0)")
_ENDED = ("close", "shutdown-read", "shutdown-write")


class Link(Protocol):
    """A client's connection. Waits are bounded by the implementation; OSError if it has ended."""

    identity: Identity

    def send(self, packet: bytes) -> None: ...

    def receive(self, *, wait: bool = True) -> bytes | None:
        """The next packet; b"" at the end; None if there is none."""

    def shutdown(self, how: str) -> None:
        """`read`, or `write`."""

    def close(self) -> None: ...


@dataclass
class Tally:
    """What a client should have had, as far as it knows."""

    received: int = 0
    lost: int = 0
    replaced: int = 0
    is_uncertain: bool = False
    """The bus has told it that it does not know how many it lost."""


class Bus(Protocol):
    """The bus of a section. `is_dot` is one whose dialect has no `whoami`."""

    is_dot: bool

    def connect(self, number: int) -> Link:
        """The section's next client, on the worker where the configuration has it."""

    def leave(self, link: Link) -> None:
        """Close the connection at the end of the section."""
        link.close()

    def barrier(self, senders: Sequence[Link]) -> None:
        """What these have sent has taken effect everywhere."""

    def fill(self, link: Link, key: bytes) -> int:
        """Fill the socket of a client that is subscribed to this key; with how many packets."""

    def unread_at_rest(self, link: Link) -> int:
        """What the bus has not read of what this client has sent, in bytes, and leaves there while
        all other clients have their turns; AssertionError if it reads on."""

    def admin(self, verb: str, link: Link | None, text: str) -> None:
        """Do this, or check it: AssertionError if it is otherwise."""

    def event(self, name: str, link: Link | None) -> None: ...

    def check(self, refused: Mapping[str, int], tallies: Mapping[int, tuple[Link, Tally]]) -> None:
        """Its counters and ledgers are these at the end of a section; AssertionError if not."""

    def finish(self) -> None:
        """Nothing is left of a section whose clients have closed their connections."""


@dataclass
class _Client:
    """One of the section's."""

    name: str
    link: Link
    tally: Tally = field(default_factory=Tally)
    filling: bytes = b""
    """How the packets begin that filled its socket."""
    has_ended: bool = False
    last: bytes = b""
    """What it sent last."""

    def next(self) -> bytes | None:
        """The next packet that the section is about; None if there is none for a minute."""
        while True:
            packet = self.link.receive()
            if packet is None or not self.take(packet):
                return packet

    def take(self, packet: bytes) -> bool:
        """Count a packet; whether it is one that filled the socket."""
        self.tally.received += bool(_MESSAGE.match(packet))
        if lost := _LOST.fullmatch(packet):
            self.tally.is_uncertain |= lost[1] == b"?"
            self.tally.lost += int(lost[1]) if lost[1].isdigit() else 0
        message = _SENDER.sub(b"", packet, count=1)
        is_filling = bool(self.filling) and message.startswith(self.filling)
        return is_filling or message.startswith(b"MSG " + DOT_BARRIER)


class Player:
    """Plays one section once."""

    def __init__(self, section: Section, configuration: Configuration, bus: Bus) -> None:
        self._section = section
        row = section.rows[configuration.row]
        self._steps = section.steps(row, configuration.event)
        self._bus = bus
        self._known = Known()
        self._clients: dict[str, _Client] = {}
        self._refused: Counter[str] = Counter()

    def play(self) -> None:
        """AssertionError, with the line, if anything is not as the text says."""
        try:
            for step in self._steps:
                try:
                    self._do(step)
                except (AssertionError, OSError, TranscriptError) as error:
                    raise AssertionError(f"{step}: {error}") from error
            self._check_end()
        finally:
            for client in self._clients.values():
                self._bus.leave(client.link)
        self._bus.finish()

    def _client(self, name: str) -> _Client:
        if name not in self._clients:
            link = self._bus.connect(len(self._clients))
            self._clients[name] = _Client(name, link)
            self._known.clients[name] = link.identity
        return self._clients[name]

    # -- the verbs -----------------------------------------------------------------------------
    def _do(self, step: Step) -> None:
        clients = [self._client(name) for name in step.who]
        if step.verb in (">", ">?", "~>"):
            for client in clients:
                self._send(client, step)
        elif step.verb == "<":
            for client in clients:
                self._expect(client, step)
        elif step.verb == "end":
            for client in clients:
                self._expect_end(client)
        elif step.verb == "full":
            for client in clients:
                self._fill(client)
        elif step.verb == "read":
            for client in clients:
                for _ in range(int(step.text.split()[-1])):
                    packet = client.link.receive()
                    assert packet, "there are not so many"
                    assert client.take(packet), f"received {shown(packet)}"
            self._bus.barrier([])
        elif step.verb == "held":
            for client in clients:
                self._check_held(client)
        elif step.verb == "=":
            self._state(step.text)
        elif step.verb == "admin":
            verb, _, text = step.text.partition(" ")
            self._bus.admin(verb, clients[0].link if clients else None, text)
        else:
            self._happen(step.text.split()[1:], clients)

    def _send(self, client: _Client, step: Step) -> None:
        packet = to_send(list(step.pieces), self._known)
        if step.verb == ">?":
            unknown = "control" if packet.startswith(b"CMSG") else "unsubscription"
            self._refused[f"unknown-{unknown}"] += 1
        client.last = packet
        client.link.send(packet)
        if step.verb != "~>":
            self._bus.barrier([client.link])

    def _expect(self, client: _Client, step: Step) -> None:
        packet = client.next()
        assert packet is not None, f"{client.name} received nothing"
        assert packet, f"the connection of {client.name} ended"
        why = mismatch(list(step.pieces), packet, self._known)
        assert not why, f"{client.name} {why}"
        if refusal := _REFUSAL.match(packet):
            self._refused[refusal[1].decode()] += 1

    def _expect_end(self, client: _Client) -> None:
        packet = client.next()
        assert packet is not None, f"the connection of {client.name} goes on"
        assert not packet, f"{client.name} received {shown(packet)}"
        client.has_ended = True

    def _fill(self, client: _Client) -> None:
        key = b"full/" + client.name.encode()
        for word in (b"SUB ", b"UNSUB "):
            client.link.send(word + key)
            self._bus.barrier([client.link])
            if word == b"SUB ":
                self._bus.fill(client.link, key)
        client.filling = b"MSG " + key + b"\0"

    def _check_held(self, client: _Client) -> None:
        """Its request is not answered, although all others have had their turns. Of a client whose
        socket is full, which could not read the reply, the kernel has the request."""
        assert _REQUEST.match(client.last), "`held` needs a request before it"
        unread = self._bus.unread_at_rest(client.link)
        if client.filling:
            assert unread, "the bus reads on"
        else:
            packet = client.link.receive(wait=False)
            assert packet is None, f"the bus reads on; received {shown(packet or b'')}"

    def _state(self, text: str) -> None:
        """What happens in the section and is told to nobody."""
        for name, what, code, count in STATEMENT.findall(text):
            if name:
                tally = self._client(name).tally
                setattr(tally, what, getattr(tally, what) + int(count))
            else:
                self._refused[code] += int(count)

    def _happen(self, words: list[str], clients: list[_Client]) -> None:
        name = words[0]
        if name in _ENDED:
            for client in clients:
                if name == "close":
                    client.link.close()
                else:
                    client.link.shutdown(name.partition("-")[2])
                client.has_ended = client.has_ended or name != "shutdown-write"
            self._bus.barrier([])
        else:
            link = clients[0].link if clients else None
            self._bus.event(" ".join(words), link)

    # -- the end -------------------------------------------------------------------------------
    def _check_end(self) -> None:
        left = [client for client in self._clients.values() if not client.has_ended]
        self._bus.barrier([client.link for client in left])
        more = [f"{client.name} received {text}" for client in left for text in self._rest(client)]
        assert not more, "not mentioned: " + "; ".join(more)
        tallies = {at: (client.link, client.tally) for at, client in enumerate(left)}
        self._bus.check(self._refused, tallies)

    def _rest(self, client: _Client) -> list[str]:
        """What has come that the section does not mention."""
        rest = self._at_hand(client)
        if self._bus.is_dot or rest:
            return rest
        client.link.send(WHOAMI)
        while not (packet := client.next() or b"").startswith(WHOAMI + b"\0"):
            rest.append(shown(packet) if packet else "no reply to its whoami")
            if not packet:
                break
        return rest

    def _at_hand(self, client: _Client) -> list[str]:
        rest = []
        while (packet := client.link.receive(wait=False)) is not None:
            if not client.take(packet):
                rest.append(shown(packet) or "the end of its connection")
            if not packet:
                break
        return rest
