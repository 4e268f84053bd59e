"""The admin protocol: what `sbusctl` and the like ask a bus, and what they are told.

One JSON object per packet, both ways, over `AF_UNIX SOCK_SEQPACKET`. A request names a `verb`; its
reply carries the request's `id` and either a `result` or an `error`. Requests of one connection are
answered in their order. `monitor` and `events` begin a stream, for which see `admin_streams`.

What results hold is in `admin_results`.

Lists are paged: a request gives where to go on, a result says where that would be next (`next`,
null at the end).

Pure: knows neither sockets nor who may ask.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from sbus.protocol.admin_results import (
    ClientsResult,
    DrainResult,
    EventsResult,
    ExplainResult,
    KickResult,
    LimitResult,
    MonitorResult,
    ReloadResult,
    StatsResult,
    SubsResult,
    UsersResult,
    VersionResult,
    WorkersResult,
)

VERSION: Final = 1
"""Grows when a program written for an earlier one would misunderstand; new fields and verbs do not
count, so whoever reads this protocol ignores fields that it does not know."""
REQUEST_BYTES_MAX: Final = 64 * 1024
REPLY_BYTES_MAX: Final = 256 * 1024
PAGE_MAX: Final = 300
"""Entries of a page, so that one with the longest names there can be is a packet."""
EXPLAINED_MAX: Final = 100
"""Clients that the answer to `explain` names, of either kind; the rest are counted."""

Page = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Uid = Annotated[int, Meta(ge=0, le=2**32 - 1)]
ShortText = Annotated[str, Meta(max_length=400)]


# -- requests --------------------------------------------------------------------------------------
class _Request(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="verb",
    tag=str.lower,
):
    id: int = 0
    """Chosen by whoever asks; stands in the reply."""
    version: Literal[1] = 1


class Stats(_Request, frozen=True):
    """Totals, rates, and the same for each worker. Answered from shared memory."""


class Workers(_Request, frozen=True):
    """The worker processes. Answered from shared memory."""


class Clients(_Request, frozen=True):
    """Clients in the order of their numbers, behind number `after`; `uid`: only that user's."""

    uid: Uid | None = None
    after: Number = 0
    limit: Page = 200


class Subs(_Request, frozen=True):
    """Subscriptions that have keys in common with `pattern`; behind `after`, the `next` of the page
    before. A page may be empty and have a next."""

    pattern: str = ""
    after: ShortText | None = None
    limit: Page = 200


class Users(_Request, frozen=True):
    """Users in the order of their ids, behind `after`: limits and use. From shared memory."""

    after: int = -1
    limit: Page = 200


class Explain(_Request, frozen=True):
    """Who would receive a message under `key`, if it were published now."""

    key: str


class Monitor(_Request, frozen=True):
    """Begin a stream of the messages whose key matches one of `patterns`; none given: of all,
    secret ones, whose payload is never shown, included."""

    patterns: Annotated[list[str], Meta(max_length=64)] = []
    payload: bool = False


class Events(_Request, frozen=True):
    """Begin a stream of what happens to clients and workers."""


class Kick(_Request, frozen=True):
    """Disconnect a client; `text` is what it is told. Waits for no worker."""

    client: Number
    text: ShortText = ""


class Limit(_Request, frozen=True):
    """Change limits of one user, for all of its connections, from now on and until the bus ends or
    reads its configuration anew. `limits` holds some fields of `UserLimits`; empty asks only."""

    uid: Uid
    limits: dict[str, int | float] = {}


class Reload(_Request, frozen=True):
    """Read the configuration file again."""


class Drain(_Request, frozen=True):
    """Let nobody in any more and end with the last client, or, if there are some left after
    `timeout_seconds`, disconnect those."""

    timeout_seconds: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class Version(_Request, frozen=True):
    """Which bus this is."""


Request = (
    Stats
    | Workers
    | Clients
    | Subs
    | Users
    | Explain
    | Monitor
    | Events
    | Kick
    | Limit
    | Reload
    | Drain
    | Version
)


# -- replies ---------------------------------------------------------------------------------------
class Fault(msgspec.Struct, frozen=True):
    """Why there is no result: `code` for programs (bad-request, unknown-verb, unsupported-version,
    not-found, not-allowed, failed), `text` for people."""

    code: str
    text: str


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to the request of this `id`, 0 where it had none that could be read."""

    version: int
    id: int
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: Fault | None = None


RESULTS: Final[dict[type[msgspec.Struct], type[msgspec.Struct]]] = {
    Stats: StatsResult,
    Workers: WorkersResult,
    Clients: ClientsResult,
    Subs: SubsResult,
    Users: UsersResult,
    Explain: ExplainResult,
    Monitor: MonitorResult,
    Events: EventsResult,
    Kick: KickResult,
    Limit: LimitResult,
    Reload: ReloadResult,
    Drain: DrainResult,
    Version: VersionResult,
}
"""What each request is answered with."""
