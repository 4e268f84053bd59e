"""Ends of a durable channel: each is handled, also one that is heard while another is handled."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sbus.bridge.ends import End, Ends, encode_end


def told(ends: Ends, number: int, sequence: int) -> None:
    end = End("aa", number, sequence)
    msg: Any = SimpleNamespace(subject="sbus.e.all.a", headers=encode_end(end, "a"))
    asyncio.run(ends.hear(msg))


def handle_first(ends: Ends) -> None:
    for _ in ends.due(11):
        raise TimeoutError


def test_an_end_that_is_heard_while_an_earlier_one_is_handled_remains() -> None:
    ends = Ends("sbus", "all", lambda *_: None)
    told(ends, 1, 10)
    for origin, end in ends.due(11):
        assert (origin, end.number) == ("a", 1)
        told(ends, 2, 20)
    assert [end.number for _, end in ends.due(21)] == [2]
    assert list(ends.due(21)) == []


def test_an_end_whose_handling_fails_is_due_again() -> None:
    ends = Ends("sbus", "all", lambda *_: None)
    told(ends, 1, 10)
    with pytest.raises(TimeoutError):
        handle_first(ends)
    assert [end.number for _, end in ends.due(11)] == [1]
