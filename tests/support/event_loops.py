"""Tests that run on trio and on asyncio."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Literal

import anyio
import pytest

Backend = Literal["trio", "asyncio"]


def on_both_event_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Have pytest run this coroutine function with each of them."""

    @functools.wraps(test)
    def run(*arguments: object, event_loop: Backend, **fixtures: object) -> None:
        anyio.run(functools.partial(test, *arguments, **fixtures), backend=event_loop)

    own = inspect.Parameter("event_loop", inspect.Parameter.KEYWORD_ONLY)
    signature = inspect.signature(test)
    parameters = [*signature.parameters.values(), own]
    setattr(run, "__signature__", signature.replace(parameters=parameters))  # noqa: B010
    marked: Callable[..., None] = pytest.mark.parametrize("event_loop", ["trio", "asyncio"])(run)
    return marked
