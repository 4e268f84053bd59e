"""An upgrade whose start fails, or whose new program does, leaves the bus and its files as they
should be."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from sbus.broker.front.hand_over import HandOverResult
from sbus.broker.front.upgrade import Estate, ProgramCommand, Upgrader
from sbus.broker.ipc.upgrade_link import UpgradeFailed
from sbus.unix.bus_files import BusFiles
from sbus.unix.notify import Notifier
from sbus.unix.owned_path import OwnedPath
from sbus.unix.users import Identity
from tests.support.events import logging_to


class Scene:
    """Also the hand-over, which commits and then fails; the shutdown and the client store."""

    def __init__(self, path: Path) -> None:
        self.lines: list[str] = []
        self.failure: Exception | None = None
        self.is_draining = False
        self.is_handed_over = False
        self.has_finished = False
        path.touch()
        self.files = BusFiles([OwnedPath.claim(str(path))])
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        estate = Estate(
            listener=self.listener,
            admin_listener=None,
            is_inherited=False,
            dialect="slash",
            files=self.files,
            owner=Identity.of_this_process(),
            command=ProgramCommand(["/bin/true"], "/", {}),
        )
        own = cast("Any", self)
        self.upgrader = Upgrader(own, estate, own, own, logging_to(self.lines), Notifier())

    async def run(
        self, _link: socket.socket, _offer: object, _fds: list[int], on_commit: Any
    ) -> HandOverResult:
        on_commit()
        assert not self.files.is_ours
        raise UpgradeFailed("the new one has failed")

    def hand_over(self) -> None:
        self.is_handed_over = True

    def finish_hand_over(self) -> None:
        self.has_finished = True

    def fail(self, error: Exception) -> None:
        self.failure = error

    def give_up(self) -> None:
        pass


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "bus")
    yield made
    made.listener.close()


async def test_a_bus_takes_its_files_back_from_one_that_failed(scene: Scene) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(UpgradeFailed), scene.upgrader.attempt():
        await scene.upgrader.hand_over_to(ours)
    assert str(scene.failure) == "the new one has failed"
    assert scene.files.is_ours
    assert scene.has_finished


async def test_a_bus_changes_or_is_handed_over_but_never_both(scene: Scene) -> None:
    with (
        scene.upgrader.change(),
        pytest.raises(UpgradeFailed, match="as by a reload"),
        scene.upgrader.attempt(),
    ):
        raise AssertionError
    with (
        pytest.raises(UpgradeFailed, match="another program is taking over"),
        scene.upgrader.attempt(),
        scene.upgrader.change(),
    ):
        raise AssertionError


async def test_a_bus_without_descriptors_serves_as_before(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pidfd_open(_pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    ours, theirs = socket.socketpair()
    why = "cannot hand over: Too many open files"
    with ours, theirs, pytest.raises(UpgradeFailed, match=why), scene.upgrader.attempt():
        await scene.upgrader.hand_over_to(ours)
    assert scene.lines == [f"no other program has taken over the bus: {why}"]
    assert scene.files.is_ours
    assert not scene.upgrader.is_running
