"""The trio client with the calls of the blocking one, for tests of what both clients promise."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Self, Unpack

import trio

from sbus.client.connection import Connection
from sbus.client.inbox import Losses
from sbus.client.link import Link, LinkOptions


class TrioClient:
    """Every call has an event loop of its own, which waits for nothing else."""

    def __init__(
        self,
        address: str,
        *,
        losses: Losses = "raise",
        timeout_seconds: float | None = None,
        **options: Unpack[LinkOptions],
    ) -> None:
        self._link: Link[Any] = Link(address, losses, options)
        self._bus = Connection(self._link)
        try:
            self._call(self._bus._open, timeout_seconds=timeout_seconds)
        except BaseException:
            self.close()
            raise

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, getattr(self._bus, name))

    def _call(
        self, method: Callable[..., Any], *arguments: object, timeout_seconds: float | None = None
    ) -> Any:
        async def call() -> Any:
            with trio.move_on_after(math.inf if timeout_seconds is None else timeout_seconds):
                return await method(*arguments)
            raise TimeoutError

        return trio.run(call)

    def close(self) -> None:
        async def close() -> None:
            self._bus.close()

        trio.run(close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self._call(self._bus.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None
