"""A bus of this protocol at an address, about which nothing else is known.

It is asked in the words of the protocol's core alone. Needs nothing but the standard library.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from tests.protocol.plain_link import PlainLink, connect
from tests.protocol.player import WHOAMI, Bus, Link, Tally
from tests.protocol.transcript import Section

_ROUNDS = 3
_GIVE_NAME_UP = b"CMSG !/leave"
_OWN = ("close", "shutdown-read", "shutdown-write")


def needs_more(section: Section) -> str:
    """What a section needs besides an address; "" if it can be played on any bus."""
    if section.bus:
        return "options of sbusd"
    if "place" in section.run:
        return "a choice of the clients' workers"
    for step in section.steps(section.rows[0], "die"):
        if step.verb in ("full", "read", "held", "admin"):
            return f"`{step.verb}`"
        if step.verb == "!" and step.text.split()[1] not in _OWN:
            return f"`{step.text}`"
    return ""


class AnyBus(Bus):
    """The barrier is a client of its own that asks `whoami`, after the kernel says that what others
    sent has been read."""

    is_dot = False

    def __init__(self, address: str) -> None:
        self._address = address
        self._witness = PlainLink(connect(address))

    def close(self) -> None:
        self._witness.close()

    def connect(self, number: int) -> Link:
        return PlainLink(connect(self._address))

    def leave(self, link: Link) -> None:
        """Give up its name and end the connection; return when others have been told of both."""
        with suppress(OSError):  # it has ended before
            link.send(_GIVE_NAME_UP)
            link.send(WHOAMI)
            while (packet := link.receive()) and not packet.startswith(WHOAMI):
                pass
        with suppress(OSError):
            link.shutdown("write")
            while link.receive():
                pass
        link.close()

    def barrier(self, senders: Sequence[Link]) -> None:
        for link in senders:
            assert isinstance(link, PlainLink)
            link.wait_until_read()
        for _ in range(_ROUNDS):
            self._witness.send(WHOAMI)
            assert self._witness.receive(), "the bus has ended"

    def check(self, refused: Mapping[str, int], tallies: Mapping[int, tuple[Link, Tally]]) -> None:
        """Nobody can look into it."""

    def finish(self) -> None:
        """Nobody can see what is left. A client without its receiving side was not waited for."""
        self.barrier([])

    def fill(self, link: Link, key: bytes) -> int:
        raise NotImplementedError

    def unread_at_rest(self, link: Link) -> int:
        raise NotImplementedError

    def admin(self, verb: str, link: Link | None, text: str) -> None:
        raise NotImplementedError

    def event(self, name: str, link: Link | None) -> None:
        raise NotImplementedError
