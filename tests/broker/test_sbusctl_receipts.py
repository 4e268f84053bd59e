"""`sbusctl pub --receipt` with a real bus."""

from collections.abc import Iterator

import pytest

from tests.support.bus import Bus
from tests.support.raw_client import RawClient


@pytest.fixture
def bus(shared_bus: Bus) -> Bus:
    return shared_bus


@pytest.fixture
def listener(bus: Bus) -> Iterator[RawClient]:
    with bus.connect() as listener:
        listener.sub(b"k")
        listener.whoami()
        yield listener


def test_prints_what_has_become_of_a_message(bus: Bus, listener: RawClient) -> None:
    with bus.connect() as other:
        other.sub(b"k")
        other.whoami()
        result = bus.sbusctl("pub", "--receipt", "k", "-5")
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout == b"sent 2, waiting 0, lost 0\n"
    assert listener.sync() == [b"MSG k\0-5"]


def test_prints_it_for_each_line(bus: Bus, listener: RawClient) -> None:
    result = bus.sbusctl("pub", "k", "--receipt", "--json", stdin=b"one\ntwo\n")
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout == b'{"sent": 1, "waiting": 0, "lost": 0}\n' * 2
    assert listener.sync() == [b"MSG k\0one", b"MSG k\0two"]


def test_fails_if_nobody_listens(bus: Bus) -> None:
    result = bus.sbusctl("pub", "--receipt", "nobody", "x")
    assert (result.returncode, result.stdout) == (1, b"sent 0, waiting 0, lost 0\n")
    assert result.stderr == b"sbusctl: nobody listens to messages under 'nobody'\n"


def test_says_of_how_many_lines_that_is_so(bus: Bus) -> None:
    result = bus.sbusctl("pub", "--receipt", "nobody", stdin=b"one\ntwo\n")
    assert (result.returncode, result.stdout) == (1, b"sent 0, waiting 0, lost 0\n" * 2)
    text = b"nobody listens to messages under 'nobody'; 2 of 2 messages had no receiver"
    assert result.stderr == b"sbusctl: %b\n" % text


def test_ends_with_a_line_that_is_refused(bus: Bus) -> None:
    result = bus.sbusctl("pub", "--receipt", "a/!/b", stdin=b"one\ntwo\n")
    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr.endswith(b"(reserved)\n")
