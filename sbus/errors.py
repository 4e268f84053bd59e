"""The error policy.

- A client pays for its own mistakes. After a `Refusal` the packet is ignored, counted and, if the
  client asked for notices, reported. After a `Misbehaviour` the client is disconnected. Both have a
  short stable code for programs and counters, and a text for people; neither affects other clients.
- A mistake in a configuration is a `ConfigurationError`: one line that says what is wrong and what
  to do. Nothing starts, or nothing changes.
- A `BusError` is raised in a client: the bus went away, dropped messages or refused something.
- Anything else that escapes is a bug of this project. It is not caught but contained: it ends the
  worker in which it happened, and that worker is replaced. In the front it ends the request of the
  administrator, or the hand-over, in which it happened; the requester and the log are told.
"""


class SbusError(Exception):
    """The root of every error that this project raises on purpose."""


class ConfigurationError(SbusError):
    """A request or setting is not possible; the text says why and what to do."""


class PackageMissing(ConfigurationError):
    """A command needs a package that comes with an extra of this one."""


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
    """The packet is ignored because its user has reached a limit, by its number in
    `sbus.shared.accounts`; that is reported to the administrator."""

    def __init__(self, code: str, text: str, limit: int) -> None:
        super().__init__(code, text)
        self.limit = limit


class Misbehaviour(ClientFault):
    """The client is told, where that is possible, and disconnected."""


class BusError(SbusError):
    """The root of the errors that the client library raises."""


class Disconnected(BusError):
    """The bus closed the connection; the text contains the reason if the bus gave one."""


class MessagesLost(BusError):
    """The bus dropped messages for this client; `count` is None when it is unknown."""

    def __init__(self, count: int | None) -> None:
        if count is None:
            super().__init__("messages may be lost here: a worker of the bus has died")
        else:
            super().__init__(f"{count} messages were lost here: this client read too slowly")
        self.count = count


class ConnectionInterrupted(MessagesLost):
    """The connection was lost for this `reason`, and is back; messages may be missing."""

    def __init__(self, reason: str) -> None:
        super().__init__(None)
        self.args = (f"the connection was lost and is back; messages may be missing: {reason}",)
        self.reason = reason


class MessagesUnconfirmed(BusError):
    """The connection was lost, and the bus may or may not have processed the last `count` messages
    that this client had published. None of them was published again."""

    def __init__(self, count: int) -> None:
        super().__init__(f"the connection was lost: {count} published messages are unconfirmed")
        self.count = count


class PacketRefused(BusError):
    """The bus refused a packet of this client; `code` is the one that the bus sent."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code
        self.text = text


class NobodyListens(BusError):
    """No client receives the requests under this key, so no answer will come."""


class GroupRefused(BusError):
    """This client cannot be a member of a worker group, as its members do not all see each other,
    or it is none any more."""


class RequestFailed(BusError):
    """The client that answered this request could not do what it asks for; the text is its."""


class PatternWarning(UserWarning):
    """A pattern that can match nothing, or that is written for another system's wildcards."""


class ProtocolViolation(BusError):
    """The peer sent what no bus sends: it is not an sbus, or it is broken."""


def reason_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group that holds only SbusErrors; else the group itself."""
    error: BaseException = group
    if group.split(SbusError)[1] is None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
    return error
