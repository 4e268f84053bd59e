"""The quotas of subscriptions: whether a client may have one more pattern, and what it has.

The steps of a match are counted for a user and not for a client, because the patterns of one user's
clients often have the same shapes. They are counted where the patterns are in the index: also for a
client that has not arrived yet, and for one that has left until its patterns are removed.
"""

from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.router import Router
from sbus.broker.worker.session import Session
from sbus.errors import QuotaReached, Refusal
from sbus.protocol.keys import PatternPath
from sbus.routing.shapes import Shapes
from sbus.shared.accounts import BUS, MATCH_STEPS, SUBSCRIPTION_BYTES, SUBSCRIPTIONS


class SubscriptionQuotas:
    """Of one worker's clients."""

    def __init__(self, context: WorkerContext, router: Router) -> None:
        self._context = context
        self._router = router
        self._shapes: dict[int, Shapes] = {}
        """Of the patterns of each user that has any here, by the place of the user's account."""

    def check(self, session: Session, pattern: bytes) -> None:
        """Raise Refusal unless a client may have one more occurrence of a pattern."""
        self.check_room(session, self._router.subscription_bytes(pattern))
        path = self._router.path_of(pattern)
        if path is not None and not path.is_literal:
            self._check_steps(session, path)

    def check_room(self, session: Session, size_bytes: int) -> None:
        """Raise Refusal unless a client may have one more subscription of this size."""
        bytes_max = self._context.settings.limits.client_subscription_bytes_max
        if session.subscription_bytes + size_bytes > bytes_max:
            raise Refusal("too-many-patterns", "one client has no room for more subscriptions")
        for limit, more, client_use in (
            (SUBSCRIPTIONS, 1, session.subscriptions),
            (SUBSCRIPTION_BYTES, size_bytes, session.subscription_bytes),
        ):
            if not session.account.has_room(limit, more, client_use):
                raise QuotaReached(
                    "too-many-patterns", "your user has no room for more subscriptions", limit
                )

    def _check_steps(self, session: Session, path: PatternPath) -> None:
        steps = self._shapes.get(session.account_place, _NONE).steps_of(path)
        if steps and not session.account.has_room(MATCH_STEPS, steps, 0):
            raise QuotaReached(
                "too-many-steps",
                "your user's patterns would take too many steps to match",
                MATCH_STEPS,
            )

    def count(self, session: Session, pattern: bytes, change: int) -> None:
        """Change the number of occurrences of a client's pattern."""
        had = pattern in session.patterns
        session.count_patterns(pattern, change, self._router.subscription_bytes(pattern))
        has = pattern in session.patterns
        path = self._router.path_of(pattern)
        if had != has and path is not None and not path.is_literal:
            self._count_steps(session, path, is_added=has)

    def _count_steps(self, session: Session, path: PatternPath, *, is_added: bool) -> None:
        shapes = self._shapes.get(session.account_place)
        if shapes is None:
            shapes = self._shapes[session.account_place] = Shapes()
        before = shapes.steps
        if is_added:
            shapes.add(path)
        else:
            shapes.remove(path)
            if not shapes:
                del self._shapes[session.account_place]
        if shapes.steps != before:
            session.account.count(MATCH_STEPS, shapes.steps - before)
            self._router.set_shape_steps(self._context.accounts[BUS].own_use(MATCH_STEPS))


_NONE = Shapes()
