"""Reload: nothing changes on a mistake, one at a time, and workers that lag behind are named."""

import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from sbus.broker.config.resolution import Configuration, ConfigurationSource
from sbus.broker.config.settings import BusSettings
from sbus.broker.front import name_search
from sbus.broker.front import reload as reload_module
from sbus.broker.front.client_registry import ClientRegistry
from sbus.broker.front.name_search import find_names
from sbus.broker.front.reload import Parts, Reloader
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.front.upgrade import Upgrader
from sbus.broker.ipc.upgrade_link import UpgradeFailed
from sbus.errors import ConfigurationError
from sbus.limits import Limits
from sbus.protocol.admin_results import ReloadResult
from sbus.unix.notify import Notifier
from tests.support.events import logging_to
from tests.unit.broker.front.test_user_limits import user_limits_of
from tests.unit.shared.memories import spare_slots

BEFORE = Configuration(settings=BusSettings(workers=2))
AFTER = Configuration(settings=BusSettings(workers=2, limits=Limits(quantum_units=7)))
APPLIED = ReloadResult(["limits.quantum_units"], [])


class FakeSupervisor:
    """Records the settings it gets; the workers in `behind` do not apply them."""

    def __init__(self) -> None:
        self.told: list[Limits] = []
        self.behind: list[int] = []

    def distribute_settings(self, limits: Limits, memfd: int) -> None:
        os.close(memfd)
        self.told.append(limits)

    async def wait_until_settings_applied(self, _seconds_max: float) -> list[int]:
        await trio.lowlevel.checkpoint()
        return self.behind


class Scene:
    def __init__(self) -> None:
        self.reread: Callable[[], Configuration] = lambda: AFTER
        self.look_up_again = fails(AssertionError("nobody asks for names"))
        self.supervisor = FakeSupervisor()
        self.applied: list[BusSettings] = []
        self.user_limits = user_limits_of({})[0]
        self.reloader = Reloader(
            BEFORE,
            ConfigurationSource(lambda: self.reread(), lambda: self.look_up_again()),
            ClientRegistry(2, spare_slots()),
            cast(Supervisor, self.supervisor),
            Parts(self.user_limits, [self]),
            Notifier(),
        )

    def apply_settings(self, settings: BusSettings) -> None:
        self.applied.append(settings)

    def is_untouched(self) -> bool:
        return self.reloader.in_force == BEFORE and not self.supervisor.told and not self.applied


@pytest.fixture
async def scene() -> Scene:
    return Scene()


def fails(error: Exception) -> Callable[[], Configuration]:
    def reread() -> Configuration:
        raise error

    return reread


async def test_what_changed_is_in_force(scene: Scene) -> None:
    assert await scene.reloader.reload() == APPLIED
    assert scene.reloader.in_force == AFTER
    assert scene.supervisor.told == [AFTER.settings.limits]
    assert scene.applied == [AFTER.settings]
    assert await scene.reloader.reload() == ReloadResult([], [])


async def test_what_was_changed_by_hand_is_as_configured_again(scene: Scene) -> None:
    scene.user_limits.change(1000, {"connections_max": 7, "subscriptions_max": 10_000})
    usual = AFTER.settings.limits.user
    scene.user_limits.change(1000, {"messages_per_second_max": usual.messages_per_second_max})
    result = await scene.reloader.reload()
    changed = ["users.1000.connections_max", "users.1000.subscriptions_max"]
    assert result.applied == [*APPLIED.applied, *changed]
    assert scene.user_limits.limits_of(1000) == usual
    assert (await scene.reloader.reload()).applied == []


async def test_a_worker_that_does_not_apply_it_is_named(scene: Scene) -> None:
    scene.supervisor.behind = [1]
    assert (await scene.reloader.reload()).unanswered == [1]
    assert scene.reloader.in_force == AFTER, "it will, when it goes on"


@pytest.mark.parametrize(
    "error",
    [ConfigurationError("rules[0]: no"), OSError(24, "Too many open files"), RuntimeError("no")],
)
async def test_on_a_mistake_nothing_changes(scene: Scene, error: Exception) -> None:
    scene.reread = fails(error)
    with pytest.raises(ConfigurationError) as refused:
        await scene.reloader.reload()
    assert str(error.args[-1]) in str(refused.value)
    assert scene.is_untouched()
    scene.reread = lambda: AFTER
    assert await scene.reloader.reload() == APPLIED


async def test_without_descriptors_nothing_changes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memfd(_what: Any) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(reload_module, "write_owning_memfd", no_memfd)
    with pytest.raises(ConfigurationError, match=r"cannot be told .*: Too many open files"):
        await scene.reloader.reload()
    assert scene.is_untouched()


async def test_a_directory_that_does_not_answer_delays_nothing_else(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the loop, nor what is reloaded later."""
    answers = threading.Event()

    def hang() -> Configuration:
        answers.wait(60)
        return AFTER

    monkeypatch.setattr(reload_module, "READ_SECONDS_MAX", 0.05)
    scene.reread = hang
    try:
        with pytest.raises(ConfigurationError, match="does the host's directory of users answer"):
            await scene.reloader.reload()
        assert scene.is_untouched()
        scene.reread = lambda: AFTER
        monkeypatch.setattr(reload_module, "READ_SECONDS_MAX", 20)
        assert await scene.reloader.reload() == APPLIED
    finally:
        answers.set()


async def test_reloads_happen_one_after_the_other(scene: Scene) -> None:
    """So that the last request applies the file as it is then."""
    reading = threading.Lock()
    count = 0

    def read() -> Configuration:
        nonlocal count
        assert reading.acquire(blocking=False), "two read at the same time"
        count += 1
        reading.release()
        return AFTER

    scene.reread = read
    async with trio.open_nursery() as tasks:
        for _ in range(5):
            tasks.start_soon(scene.reloader.reload)
    assert count == 5


async def test_a_cancelled_reload_changes_nothing_or_everything(scene: Scene) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await scene.reloader.reload()
    assert scope.cancelled_caught
    assert scene.is_untouched()
    assert await scene.reloader.reload() == APPLIED


# -- names that were not found at the start --------------------------------------------------------
def upgrader_of_nothing() -> Upgrader:
    own = cast(Any, SimpleNamespace(is_draining=False, is_handed_over=False))
    return Upgrader(own, own, own, own, logging_to([]), Notifier())


def missing(*names: str) -> Configuration:
    """A configuration that follows from BEFORE when all but these names are found."""
    return msgspec.structs.replace(AFTER if names != ("a", "b") else BEFORE, missing_names=names)


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads look names up, so a clock that jumps would take them for late."""
    monkeypatch.setattr(name_search, "LOOK_UP_SECONDS", 0.0)


@pytest.mark.usefixtures("without_pauses")
async def test_names_that_are_found_later_are_in_force_from_then_on(scene: Scene) -> None:
    scene.reloader.in_force = missing("a", "b")
    answers: list[Callable[[], Configuration]] = [
        lambda: missing("a", "b"),
        fails(ConfigurationError("the directory does not answer")),
        fails(ConfigurationError("the directory does not answer")),
        lambda: missing("b"),
        lambda: missing(),
    ]
    log: list[str] = []
    scene.look_up_again = lambda: answers.pop(0)()
    await find_names(scene.reloader, upgrader_of_nothing(), logging_to(log))
    assert not answers
    assert scene.applied == [AFTER.settings, AFTER.settings]
    text = "users and groups of the configuration that are not found:"
    assert log == [
        f"{text} 2 (a, b)",
        "configuration rejected, nothing changes: the directory does not answer",
        f"{text} 1 (b)",
        f"{text} 0 (nothing)",
    ]


@pytest.mark.usefixtures("without_pauses")
async def test_names_that_are_found_leave_what_was_changed_by_hand(scene: Scene) -> None:
    found = msgspec.structs.replace(Limits().user, subscriptions_max=5)
    settings = msgspec.structs.replace(AFTER.settings, user_limits={2000: found})
    scene.reloader.in_force = missing("a", "b")
    scene.user_limits.change(1000, {"connections_max": 7})
    scene.user_limits.change(2000, {"connections_max": 8})
    account = scene.user_limits.open_account(1000)
    assert account is not None
    scene.look_up_again = lambda: Configuration(settings=settings, user_names={2000: "a"})
    await find_names(scene.reloader, upgrader_of_nothing(), logging_to([]))
    assert scene.reloader.in_force.settings == settings
    assert scene.user_limits.limits_of(1000).connections_max == 7
    account.count_connection(7)
    assert not account.has_room_for_connection()
    assert scene.user_limits.limits_of(2000) == msgspec.structs.replace(found, connections_max=8)


@pytest.mark.usefixtures("without_pauses")
async def test_names_that_are_found_during_an_upgrade_are_applied_after_it(scene: Scene) -> None:
    scene.reloader.in_force = missing("a", "b")
    upgrader, looked_up = upgrader_of_nothing(), 0
    upgrade = upgrader.attempt()
    over = trio.Event()

    def begin_upgrade() -> None:
        nonlocal looked_up
        looked_up += 1
        if looked_up == 1:
            upgrade.__enter__()
        elif looked_up == 3:
            over.set()

    def look_up() -> Configuration:
        trio.from_thread.run_sync(begin_upgrade)
        return missing()

    scene.look_up_again = look_up
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(find_names, scene.reloader, upgrader, logging_to([]))
            await over.wait()
            assert scene.reloader.in_force == missing("a", "b")
            upgrade.__exit__(None, None, None)
    assert scene.reloader.in_force == missing()


@pytest.mark.usefixtures("without_pauses")
async def test_no_upgrade_begins_while_names_are_applied(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.reloader.in_force = missing("a", "b")
    scene.look_up_again = missing
    upgrader = upgrader_of_nothing()

    async def begin_upgrade(_self: Reloader, _rules: object) -> dict[int, bytes]:
        with pytest.raises(UpgradeFailed, match="the bus is changing"), upgrader.attempt():
            raise AssertionError
        return {}

    monkeypatch.setattr(Reloader, "_rules_by_client", begin_upgrade)
    await find_names(scene.reloader, upgrader, logging_to([]))
    assert scene.reloader.in_force == missing()


@pytest.mark.usefixtures("without_pauses")
async def test_names_are_not_looked_up_after_a_reload(scene: Scene) -> None:
    scene.reloader.in_force = missing("a", "b")
    scene.look_up_again = lambda: missing("a", "b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.reloader.reload)
        await find_names(scene.reloader, upgrader_of_nothing(), logging_to([]))
    assert scene.reloader.in_force == AFTER


async def test_a_look_up_that_hangs_is_the_only_one_and_keeps_no_reload_waiting(
    scene: Scene,
) -> None:
    scene.reloader.in_force = missing("a", "b")
    begun, answers, look_ups = trio.Event(), threading.Event(), list[int]()

    def hang() -> Configuration:
        look_ups.append(threading.get_ident())
        trio.from_thread.run_sync(begun.set)
        assert answers.wait(60)
        return missing("b")

    scene.look_up_again = hang

    async def look_up_and_apply() -> None:
        await scene.reloader.apply_names(await scene.reloader.look_up_names())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look_up_and_apply)
        await begun.wait()
        with trio.move_on_after(0.01):
            await scene.reloader.look_up_names()
        assert len(look_ups) == 1
        await scene.reloader.reload()
        assert scene.reloader.in_force == AFTER
        answers.set()
    assert scene.reloader.in_force == AFTER, "the answer came too late"
