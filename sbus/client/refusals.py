"""Refusals that the program has not been told yet, each for the task whose packet was refused.

A notice of a refusal names no packet. But it comes before the reply to the next barrier, so it is
for a packet of one *section*: the packets between two barriers. If only one task has sent packets
in that section, the refusal is for that task. If several have, nobody knows for which: it is
logged, and no call raises it. A task is known by its coroutine, which shows when it has ended.

A connection without tasks, and what concerns every task, have the task None: the next call of any
task raises it.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from sbus.client.message_queue import logger
from sbus.client.requests import Barrier
from sbus.errors import PacketRefused
from sbus.protocol.codes import PACKETS_LOST
from sbus.protocol.packets import encode_control
from sbus.protocol.receipts import PUBLISH

_SEVERAL: Final = object()
"""Stands for the tasks of a section that more than one has sent."""
_WITH_RECEIPT = encode_control(PUBLISH, b"")
"""Such a message has its refusal in its receipt."""


class _Waiting:
    """The refusals that one task is to be told."""

    def __init__(self, first: PacketRefused) -> None:
        self.first = first
        self.more = 0
        self.is_logged = False

    def error(self) -> PacketRefused:
        text = self.first.text
        if self.more:
            text = f"{text}; {self.more} more refused since"
        return PacketRefused(self.first.code, text)

    def log(self) -> None:
        if not self.is_logged:
            logger.warning("%s", self.error())
        self.is_logged = True


class Refusals:
    """Those of one connection."""

    def __init__(self, barrier: Barrier) -> None:
        self.current_task: Callable[[], object] = lambda: None
        self._barrier = barrier
        self._sender: object = None
        """The task that has sent packets since the last barrier."""
        self._sections: deque[tuple[int, object]] = deque()
        """The tickets of barriers without a reply, and who has sent the packets before each."""
        self._waiting: dict[object, _Waiting] = {}

    def share(self) -> None:
        """From now on, the next call of any task raises the refusal of any other."""
        self.current_task = lambda: None

    # -- sections ------------------------------------------------------------------------------

    def note_sent(self, packet: bytes) -> None:
        """The current task has sent this packet, or is about to."""
        task = self.current_task()
        if self._sender is not task and not packet.startswith(_WITH_RECEIPT):
            self._sender = task if self._sender is None else _SEVERAL

    def note_barrier(self, ticket: int) -> None:
        """A barrier was sent."""
        self._leave_sections()
        self._sections.append((ticket, self._sender))
        self._sender = None

    @property
    def others_have_sent(self) -> bool:
        """Whether another task than the current one has sent packets since the last barrier."""
        return self._sender not in (None, self.current_task())

    def abandon_sections(self) -> None:
        """The connection was lost: no refusal comes for the packets so far."""
        self._sections.clear()
        self._sender = None

    def _leave_sections(self) -> None:
        """Forget the sections for which no more refusals come."""
        while self._sections and self._barrier.is_settled(self._sections[0][0]):
            self._sections.popleft()
            self._waiting.pop(_SEVERAL, None)

    # -- refusals ------------------------------------------------------------------------------

    def add(self, refused: PacketRefused) -> None:
        """The bus has refused a packet of the oldest section."""
        self._leave_sections()
        sender = self._sections[0][1] if self._sections else self._sender
        self._add(None if refused.code == PACKETS_LOST else sender, refused)

    def add_for_all(self, refused: PacketRefused) -> None:
        """The bus has refused a packet that no task has sent."""
        self._add(None, refused)

    def _add(self, task: object, refused: PacketRefused) -> None:
        waiting = self._waiting.get(task)
        if waiting is None:
            self._drop_ended()
            waiting = self._waiting[task] = _Waiting(refused)
        else:
            waiting.more += 1
        if task not in (None, self.current_task()):
            waiting.log()  # that task may make no call that raises it

    def _drop_ended(self) -> None:
        """Log the refusals of tasks that have ended, as nobody else's call is to raise them."""
        for task in [task for task in self._waiting if _has_ended(task)]:
            self._waiting.pop(task).log()

    def clear(self) -> None:
        self._waiting.clear()

    def raise_next(self, *, but_lost: bool = False) -> None:
        """Raise PacketRefused if there is a refusal for the current task; `but_lost`: not if its
        code is `packets-lost`."""
        if not self._waiting:
            return
        self._drop_ended()
        for task in (self.current_task(), None):
            waiting = self._waiting.get(task)
            if waiting is not None and not (but_lost and waiting.first.code == PACKETS_LOST):
                del self._waiting[task]
                raise waiting.error()


def _has_ended(task: object) -> bool:
    return task is not None and getattr(task, "cr_frame", task) is None
