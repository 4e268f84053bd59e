"""What the front and a worker say to each other: commands one way, events the other way.

A descriptor travels with each command in `WITH_DESCRIPTOR`, and with no other.

To move a client, the front has its worker describe it and another worker prepare for it. Then the
first worker hands the client over by a log entry, at which the other worker takes over.
Each of these commands has one answer; `MoveDeclined` ends the move.

When another bus takes the place of this one, its workers *freeze*. They describe all clients in
files, from which the workers of the other bus, which are frozen as well, restore them.
"""

from typing import Literal

import msgspec

from sbus.broker.ipc.client_record import ClientRecord
from sbus.broker.ipc.queries import Query
from sbus.unix.credentials import Credentials


# -- commands: front to worker ---------------------------------------------------------------------
class AdoptClient(msgspec.Struct, frozen=True, tag=True):
    """Serve this client; its socket comes along."""

    client: int
    credentials: Credentials
    account: int
    """The place of its user's account."""
    rules: bytes = b""
    """The access rules that apply to it, as `encode_rule_set` writes them."""
    slot: int = 0


class InheritClient(msgspec.Struct, frozen=True, tag=True):
    """Serve this client, which the predecessor of this worker served, once `TakeOver` comes; its
    socket comes along."""

    adoption: AdoptClient


class TakeOver(msgspec.Struct, frozen=True, tag=True):
    """Begin to serve, in place of a predecessor that has died, all clients that were to be
    inherited. Each successor gets this, and waits for it; answered by `TookOver`."""


class DescribeClient(msgspec.Struct, frozen=True, tag=True):
    """Say what another worker has to know of this client; answered by `ClientDescribed`."""

    client: int


class PrepareClient(msgspec.Struct, frozen=True, tag=True):
    """Make ready to serve this client, whose socket comes along, without serving it yet; answered
    by `ClientPrepared`."""

    adoption: AdoptClient
    record: ClientRecord


class HandOverClient(msgspec.Struct, frozen=True, tag=True):
    """Have this worker take over this client, if it is still as it was described; answered by
    `ClientHandedOver`."""

    client: int
    to: int
    revision: int


class CallOffMove(msgspec.Struct, frozen=True, tag=True):
    """This client will not be handed over, unless that has happened; answered by `MoveCalledOff`,
    or by `ClientArrived` before."""

    client: int


class StartSampling(msgspec.Struct, frozen=True, tag=True):
    """Count which clients exchange how many messages, until `StopSampling`."""


class StopSampling(msgspec.Struct, frozen=True, tag=True):
    """Report what was counted, in a `TrafficSample`."""


class RecordClients(msgspec.Struct, frozen=True, tag=True):
    """Write a snapshot of every client to the file that comes along, with what has changed since
    the last one: between turns, so that a client may be added, change or leave meanwhile; or all at
    once, if this worker is frozen. Answered by `Done`."""

    number: int


class Freeze(msgspec.Struct, frozen=True, tag=True):
    """Neither read from clients nor send to them, except for what has its place in the total order
    already; answered by `Done`. A frozen worker says nothing to its clients when it ends."""

    number: int


class Thaw(msgspec.Struct, frozen=True, tag=True):
    """Serve the clients that are here from now on."""


class MapRecords(msgspec.Struct, frozen=True, tag=True):
    """The file that comes along has records of clients; they are numbered in the order of these
    commands, from 0 on."""


class PrepareRecorded(msgspec.Struct, frozen=True, tag=True):
    """Make ready to serve this client, whose socket comes along, by its record there."""

    adoption: AdoptClient
    file: int
    at: int
    size: int


class ReportPrepared(msgspec.Struct, frozen=True, tag=True):
    """Answer `Done` when all clients are prepared as the files that came say, and what workers have
    journalled for theirs is read, as far as that is needed."""

    number: int


class RestoreClients(msgspec.Struct, frozen=True, tag=True):
    """Restore the clients that were prepared by their snapshots in the files that came since
    `ReportPrepared`, and discard those that have none. Go on with these counters. Answered by
    `Done`."""

    number: int
    counters: dict[str, int]


class EndSilently(msgspec.Struct, frozen=True, tag=True):
    """End, and touch no client's socket: another bus serves them."""


class DisconnectClient(msgspec.Struct, frozen=True, tag=True):
    """An administrator disconnects this client."""

    client: int
    text: str


class ApplySettings(msgspec.Struct, frozen=True, tag=True):
    """Apply the `SettingsUpdate` in the memfd that comes along; answered by `SettingsApplied`."""

    number: int


class RunQuery(msgspec.Struct, frozen=True, tag=True):
    """Answer a query of an administrator or a user, by a `QueryReply` with this number."""

    number: int
    query: Query


class SelfServiceReply(msgspec.Struct, frozen=True, tag=True):
    """Send this client the packet that answers its `SelfServiceRequest`."""

    client: int
    packet: bytes


class StartStream(msgspec.Struct, frozen=True, tag=True):
    """Write a stream to the watcher's connection that comes along; answered by `StreamStarted`.

    `patterns` and `payload` are about messages, as `admin.Monitor` has them."""

    stream: int
    kind: Literal["messages", "events"]
    patterns: list[bytes] = []
    payload: bool = False


class StopStream(msgspec.Struct, frozen=True, tag=True):
    """Write this stream no more."""

    stream: int


class Quiesce(msgspec.Struct, frozen=True, tag=True):
    """Read no more from any client; answered by `WorkerQuiesced`."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """All workers have quiesced: deliver what is left, tell clients this code, and end."""

    code: str = "stopping"
    """One of `END_TEXTS`."""


WorkerCommand = (
    AdoptClient
    | InheritClient
    | TakeOver
    | DescribeClient
    | PrepareClient
    | HandOverClient
    | CallOffMove
    | RecordClients
    | Freeze
    | Thaw
    | MapRecords
    | PrepareRecorded
    | ReportPrepared
    | RestoreClients
    | EndSilently
    | StartSampling
    | StopSampling
    | DisconnectClient
    | ApplySettings
    | RunQuery
    | SelfServiceReply
    | StartStream
    | StopStream
    | Quiesce
    | Stop
)

WITH_DESCRIPTOR = (
    AdoptClient
    | InheritClient
    | PrepareClient
    | RecordClients
    | MapRecords
    | PrepareRecorded
    | ApplySettings
    | StartStream
)


# -- events: worker to front -----------------------------------------------------------------------
class WorkerReady(msgspec.Struct, frozen=True, tag=True):
    """The worker takes commands. It begins to serve with the first one, if it stands by."""


class TookOver(msgspec.Struct, frozen=True, tag=True):
    """The clients that were to be inherited are served here from now on."""

    clients: int


class SettingsApplied(msgspec.Struct, frozen=True, tag=True):
    """The settings of this number are in force here, also for publishers that wait for clients of
    this worker."""

    number: int


class ClientLeft(msgspec.Struct, frozen=True, tag=True):
    """This client has left; `reason` is "" when it did so by itself."""

    client: int
    reason: str


class ClientDescribed(msgspec.Struct, frozen=True, tag=True):
    """What another worker has to know of this client now."""

    client: int
    record: ClientRecord


class ClientPrepared(msgspec.Struct, frozen=True, tag=True):
    """This client can be handed over to this worker."""

    client: int


class ClientHandedOver(msgspec.Struct, frozen=True, tag=True):
    """This client is not served here any more."""

    client: int


class ClientArrived(msgspec.Struct, frozen=True, tag=True):
    """This client, which was handed over, is served here from now on."""

    client: int


class MoveDeclined(msgspec.Struct, frozen=True, tag=True):
    """The command to this worker that is part of moving this client was not carried out."""

    client: int
    why: str


class MoveCalledOff(msgspec.Struct, frozen=True, tag=True):
    """This client was not handed over, and this worker is not ready for it any more."""

    client: int


class Done(msgspec.Struct, frozen=True, tag=True):
    """The command of this number was carried out, or why it was not."""

    number: int
    why_not: str = ""
    changes: int = 0
    """Of all clients since they were recorded before; a unit takes a third of a microsecond."""
    uid: int = 0
    """The user with the most of them."""


class ClientTraffic(msgspec.Struct, frozen=True, array_like=True):
    """How many messages a client published and received."""

    client: int
    published: int
    received: int


class Exchange(msgspec.Struct, frozen=True, array_like=True):
    """How many messages of one client, of any worker, another one received on this worker."""

    publisher: int
    recipient: int
    messages: int


class TrafficSample(msgspec.Struct, frozen=True, tag=True):
    """The busiest clients of a worker, and those that exchange most."""

    clients: list[ClientTraffic] = []
    exchanges: list[Exchange] = []


class QueryReply(msgspec.Struct, frozen=True, tag=True):
    """The encoded answer to the query of this number."""

    number: int
    data: bytes


class SelfServiceRequest(msgspec.Struct, frozen=True, tag=True):
    """This client asks what the bus has of its user. It is not read until it has the answer."""

    client: int


class StreamStarted(msgspec.Struct, frozen=True, tag=True):
    """This stream has begun here, or cannot, for want of descriptors."""

    stream: int
    has_begun: bool = True


class WorkerQuiesced(msgspec.Struct, frozen=True, tag=True):
    """No client is read any more. All that was read has its place in the total order, except for
    what has to wait for a stalled client or for its user's rate."""


WorkerEvent = (
    WorkerReady
    | TookOver
    | SettingsApplied
    | ClientLeft
    | ClientDescribed
    | ClientPrepared
    | ClientHandedOver
    | ClientArrived
    | MoveDeclined
    | MoveCalledOff
    | Done
    | TrafficSample
    | QueryReply
    | SelfServiceRequest
    | StreamStarted
    | WorkerQuiesced
)
