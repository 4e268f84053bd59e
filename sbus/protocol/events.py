"""All kinds of events: what happens on a bus and is logged or streamed.

Each kind is a class. Its stable *id* in logs, in streams and in `docs/events.md` is the name of the
class in kebab-case. Programs read its fields, people read its `template`; its `priority` is that of
syslog. Kinds that are `logged` go to the log of the bus; streams of events contain all kinds.

What administrators do and change is in `admin_events`.

Texts that clients choose (keys, names of programs) are short, and escaped as by `text.to_text` or
more strictly.
"""

from collections.abc import Mapping
from typing import Final

import sbus.protocol.admin_events  # noqa: F401 - `KINDS` has its kinds
from sbus.protocol.event import (
    DEBUG,
    ERROR,
    INFO,
    NO_NAMES,
    NOTICE,
    WARNING,
    Client,
    Event,
    LoggedEvent,
    Process,
)


# -- the bus ---------------------------------------------------------------------------------------
class BusReady(LoggedEvent, frozen=True, kw_only=True):
    priority = INFO
    template = "the bus serves at {address} with {workers} workers, version {version}, step: {step}"

    address: str
    workers: int
    version: str
    step: str
    """What does the ordinary step of the workers: "compiled" or "python"."""


class StepNotCompiled(LoggedEvent, frozen=True, kw_only=True):
    priority = WARNING
    template = "the compiled step is not there, so messages cost several times as much: {why}"

    why: str


class BusStopping(LoggedEvent, frozen=True, kw_only=True):
    priority = INFO
    template = "the bus stops; clients connected: {clients}"

    clients: int


class BusHandedOver(LoggedEvent, frozen=True, kw_only=True):
    priority = NOTICE
    template = (
        "process {new_pid} has taken over the bus; clients: {clients}, pause: {milliseconds} ms"
    )

    new_pid: int
    clients: int
    milliseconds: int


class BusTakenOver(LoggedEvent, frozen=True, kw_only=True):
    priority = NOTICE
    template = "took over the bus; clients: {clients}"

    clients: int


class PidfileEmpty(LoggedEvent, frozen=True, kw_only=True):
    priority = WARNING
    template = "the pidfile is empty, because the process id could not be written: {why}"

    why: str


class BusResumed(LoggedEvent, frozen=True, kw_only=True):
    priority = WARNING
    template = (
        "all processes of the bus had ended, and it goes on; clients: {clients}, connections that "
        "ended meanwhile: {lost}"
    )

    clients: int
    lost: int


class BusNotResumed(LoggedEvent, frozen=True, kw_only=True):
    priority = ERROR
    template = "the bus begins anew, and its clients were disconnected: {why}"

    why: str


class FrontDied(LoggedEvent, frozen=True, kw_only=True):
    priority = ERROR
    template = "the front (pid {front_pid}) died, and the bus ends; files left behind: {left}"

    front_pid: int
    left: list[str]
    """What could not be removed: each path, and why."""


class UpgradeRejected(LoggedEvent, frozen=True, kw_only=True):
    priority = ERROR
    template = "no other program has taken over the bus: {why}"

    why: str


class Draining(LoggedEvent, frozen=True, kw_only=True):
    priority = NOTICE
    template = "no more clients are admitted; clients left: {clients}"

    clients: int


class CloserStuck(LoggedEvent, frozen=True, kw_only=True):
    priority = WARNING
    template = "closing what a client of uid {uid} left takes too long, for process {pid}"

    uid: int
    pid: int
    """The closer that waits."""


# -- the workers -----------------------------------------------------------------------------------
class WorkerStarted(LoggedEvent, frozen=True, kw_only=True):
    priority = INFO
    template = "worker {worker} (pid {worker_pid}) serves"

    worker: int
    worker_pid: int


class WorkerDied(LoggedEvent, frozen=True, kw_only=True):
    priority = ERROR
    template = "worker {worker} (pid {worker_pid}) died: {how}"

    worker: int
    worker_pid: int
    how: str
    """`signal N`, or the exit status."""


class WorkerTookOver(LoggedEvent, frozen=True, kw_only=True):
    priority = NOTICE
    template = "worker {worker} serves {clients} clients of its predecessor after {milliseconds} ms"

    worker: int
    clients: int
    milliseconds: int
    """From the end of the predecessor."""


class SuccessionGivenUp(LoggedEvent, frozen=True, kw_only=True):
    priority = ERROR
    template = "worker {worker}: three successors died; its {clients} clients are disconnected"

    worker: int
    clients: int


class WorkerSilent(LoggedEvent, frozen=True, kw_only=True):
    priority = ERROR
    template = "worker {worker} (pid {worker_pid}) shows no sign of life: killed"

    worker: int
    worker_pid: int


class WorkerDelayed(LoggedEvent, frozen=True, kw_only=True):
    priority = ERROR
    template = "worker {worker} cannot be started for now: {why}"

    worker: int
    why: str


class WorkerGivesUp(LoggedEvent, frozen=True, kw_only=True):
    priority = ERROR
    template = "worker {worker} has no descriptors left for its new settings"

    worker: int


class SlowOperation(LoggedEvent, frozen=True, kw_only=True):
    priority = WARNING
    template = "slow operation of {process}: {operation} took {seconds} s, CPU time {cpu_seconds} s"

    process: str
    """`front`, or `worker` and its number."""
    operation: str
    """Its kind, and the name of the command or of the task, if it has one."""
    seconds: float
    cpu_seconds: float


# -- coming and going ------------------------------------------------------------------------------
class AcceptingPaused(LoggedEvent, frozen=True, kw_only=True):
    priority = WARNING
    template = "cannot accept connections for now: {why}"

    why: str


class ConnectionRefused(LoggedEvent, frozen=True, kw_only=True):
    priority = WARNING
    template = "refused connection of uid {uid}, pid {pid} ({program}): {why}"

    who: Process
    code: str
    """One of `CONNECTION_CODES`."""
    why: str


class ClientConnected(Event, frozen=True, kw_only=True):
    priority = INFO
    template = "client {client} of uid {uid}, pid {pid} ({program}) connected to worker {worker}"

    who: Client
    worker: int


class ClientDisconnected(Event, frozen=True, kw_only=True):
    priority = INFO
    template = "client {client} of uid {uid}, pid {pid} ({program}) is gone"

    who: Client
    worker: int
    reason: str
    """"" when it left by itself, otherwise a code or a text."""

    def text(self, user_names: Mapping[int, str] = NO_NAMES) -> str:
        text = super().text(user_names)
        return f"{text}: {self.reason}" if self.reason else text


class ClientMoved(Event, frozen=True, kw_only=True):
    priority = DEBUG
    template = "client {client} of uid {uid}, pid {pid} ({program}) moved from {source} to {worker}"

    who: Client
    source: int
    worker: int


class ClientExpelled(LoggedEvent, frozen=True, kw_only=True):
    priority = WARNING
    template = "client of uid {uid}, pid {pid} disconnected: {code}: {why}"

    who: Client
    code: str
    """One of `PACKET_CODES`."""
    why: str


class ClientKicked(LoggedEvent, frozen=True, kw_only=True):
    priority = NOTICE
    template = "client {client} of uid {uid}, pid {pid} ({program}) kicked: {why}"

    who: Client
    why: str


# -- what clients do -------------------------------------------------------------------------------
class ClientSubscribed(Event, frozen=True, kw_only=True):
    priority = DEBUG
    template = "client {client} of uid {uid}, pid {pid} ({program}) subscribed to '{pattern}'"

    who: Client
    pattern: str


class ClientUnsubscribed(Event, frozen=True, kw_only=True):
    priority = DEBUG
    template = "client {client} of uid {uid}, pid {pid} ({program}) unsubscribed from '{pattern}'"

    who: Client
    pattern: str


class PacketRefused(Event, frozen=True, kw_only=True):
    priority = NOTICE
    template = "a packet of client {client} of uid {uid}, pid {pid} ({program}): {code}: {why}"

    who: Client
    code: str
    """One of `PACKET_CODES`."""
    why: str


class AccessDenied(LoggedEvent, frozen=True, kw_only=True):
    priority = WARNING
    template = "client of uid {uid}, pid {pid} may not {what}: '{key}' (rules[{rule}])"

    who: Client
    what: str
    key: str
    """The key or the pattern."""
    rule: int
    """Which of the access rules decided."""


# -- too much --------------------------------------------------------------------------------------
class MessagesDiscarded(Event, frozen=True, kw_only=True):
    priority = NOTICE
    template = (
        "messages for client {client} of uid {uid}, pid {pid} ({program}) discarded: "
        "{count} ({reasons})"
    )

    who: Client
    count: int
    """Since the last such event of this client."""
    reasons: dict[str, int]
    """The same by reason, see `DROP_REASONS`."""


class ClientStalled(Event, frozen=True, kw_only=True):
    priority = NOTICE
    template = "client {client} of uid {uid}, pid {pid} ({program}) has no room: publishers wait"

    who: Client


class ClientResumed(Event, frozen=True, kw_only=True):
    priority = NOTICE
    template = "client {client} of uid {uid}, pid {pid} ({program}) has room again"

    who: Client


class SendsDelayed(LoggedEvent, frozen=True, kw_only=True):
    priority = WARNING
    template = (
        "messages for clients of uid {uid} are delayed, because sending to them takes too long: "
        "client {client}, pid {pid} ({program})"
    )

    who: Client


class LimitReached(LoggedEvent, frozen=True, kw_only=True):
    priority = WARNING
    template = "uid {uid} {why}: pid {pid} ({program})"

    who: Process
    limit: str
    """The setting's name."""
    why: str


class StreamMissed(Event, frozen=True, kw_only=True):
    priority = NOTICE
    template = "a stream of messages is read too slowly and misses some of worker {worker}"

    worker: int
    """The worker that could not send them."""


KINDS: Final[dict[str, type[Event]]] = {
    kind.id(): kind
    for kind in (*Event.__subclasses__(), *LoggedEvent.__subclasses__())
    if kind is not LoggedEvent
}
"""All kinds, by id."""
