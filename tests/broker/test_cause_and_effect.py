"""An answer never overtakes its question, on whatever workers the clients are.

A service that hears questions on one connection and answers them on another is the hard case: the
two connections have different workers, and nothing but the bus itself connects them (PROTOCOL,
"Promises", 1).
"""

from functools import partial
from pathlib import Path

import pytest

from tests.support.bus import running_bus
from tests.support.order import assert_one_order
from tests.support.processes import clients_on_each
from tests.support.raw_client import RawClient
from tests.support.threads import run_together


def early_answers(seen: list[bytes]) -> list[bytes]:
    """The answers that came before their question, or without it."""
    asked = set()
    early = []
    for message in seen:
        if message.startswith(b"MSG question/"):
            asked.add(message)
        elif message.replace(b"answer", b"question") not in asked:
            early.append(message)
    return early


def ask(client: RawClient, own: int, count: int, window: int) -> None:
    """Ask `count` questions, at most `window` of them unanswered."""
    for number in range(count):
        client.pub(b"question/%d/%d" % (own, number), b"")
        if number >= window:
            assert client.receive().startswith(b"MSG answer/")
    for _ in range(min(window, count)):
        assert client.receive().startswith(b"MSG answer/")


def answer(hears: RawClient, answers: RawClient, count: int) -> None:
    """Answer every question of one asker, each on the other connection."""
    for _ in range(count):
        key = hears.receive().removeprefix(b"MSG ").partition(b"\0")[0]
        answers.pub(key.replace(b"question", b"answer"), b"")


@pytest.mark.parametrize("workers", [2, 4])
def test_watchers_on_every_worker_see_questions_first(tmp_path: Path, workers: int) -> None:
    """Many at the same time: four services, whose two connections have different workers."""
    services, count = 4, 250
    with (
        running_bus(tmp_path, workers=workers) as bus,
        clients_on_each(bus, workers, 1 + 3 * services) as places,
    ):
        watchers = [clients[0] for clients in places]
        for watcher in watchers:
            watcher.sub(b"")
            watcher.whoami()
        calls = []
        for own in range(services):
            asks, hears, answers = (
                places[(own + shift) % workers][1 + 3 * own + shift] for shift in range(3)
            )
            asks.sub(b"answer/%d/" % own)
            hears.sub(b"question/%d/" % own)
            asks.whoami()
            hears.whoami()
            calls += [partial(ask, asks, own, count, 20), partial(answer, hears, answers, count)]
        run_together(*calls)

        seen = [watcher.sync() for watcher in watchers]
        for sequence in seen:
            assert len(sequence) == len(set(sequence)) == 2 * services * count
            assert early_answers(sequence) == []
        assert_one_order(seen)
