"""The asynchronous client with the calls of the blocking one, for tests of what both promise."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import partial
from inspect import isawaitable
from types import TracebackType
from typing import Any, Self, Unpack

import anyio
from anyio.from_thread import start_blocking_portal

from sbus.client.async_link import AsyncLink
from sbus.client.connection import Connection
from sbus.client.link import Link
from sbus.client.message_queue import Losses
from sbus.client.options import LinkOptions
from sbus.client.request_reply import Request
from tests.support.event_loops import Backend


class _Wrapped:
    """An object of the asynchronous client with the calls of a blocking one."""

    def __init__(self, client: "AsyncClient", wrapped: Any) -> None:
        self._client = client
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        return partial(self._client.call, found) if callable(found) else found

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self._client.call(self._wrapped.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None


class AsyncClient(_Wrapped):
    """Its calls run in an event loop of its own, in another thread."""

    def __init__(
        self,
        backend: Backend,
        address: str,
        *,
        losses: Losses = "raise",
        timeout_seconds: float | None = None,
        **options: Unpack[LinkOptions],
    ) -> None:
        link: Link[Any] = Link(address, losses, options)
        self._portal_context = start_blocking_portal(backend)
        self._portal = self._portal_context.__enter__()
        io: AsyncLink[Any] = self._portal.call(AsyncLink, link)
        link.inbox.refusals.share()  # each call has a task of its own
        super().__init__(self, Connection(io))
        try:
            self.call(io.open, timeout_seconds=timeout_seconds)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def call(
        self,
        method: Callable[..., Any],
        *arguments: object,
        timeout_seconds: float | None = None,
        **options: object,
    ) -> Any:
        async def in_time() -> Any:
            with anyio.fail_after(math.inf if timeout_seconds is None else timeout_seconds):
                result = method(*arguments, **options)
                return await result if isawaitable(result) else result

        result = self._portal.call(in_time)
        return _Wrapped(self, result) if isinstance(result, Request) else result

    @contextmanager
    def _opened(self, block: AbstractAsyncContextManager[object]) -> Iterator[_Wrapped]:
        with self._portal.wrap_async_context_manager(block) as opened:
            yield _Wrapped(self, opened)

    def subscription(self, *patterns: bytes | str) -> AbstractContextManager[_Wrapped]:
        return self._opened(self._wrapped.subscription(*patterns))

    def requests(self, *patterns: bytes | str) -> AbstractContextManager[_Wrapped]:
        return self._opened(self._wrapped.requests(*patterns))

    def request(self, *arguments: Any, **options: Any) -> Any:
        """It says itself that it has timed out."""
        return self._portal.call(lambda: self._wrapped.request(*arguments, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        self._portal_context.__exit__(kind, error, traceback)
