"""The admin protocol: the requests of `sbusctl` and other programs, and the replies of a bus.

One JSON object per packet, both ways, over `AF_UNIX SOCK_SEQPACKET`. A request names a `verb`; its
reply has the request's `id` and either a `result` (`admin_results`) or an `error`. The requests of
one connection are answered in order. `monitor` and `events` begin a stream (`admin_streams`).

Lists are paged: a request says where to continue, and `next` in a result is where the next page
begins, or null at the end.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from sbus.protocol import admin_results as results

VERSION: Final = 1
"""Incremented by incompatible changes. New fields and verbs are compatible: a client ignores fields
that it does not know."""
REQUEST_BYTES_MAX: Final = 64 * 1024
REPLY_BYTES_MAX: Final = 256 * 1024
PAGE_MAX: Final = 300
"""Entries of a page, so that a page with the longest possible names fits in a packet."""
EXPLAINED_MAX: Final = 100
"""Clients that the reply to `explain` lists, of either kind; the others are counted."""

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
    """Chosen by the client; the reply has the same."""
    version: Literal[1] = 1


class Stats(_Request, frozen=True):
    """Totals, rates, and both for each worker; from shared memory."""


class Workers(_Request, frozen=True):
    """The worker processes; from shared memory."""


class Clients(_Request, frozen=True):
    """Clients in the order of their numbers, after number `after`; `uid`: only that user's."""

    uid: Uid | None = None
    after: Number = 0
    limit: Page = 200


class Subs(_Request, frozen=True):
    """Subscriptions that have keys in common with `pattern`, after `after`, which is the `next` of
    the previous page. A page may be empty and have a `next`."""

    pattern: str = ""
    after: ShortText | None = None
    limit: Page = 200


class Users(_Request, frozen=True):
    """Users in the order of their ids, after `after`: limits and use; from shared memory."""

    after: int = -1
    limit: Page = 200


class Explain(_Request, frozen=True):
    """The clients that would receive a message with `key`, if it were published now."""

    key: str


class Monitor(_Request, frozen=True):
    """Begin a stream of the messages whose key matches one of `patterns`; without patterns, of all
    messages. The payload of a secret message is never shown."""

    patterns: Annotated[list[str], Meta(max_length=64)] = []
    payload: bool = False


class Events(_Request, frozen=True):
    """Begin a stream of events."""


class Kick(_Request, frozen=True):
    """Disconnect a client, with `text` as the reason. Does not wait for the worker."""

    client: Number
    text: ShortText = ""


class Move(_Request, frozen=True):
    """Have another worker serve a client, which notices nothing. The bus moves clients by itself
    too; see `placement`."""

    client: Number
    worker: Number


class Limit(_Request, frozen=True):
    """Change limits of one user, for all of its connections, until the bus ends or reads its
    configuration again. `limits` has some fields of `UserLimits`; without any, nothing changes."""

    uid: Uid
    limits: dict[str, int | float] = {}


class Reload(_Request, frozen=True):
    """Read the configuration file again."""


class Upgrade(_Request, frozen=True):
    """Start the program of the bus again, and have it take the place of the one that runs. If it
    cannot, nothing changes."""


class TakeOver(_Request, frozen=True):
    """Hand the bus over to the process that asks, which must be root's or of the bus's own user.
    The reply comes at once, and what follows is no admin protocol."""


class Drain(_Request, frozen=True):
    """Accept no more clients, and end when the last one has left, or disconnect those that are
    left after `timeout_seconds`."""

    timeout_seconds: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class Version(_Request, frozen=True):
    """The version and identity of this bus."""


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
    | Move
    | Limit
    | Reload
    | Upgrade
    | TakeOver
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
    """The reply to the request with this `id`; 0 if that could not be read."""

    version: int
    id: int
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: Fault | None = None


RESULTS: Final[dict[type[msgspec.Struct], type[msgspec.Struct]]] = {
    Stats: results.StatsResult,
    Workers: results.WorkersResult,
    Clients: results.ClientsResult,
    Subs: results.SubsResult,
    Users: results.UsersResult,
    Explain: results.ExplainResult,
    Monitor: results.MonitorResult,
    Events: results.EventsResult,
    Kick: results.KickResult,
    Move: results.MoveResult,
    Limit: results.LimitResult,
    Reload: results.ReloadResult,
    Upgrade: results.UpgradeResult,
    TakeOver: results.TakeOverResult,
    Drain: results.DrainResult,
    Version: results.VersionResult,
}
"""The result of each request."""
