"""Turns of a task of the front: it does many short things, and lets others run in between."""

import time
from collections.abc import Callable

import trio

_TURN_SECONDS = 0.001
"""For some 30 connections, or fewer where refusing takes long; then other tasks have a turn."""


class TimedTurns:
    """Of one task."""

    def __init__(self) -> None:
        self._used_seconds = 0.0

    async def use(self, act: Callable[[], None]) -> None:
        """Do this, and let other tasks run if the turn is over."""
        began_at = time.perf_counter()
        act()
        self._used_seconds += time.perf_counter() - began_at
        if self._used_seconds > _TURN_SECONDS:
            self._used_seconds = 0.0
            await trio.lowlevel.checkpoint()
