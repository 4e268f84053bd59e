"""Watched processes: no user has so many watched that others have none."""

from typing import cast

import pytest

from sbus.broker.delivery.secret_recipient import SecretRecipient
from sbus.broker.worker import watched_processes
from sbus.broker.worker.watched_processes import WatchedProcesses
from sbus.errors import Refusal


class Client:
    """A client whose process can be watched, or not."""

    def __init__(self) -> None:
        self.times_watched = 0
        self.failure: Refusal | None = None

    def watch_process(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.times_watched += 1


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> WatchedProcesses:
    monkeypatch.setattr(watched_processes, "watched_processes_max", lambda: 12)
    return WatchedProcesses()


def add(watched: WatchedProcesses, uid: int) -> list[SecretRecipient]:
    """As many clients of a user as its share has room for."""
    added: list[SecretRecipient] = []
    while True:
        client = cast(SecretRecipient, Client())
        try:
            watched.add(client, uid)
        except Refusal:
            return added
        added.append(client)


def test_a_user_leaves_as_many_to_others_as_it_has(watched: WatchedProcesses) -> None:
    assert [len(add(watched, uid)) for uid in (1, 2, 3)] == [6, 3, 2]


def test_a_client_counts_once_until_it_leaves(watched: WatchedProcesses) -> None:
    clients = add(watched, 1)
    for client in clients:
        watched.add(client, 1)
        assert cast(Client, client).times_watched == 1
    for client in clients:
        watched.discard(client)
        watched.discard(client)
    assert not any([watched._accounts, watched._by_user])
    assert len(add(watched, 1)) == 6


def test_what_was_watched_before_is_watched_again_in_any_order(watched: WatchedProcesses) -> None:
    by_user = {uid: add(watched, uid) for uid in (1, 2, 3)}
    again = WatchedProcesses()
    for uid in (3, 2, 1):
        for client in by_user[uid]:
            again.restore(client, uid)
            again.restore(client, uid)
    assert again._accounts == watched._accounts


def test_no_more_are_watched_again_than_a_worker_may_watch(watched: WatchedProcesses) -> None:
    for _ in range(12):
        watched.restore(cast(SecretRecipient, Client()), 1)
    with pytest.raises(Refusal, match="one worker may watch 12 processes"):
        watched.restore(cast(SecretRecipient, Client()), 1)
    assert add(watched, 2) == []


def test_a_process_that_cannot_be_watched_does_not_count(watched: WatchedProcesses) -> None:
    client = Client()
    client.failure = Refusal("too-many-secret", "no descriptors")
    with pytest.raises(Refusal, match="no descriptors"):
        watched.add(cast(SecretRecipient, client), 1)
    assert len(add(watched, 1)) == 6
