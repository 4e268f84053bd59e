"""Accounts: what each user has and uses of the bus, over all connections and workers.

There is one account for each user and one for the whole bus, in shared memory. Each kind of use
has a *cell* for each worker, which only that worker writes; the use is the sum of the cells. So
counting needs no lock, `reap` takes back what a dead worker had counted, and a limit may be
exceeded only by what several workers add at the same instant.

    use(account, kind) = Σ cells                     losses are never taken back

A client takes at most as much of a quota as it leaves to the other clients of its user, and a user
at most as much as it leaves to other users:

    client's use + more  <=  user's quota - (user's use + more)
    user's use + more    <=  bus's quota  - (bus's use + more)

So one stuck client has at most half of its user's quota, a second one a quarter, and something is
always left for the next. Only what arrives too late to be held back may exceed that, from a bounded
reserve.

The lock guards the time until which the user's publishing is paid for (its rate), its held time,
its shares of the log and of the subscription table, and when it was last reported for reaching a
limit. An account outlives the user's last connection until another user needs its place, so that
reconnecting does not reset it. The account that was opened last gives its place up first, and the
older half never does: users that come in numbers replace each other, and not those that the bus has
known for longer.

A subordinate id (`/etc/subuid`) has no account of its own: it uses the account of its owner, who
can act under any of them.
"""

from sbus.limits import Limits, UserLimits
from sbus.shared.account_record import AccountRecord
from sbus.shared.held_time import HELD_WORDS, HeldTime
from sbus.shared.log_share import WORDS_PER_DESTINATION, LogShare
from sbus.shared.table_share import TABLE_SHARE_WORDS, TableShare

# Kinds of use; those before `BLOCKING_CLIENTS` have quotas.
SUBSCRIPTIONS = 0
SUBSCRIPTION_BYTES = 1
BACKLOG_BYTES = 2
MATCH_STEPS = 3
"""What one match may cost at most because of this user's patterns, see `routing/shapes.py`."""
BLOCKING_CLIENTS = 4
"""Clients that may hold publishers back."""
HOLDING = 5
"""1 while clients of this user hold back publishers of the worker with this cell."""
WAITING_BYTES = 6
"""Bytes that were read from this user's clients and wait to be processed."""
SOCKET_BYTES = 7
"""What large send buffers have room for, beyond small ones."""
DROPPED = 8
"""Messages that were dropped for this user's clients."""
_KINDS = 9
_GAUGES = range(DROPPED)  # all kinds before it go down again

_QUOTA_NAMES = ("subscriptions", "subscription_bytes", "backlog_bytes", "match_steps")

# Limits that are reported when they are reached: kinds up to `BLOCKING_CLIENTS`, and
PUBLISH_RATE = 5
HELD_TIME = 6
CONNECTIONS = 7
CONNECTION_RATE = 8
_REPORTS = 9

BUS = 0
"""The place of the account of the whole bus."""

_CONNECTIONS = 0  # written by the front alone
_CONNECTIONS_MAX = 1
NS_PER_MESSAGE = 2
_HELD_NS_MAX = 3
PAID_UNTIL_NS = 4
_QUOTAS = 5  # of the kinds that have one
_REPORTED_NS = _QUOTAS + BLOCKING_CLIENTS  # when each limit was last reported
UID = _REPORTED_NS + _REPORTS
_NS_PER_CONNECTION = UID + 1
_CONNECTIONS_PAID_UNTIL_NS = UID + 2  # written by the front alone
_HELD = UID + 3
_TABLE_SHARE = _HELD + HELD_WORDS
CELLS = _TABLE_SHARE + TABLE_SHARE_WORDS
RATE_BURST_NS = 50_000_000
_NO_QUOTA = 1 << 62


def account_words(workers: int) -> int:
    """Shared words of one account."""
    return log_share_at(workers) + WORDS_PER_DESTINATION * workers


def log_share_at(workers: int) -> int:
    """Where in an account the user's shares of the log begin: they are its last words."""
    return CELLS + _KINDS * workers


def accounts_words(workers: int, limits: Limits) -> int:
    """Shared words of all accounts."""
    return account_words(workers) * (limits.users_max + 1)


class Account:
    """One process's view of an account; it writes the cells of `worker`."""

    __slots__ = (
        *("_bus", "_cells", "_none_left_until_ns", "_words", "_workers"),
        *("held_time", "log_share", "place", "table_share"),
    )

    def __init__(
        self, words: memoryview, place: int, workers: int, worker: int, held_window_ns: int
    ) -> None:
        size = account_words(workers)
        self.place = place
        self._words = words[place * size : (place + 1) * size]
        self._bus = words[:size]
        self._workers = workers
        self._none_left_until_ns = 0
        self._cells = [CELLS + kind * workers + worker for kind in range(_KINDS)]
        self.held_time = HeldTime(self._words[_HELD : _HELD + HELD_WORDS], held_window_ns)
        self.log_share = LogShare(self._words[log_share_at(workers) :])
        self.table_share = TableShare(self._words[_TABLE_SHARE:CELLS])

    # -- cells ---------------------------------------------------------------------------------
    def use(self, kind: int) -> int:
        """What all workers have counted."""
        return _use(self._words, kind, self._workers)

    def worker_use(self, kind: int, worker: int) -> int:
        """What one worker has counted."""
        return int(self._words[CELLS + kind * self._workers + worker])

    def own_use(self, kind: int) -> int:
        """What this worker has counted."""
        return int(self._words[self._cells[kind]])

    def has_room(self, kind: int, more: int, client_use: int) -> bool:
        """Whether a client of this user that has `client_use` may take `more`."""
        user_use = _use(self._words, kind, self._workers) + more
        bus_use = _use(self._bus, kind, self._workers) + more
        return (
            client_use + more <= self._words[_QUOTAS + kind] - user_use
            and user_use <= self._bus[_QUOTAS + kind] - bus_use
        )

    def has_reserve(self, kind: int, more: int, reserve: int) -> bool:
        """Whether this user may take `more` from a reserve beyond its quota."""
        use = _use(self._words, kind, self._workers)
        return bool(use + more <= self._words[_QUOTAS + kind] + reserve)

    def may_read(self, more: int) -> bool:
        """Whether this many bytes may be read from a client: what waits to be processed is bounded
        like what is in backlogs."""
        use = _use(self._words, WAITING_BYTES, self._workers)
        return bool(not use or use + more <= self._words[_QUOTAS + BACKLOG_BYTES])

    def has_room_in_sockets(self, more: int) -> bool:
        """Whether the send buffers of this user's clients may have room for so much more: for as
        much as its backlogs, and a user takes at most as much as it leaves to others."""
        user_use = _use(self._words, SOCKET_BYTES, self._workers) + more
        bus_use = _use(self._bus, SOCKET_BYTES, self._workers) + more
        return bool(
            user_use <= self._words[_QUOTAS + BACKLOG_BYTES]
            and user_use <= self._bus[_QUOTAS + BACKLOG_BYTES] - bus_use
        )

    def count(self, kind: int, more: int) -> None:
        """Count for the user and for the bus; a negative number takes back."""
        cell = self._cells[kind]
        self._words[cell] += more
        self._bus[cell] += more

    # -- under the lock ------------------------------------------------------------------------
    def publish_delay_ns(self, now_ns: int) -> int:
        """How long this user's next message has to wait for the rate limit."""
        return max(0, self._words[PAID_UNTIL_NS] - now_ns - RATE_BURST_NS)

    def pay_for(self, messages: int, now_ns: int) -> None:
        """Charge published messages to the rate limit."""
        words = self._words
        cost_ns = messages * words[NS_PER_MESSAGE]
        words[PAID_UNTIL_NS] = max(words[PAID_UNTIL_NS], now_ns) + cost_ns

    def begin_holding(self, now_ns: int) -> None:
        """This user's clients hold back publishers of this worker from now on."""
        self._words[self._cells[HOLDING]] = 1
        self.held_time.begin(now_ns)

    def end_holding(self, now_ns: int) -> None:
        """This user's clients hold back no publisher of this worker any more."""
        self._words[self._cells[HOLDING]] = 0
        if not self.use(HOLDING):
            self.held_time.end(now_ns)

    def note_report(self, limit: int, now_ns: int) -> None:
        """Note that this limit is reported now. Only the front reports `CONNECTIONS`, and without
        the lock."""
        self._words[_REPORTED_NS + limit] = now_ns

    # -- without the lock ----------------------------------------------------------------------
    def held_left_ns(self, now_ns: int) -> int:
        """How much longer this user's clients may hold publishers back."""
        if now_ns < self._none_left_until_ns:
            return 0
        left_ns = max(0, self._words[_HELD_NS_MAX] - self.held_time.spent_ns(now_ns))
        if not left_ns:
            # Remembered, because every message that is dropped for this reason asks again.
            self._none_left_until_ns = self.held_time.end_of_slice_ns(now_ns)
        return left_ns

    def is_report_due(self, limit: int, now_ns: int, interval_ns: int) -> bool:
        """Whether this limit was last reported longer ago than the interval."""
        reported_ns = self._words[_REPORTED_NS + limit]
        return not reported_ns or now_ns - reported_ns >= interval_ns

    @property
    def uid(self) -> int:
        """The user."""
        return int(self._words[UID])

    # -- in the front --------------------------------------------------------------------------
    @property
    def connections(self) -> int:
        return int(self._words[_CONNECTIONS])

    def resume(self) -> bool:
        """Go on when the front that has counted connections has ended; False if it never opened
        this account."""
        self._words[_CONNECTIONS] = 0
        return bool(self._words[_CONNECTIONS_MAX])

    def has_room_for_connection(self) -> bool:
        return bool(self._words[_CONNECTIONS] < self._words[_CONNECTIONS_MAX])

    def count_connection(self, more: int) -> None:
        self._words[_CONNECTIONS] += more

    def next_admission_ns(self) -> int:
        """When the user's rate allows its next connection. As many connections as it may have come
        without delay after a pause."""
        words = self._words
        burst_ns = (words[_CONNECTIONS_MAX] - 1) * words[_NS_PER_CONNECTION]
        return int(words[_CONNECTIONS_PAID_UNTIL_NS] - burst_ns)

    def pay_for_connection(self, now_ns: int) -> None:
        """Charge a connection to the rate limit."""
        words = self._words
        paid_from_ns = max(words[_CONNECTIONS_PAID_UNTIL_NS], now_ns)
        words[_CONNECTIONS_PAID_UNTIL_NS] = paid_from_ns + words[_NS_PER_CONNECTION]

    def limit(self, limits: UserLimits) -> None:
        """Set the user's limits, for every process from now on."""
        self._words[_CONNECTIONS_MAX] = min(limits.connections_max, _NO_QUOTA)
        self.set_quotas(limits)
        ns_per_message = 1_000_000_000 // limits.messages_per_second_max
        if ns_per_message != self._words[NS_PER_MESSAGE]:
            self._words[NS_PER_MESSAGE] = ns_per_message
            # Forget what was charged so far. A worker may add to it just now, which is fine.
            self._words[PAID_UNTIL_NS] = 0
        self._words[_HELD_NS_MAX] = int(min(limits.held_seconds_max * 1e9, _NO_QUOTA))
        ns_per_connection = 1_000_000_000 // limits.connections_per_second_max
        if ns_per_connection != self._words[_NS_PER_CONNECTION]:
            self._words[_NS_PER_CONNECTION] = ns_per_connection
            self._words[_CONNECTIONS_PAID_UNTIL_NS] = 0

    def set_quotas(self, limits: UserLimits | Limits, whose: str = "") -> None:
        """Set the quotas to the limits of these names, which begin with `whose`."""
        for kind, name in enumerate(_QUOTA_NAMES):
            quota = getattr(limits, f"{whose}{name}_max", _NO_QUOTA)
            self._words[_QUOTAS + kind] = min(quota, _NO_QUOTA)

    def open(self, uid: int, limits: UserLimits) -> None:
        """Begin anew, for this user."""
        self._none_left_until_ns = 0
        for at in range(len(self._words)):
            self._words[at] = 0
        self._words[UID] = uid
        self.limit(limits)

    # -- at another bus, which takes the place of this one ------------------------------------
    def record(self, now_ns: int) -> AccountRecord:
        """What has been used and does not come back with the user's clients."""
        return AccountRecord(
            uid=self.uid,
            messages_paid_until_ns=self._words[PAID_UNTIL_NS],
            connections_paid_until_ns=self._words[_CONNECTIONS_PAID_UNTIL_NS],
            held_spans=self.held_time.spans(now_ns),
            dropped=self.use(DROPPED),
        )

    def restore(self, record: AccountRecord) -> None:
        """Go on with what an account of another bus has used."""
        self._words[PAID_UNTIL_NS] = record.messages_paid_until_ns
        self._words[_CONNECTIONS_PAID_UNTIL_NS] = record.connections_paid_until_ns
        self.held_time.restore(record.held_spans)
        self.count(DROPPED, record.dropped)

    def is_idle(self, now_ns: int) -> bool:
        """Whether closing this account would forget nothing but its losses."""
        return not (
            self.connections
            or any(self.use(kind) for kind in _GAUGES)
            or self.held_time.spent_ns(now_ns)
            or self._words[PAID_UNTIL_NS] > now_ns
            or self._words[_CONNECTIONS_PAID_UNTIL_NS] > now_ns
        )

    def reap(self, worker: int, now_ns: int) -> None:
        """Take back what a dead worker had counted; under the lock."""
        for kind in _GAUGES:
            self._words[CELLS + kind * self._workers + worker] = 0
        if not self.use(HOLDING):
            self.held_time.end(now_ns)


class Accounts(dict[int, Account]):
    """One process's view of all accounts, by their places; a worker writes its own cells."""

    def __init__(self, words: memoryview, workers: int, limits: Limits, worker: int = 0) -> None:
        self._words = words
        self._workers = workers
        self._worker = worker
        self._window_ns = int(limits.held_window_seconds * 1e9)

    def __missing__(self, place: int) -> Account:
        account = Account(self._words, place, self._workers, self._worker, self._window_ns)
        self[place] = account
        return account


def _use(words: memoryview, kind: int, workers: int) -> int:
    at = CELLS + kind * workers
    return sum(words[at : at + workers])
