"""What can go wrong, and who pays for it.

The policy, once, in prose:

- What a client sends wrong is its own problem. `Refusal` costs it that one packet: the packet is
  ignored, counted and, where the client asked for notices, reported. `Misbehaviour` costs it the
  connection. Both carry a short stable code for programs and counters, and a text for people;
  neither ever reaches another client.
- What an administrator or a user configures wrong is a `ConfigurationError`: one line that names
  what was wrong and what to do. Nothing starts, or nothing changes.
- What happens to a client of the bus through no fault of its own is a `BusError`: the bus went
  away, messages were lost, the bus refused something.
- Anything else that escapes is a bug of this project and is not caught, only contained: it ends the
  worker that it happened in, which is replaced.

This module knows nothing of sockets or of how an error is shown.
"""


class SbusError(Exception):
    """Root of every error this project raises on purpose."""


class ConfigurationError(SbusError):
    """Something asked for cannot be; the text says what and what to do about it."""


class AddressError(ConfigurationError):
    """An address cannot be understood, bound or connected to."""


class ClientFault(SbusError):
    """A packet that the bus does not accept; `code` is stable, `text` is for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class Refusal(ClientFault):
    """The packet is ignored; the client stays."""


class QuotaReached(Refusal):
    """The packet is ignored because its user has as much as it may have: of `limit`, the number
    that accounts give it. That is reported to the administrator."""

    def __init__(self, code: str, text: str, limit: int) -> None:
        super().__init__(code, text)
        self.limit = limit


class Misbehaviour(ClientFault):
    """The client is told, where that is possible, and disconnected."""


class BusError(SbusError):
    """Seen by users of the client library."""


class Disconnected(BusError):
    """The bus closed the connection; the text carries its last word, if it had one."""


class MessagesLost(BusError):
    """The bus dropped messages for this client; `count` is None when it cannot be known."""

    def __init__(self, count: int | None) -> None:
        shown = "an unknown number of" if count is None else str(count)
        super().__init__(f"{shown} messages were lost here: this client read too slowly")
        self.count = count


class PacketRefused(BusError):
    """The bus refused a packet of this client's; `code` as the bus gave it."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code
        self.text = text


class ProtocolViolation(BusError):
    """The bus sent what no bus sends: the peer is not an sbus, or is broken."""
