"""The asynchronous client with the calls of the blocking one, for tests of what both promise."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

import anyio
from anyio.from_thread import start_blocking_portal

from sbus.client.async_link import AsyncLink
from sbus.client.connection import Connection
from sbus.client.link import Link
from sbus.client.message_queue import Losses
from sbus.client.options import LinkOptions
from sbus.client.request_reply import Request, RequestStream
from sbus.client.subscription import Subscription
from tests.support.event_loops import Backend


class AsyncClient:
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
        self._link: Link[Any] = Link(address, losses, options)
        self._portal_context = start_blocking_portal(backend)
        self._portal = self._portal_context.__enter__()
        self._io: AsyncLink[Any] = self._portal.call(AsyncLink, self._link)
        self._link.inbox.refusals.share()  # each call has a task of its own
        self._bus = Connection(self._io)
        try:
            self.call(self._io.open, timeout_seconds=timeout_seconds)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self.call, getattr(self._bus, name))

    def call(
        self,
        method: Callable[..., Any],
        *arguments: object,
        timeout_seconds: float | None = None,
        **options: object,
    ) -> Any:
        async def in_time() -> Any:
            with anyio.fail_after(math.inf if timeout_seconds is None else timeout_seconds):
                return await method(*arguments, **options)

        return self._portal.call(in_time)

    @contextmanager
    def subscription(self, *patterns: bytes | str) -> Iterator["AsyncSubscription"]:
        opened = self._bus.subscription(*patterns)
        with self._portal.wrap_async_context_manager(opened) as subscription:
            yield AsyncSubscription(self, subscription)

    @contextmanager
    def requests(self, *patterns: bytes | str) -> Iterator["AsyncRequests"]:
        opened = self._bus.requests(*patterns)
        with self._portal.wrap_async_context_manager(opened) as requests:
            yield AsyncRequests(self, requests)

    def request(self, *arguments: Any, **options: Any) -> Any:
        return self._portal.call(lambda: self._bus.request(*arguments, **options))

    def statistics(self) -> object:
        return self._portal.call(self._bus.statistics)

    def close(self) -> None:
        self._portal.call(self._bus.close)

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

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self.call(self._bus.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None


class AsyncSubscription:
    """One of its subscriptions, likewise."""

    def __init__(self, client: AsyncClient, subscription: Subscription[Any]) -> None:
        self._client = client
        self._subscription = subscription

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._client.call, getattr(self._subscription, name))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self._client.call(self._subscription.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None


class AsyncRequests:
    """Requests to it, likewise."""

    def __init__(self, client: AsyncClient, requests: RequestStream) -> None:
        self._client = client
        self._requests = requests

    def receive(self, *, timeout_seconds: float | None = None) -> "AsyncRequest":
        request = self._client.call(self._requests.receive, timeout_seconds=timeout_seconds)
        return AsyncRequest(self._client, request)


class AsyncRequest:
    """One of them."""

    def __init__(self, client: AsyncClient, request: Request) -> None:
        self._client = client
        self._request = request
        self.key = request.key
        self.payload = request.payload

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._client.call, getattr(self._request, name))
