"""Another program takes the place of the bus, and its clients notice nothing."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sbus.client.admin import AdminConnection
from sbus.client.streams import EventStream, MessageStream
from sbus.protocol.controls import end_notice
from tests.support.admin import Admin, administer, own_user
from tests.support.bus import (
    BARE_SBUSD,
    SBUSD,
    STOP_SECONDS_MAX,
    Bus,
    bus_of,
    refusal,
    running_bus,
    sbusd_environment,
    wait_for_end_of_output,
    wait_until_gone,
)
from tests.support.daemon import daemon_in, end, exchange, launch
from tests.support.processes import clients_on_each, several_clients, worker_pids
from tests.support.raw_client import RawClient
from tests.support.threads import wait_until
from tests.support.upgrades import (
    ChangingBus,
    changing_bus,
    ending_bus,
    read_to_end,
    reason_of_end,
    serving_pid,
    upgrade,
    upgrade_fault,
)
from tests.support.users import STRANGER, as_user, directory_for_everybody, needs_root

STOPS_SOON = ("--limit", "stop_seconds_max=0.2")
"""For a bus whose workers are frozen when it is told to stop."""


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[ChangingBus]:
    with changing_bus(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def lasting_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChangingBus]:
    with changing_bus(tmp_path_factory.mktemp("lasting")) as made:
        yield made


@pytest.fixture
def lasting(lasting_bus: ChangingBus) -> ChangingBus:
    """One bus for several tests; each of them leaves it serving."""
    lasting_bus.set_workers(2)
    lasting_bus.run_first("")
    return lasting_bus


@contextmanager
def kept_subscription(bus: Bus) -> Iterator[None]:
    """A client subscribes before the block, and receives what another one publishes behind it."""
    with several_clients(bus, 2) as (client, other):
        client.sub(b"k")
        client.whoami()
        yield
        other.pub(b"k", b"1")
        assert client.receive() == b"MSG k\x001"


@contextmanager
def told_client(directory: Path) -> Iterator[tuple[ChangingBus, RawClient]]:
    """A bus that may end, and a client that is told why."""
    with (
        ending_bus(directory, *STOPS_SOON) as changing,
        several_clients(changing.bus, 1) as (client,),
    ):
        client.control(b"!/notices/on")
        client.sync()
        yield changing, client


# -- what clients have -----------------------------------------------------------------------------
def test_fewer_workers_do_not_take_over_if_they_have_no_places_for_blocking_clients(
    tmp_path: Path,
) -> None:
    limit = ("--limit", "blocking_clients_max=4")  # a user leaves half of a worker's to others
    with (
        changing_bus(tmp_path, *limit, workers=3) as changing,
        several_clients(changing.bus, 6) as clients,
    ):
        for client in clients:
            client.control(b"!/notices/on")
            client.control(b"blocking/hard/block")
            client.sub(b"k")
            assert client.sync() == []
        changing.set_workers(1)
        assert "one worker may have 4 clients that hold" in upgrade_fault(changing.bus)
        changing.set_workers(2)
        upgrade(changing.bus)
        with administer(changing.bus) as admin:
            user = own_user(admin)
        assert user["blocking_clients"] == len(clients)
        clients[0].pub(b"k", b"1")
        for client in clients:
            assert client.receive() == b"MSG k\x001"


def test_counters_limits_and_numbers_go_on(changing: ChangingBus) -> None:
    with several_clients(changing.bus, 2) as (client, _), administer(changing.bus) as admin:
        client.sub(b"k")
        for _ in range(5):
            client.pub(b"k", b"")
        client.sync()
        uids = (os.geteuid(), STRANGER)  # the stranger has no account
        for uid in uids:
            admin.ask("limit", uid=uid, limits={"connections_max": 17})
        before = admin.ask("stats")
        upgrade(changing.bus)
        with administer(changing.bus) as new_admin:
            after = new_admin.ask("stats")
            limits = [new_admin.ask("limit", uid=uid)["after"] for uid in uids]
            with changing.bus.connect() as third:
                third.whoami()
                numbers = [one["client"] for one in new_admin.ask("clients")["clients"]]
        assert [it["connections_max"] for it in limits] == [17, 17]
        for name in ("messages_in", "accepted", "delivered", "bytes_in"):
            assert after["traffic"][name] == before["traffic"][name] > 0
        assert after["connections_accepted"] == 2
        assert numbers == [1, 2, 3]


def test_streams_end_with_a_reason(lasting: ChangingBus) -> None:
    with ExitStack() as stack:
        events, messages = (
            kind(stack.enter_context(AdminConnection(lasting.bus.address)))
            for kind in (EventStream, MessageStream)
        )
        upgrade(lasting.bus)
        assert "another process serves the bus now" in reason_of_end(messages)
        seen, reason = read_to_end(events)
        assert "another process serves the bus now" in reason
        assert "bus-handed-over" in [event["event"] for event in seen if isinstance(event, dict)]


# -- a new program that cannot take over -----------------------------------------------------------
def test_a_rejected_configuration_changes_nothing(lasting: ChangingBus) -> None:
    with kept_subscription(lasting.bus):
        lasting.configure({"worker": 2})
        assert "worker" in upgrade_fault(lasting.bus)
        lasting.configure({"workers": 2})
        upgrade(lasting.bus)


def test_a_bus_that_is_handed_over_is_not_changed(lasting: ChangingBus, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    lasting.run_first(
        f"own = pathlib.Path({str(tmp_path / 'own')!r})\n"
        "own.write_text(str(os.getpid()))\n"
        f"own.rename({str(begun)!r})\n"
        "time.sleep(60)"
    )
    with (
        lasting.bus.connect() as client,
        administer(lasting.bus) as upgrading,
        administer(lasting.bus) as admin,
    ):
        client.whoami()
        number = max(listed["client"] for listed in admin.ask("clients")["clients"])
        requests: dict[str, dict[str, Any]] = {
            "drain": {},
            "kick": {"client": number},
            "limit": {"uid": 1, "limits": {"connections_max": 5}},
            "move": {"client": number, "worker": 1},
            "reload": {},
        }
        upgrading.sock.send(b'{"verb": "upgrade"}')
        wait_until(begun.exists, "the new program has started")
        for verb, options in requests.items():
            code, text = admin.fault(verb, **options)
            assert (code, "another program is taking over" in text) == ("failed", True)
        with take_over(lasting.bus) as other:
            assert other.stderr is not None
            assert b"another program is taking over already" in other.stderr.read()
        os.kill(int(begun.read_text()), signal.SIGKILL)
        assert "has ended" in upgrading.receive()["error"]["text"]
        assert admin.ask("kick", client=number)["client"] == number


STOP_IN_TAKE_OVER = """
import signal, trio
from sbus.broker.front.take_over import TakeOver
take = TakeOver._take_bus
async def stopped(self, link, record, *, is_final):
    if is_final is {is_final}:
        os.kill(os.getpid(), signal.SIGTERM)
        await trio.sleep_forever()
    await take(self, link, record, is_final=is_final)
TakeOver._take_bus = stopped
"""
STOP_BEFORE_HANDLERS = """
import signal
import sbus.broker.bus as module
check = module.check_settings
def stopped(settings):
    os.kill(os.getpid(), signal.SIGTERM)
    check(settings)
module.check_settings = stopped
"""
TOLD_TO_STOP = "the new program was told to stop"
CHANGES_NOTHING = {
    "another dialect": (
        "",
        {"dialect": "dot"},
        "the bus has the dialect 'slash', and its clients would not understand 'dot': stop it, and "
        "start it again",
    ),
    "it exits": ("sys.exit(3)", {}, "the new program has ended"),
    "another major version": (
        "import sbus.broker.ipc.client_record as module; module.VERSION = (2, 0)",
        {},
        "the new program: records of version 2.0 cannot be read here, only 1.x",
    ),
    "a stop while it starts": (STOP_BEFORE_HANDLERS, {}, TOLD_TO_STOP),
    "a stop while it prepares": (STOP_IN_TAKE_OVER.format(is_final=False), {}, TOLD_TO_STOP),
    "a stop in the pause": (STOP_IN_TAKE_OVER.format(is_final=True), {}, TOLD_TO_STOP),
}
"""A program that runs first, the configuration, and why there is no upgrade."""


@pytest.mark.parametrize(
    ("script", "configuration", "why"), CHANGES_NOTHING.values(), ids=CHANGES_NOTHING.keys()
)
def test_a_program_that_does_not_start_changes_nothing(
    lasting: ChangingBus, script: str, configuration: dict[str, Any], why: str
) -> None:
    with kept_subscription(lasting.bus):
        lasting.run_first(script)
        if configuration:
            lasting.configure(configuration)
        assert upgrade_fault(lasting.bus) == why


DIES_AT = (
    ("sbus.broker.worker.snapshot_restorer", "SnapshotRestorer.prepare"),
    ("sbus.broker.worker.snapshot_restorer", "SnapshotRestorer._restore"),
    ("sbus.broker.front.client_restorer", "ClientRestorer.forget_missing"),
)
"""While it prepares, while it restores, and before it has adopted."""


def test_a_process_that_dies_on_the_way_changes_nothing(lasting: ChangingBus) -> None:
    for module, method in DIES_AT:
        kind = method.partition(".")[0]
        lasting.run_first(
            f"from {module} import {kind}\n{method} = lambda *_, **__: os.kill(os.getpid(), 9)"
        )
        with kept_subscription(lasting.bus):
            assert upgrade_fault(lasting.bus)
    lasting.run_first("")
    with kept_subscription(lasting.bus):
        upgrade(lasting.bus)


def test_a_worker_that_dies_just_before_the_commit_is_replaced(changing: ChangingBus) -> None:
    with several_clients(changing.bus, 4) as clients:
        for client in clients:
            client.sub(b"k")
            client.whoami()
        changing.run_first(
            "import sbus.broker.front.take_over as module\n"
            "send = module.send_when_possible\n"
            "async def killing(link, message, *fds):\n"
            "    if isinstance(message, module.link_protocol.Adopted):\n"
            "        for worker in supervisors[0].workers:\n"
            "            pidfd = os.pidfd_open(worker.pid)\n"
            "            worker.kill()\n"
            "            await module.trio.lowlevel.wait_readable(pidfd)\n"
            "    await send(link, message, *fds)\n"
            "module.send_when_possible = killing\n"
            "supervisors = []\n"
            "delay = module.Supervisor.delay_replacing\n"
            "def delay_replacing(self):\n"
            "    supervisors.append(self)\n"
            "    delay(self)\n"
            "module.Supervisor.delay_replacing = delay_replacing"
        )
        assert upgrade(changing.bus)["clients"] == len(clients)
        clients[0].pub(b"k", b"1")
        for client in clients:
            assert client.receive() == b"MSG k\x001"


def test_receipts_are_told_that_are_open_when_an_upgrade_begins(changing: ChangingBus) -> None:
    """Their recipient's worker does not run until there is the new program."""
    pid = worker_pids(changing.bus)[1]
    with clients_on_each(changing.bus, 2) as ((publisher,), (reader,)):
        reader.sub(b"k")
        reader.whoami()
        changing.run_first(f"os.kill({pid}, {int(signal.SIGCONT)})")
        os.kill(pid, signal.SIGSTOP)
        for number in range(2):
            publisher.send(b"CMSG !/publish\0%d\0k\0" % number)
        publisher.whoami()
        assert upgrade(changing.bus)["clients"] == 2
        receipts = [publisher.receive() for _ in range(2)]
        assert receipts == [b"CMSG !/receipt\0%d\x001 0 0" % number for number in range(2)]
        assert [reader.receive() for _ in range(2)] == [b"MSG k\0"] * 2


def test_the_new_bus_goes_on_if_the_old_one_is_killed_meanwhile(changing: ChangingBus) -> None:
    """Once the new one has all clients, and the old one is frozen."""
    front = changing.bus.process.pid
    with kept_subscription(changing.bus):
        changing.run_first(
            "import sbus.broker.front.take_over as module\n"
            "forget = module.ClientRestorer.forget_missing\n"
            "def killing(self, record):\n"
            "    forget(self, record)\n"
            f"    os.kill({front}, 9)\n"
            "module.ClientRestorer.forget_missing = killing"
        )
        with administer(changing.bus) as admin:
            admin.sock.send(b'{"verb": "upgrade"}')
            assert changing.bus.process.wait(STOP_SECONDS_MAX) == -signal.SIGKILL
        assert serving_pid(changing.bus) != front


FAIL_BEFORE_COMMIT = """
import sbus.broker.front.take_over as module
async def failing(link, message, *fds):
    if isinstance(message, module.link_protocol.Adopted):
        raise module.UpgradeFailed("the new program fails")
    await send(link, message, *fds)
send, module.send_when_possible = module.send_when_possible, failing
"""


def refuses_descriptors(bus: Bus) -> bool:
    """Whether the kernel refuses packets with descriptors on a new connection."""
    with bus.connect() as client, open(os.devnull) as file:
        try:
            socket.send_fds(client.sock, [b"!"], [file.fileno()])
        except PermissionError:
            return True
    return False


def test_a_program_that_does_not_take_over_changes_nothing(changing: ChangingBus) -> None:
    before = refuses_descriptors(changing.bus)
    changing.configure({"workers": 2, "disconnect_descriptors": True})
    changing.run_first(FAIL_BEFORE_COMMIT)
    assert upgrade_fault(changing.bus) == "the new program fails"
    assert refuses_descriptors(changing.bus) == before
    changing.run_first("")
    upgrade(changing.bus)
    assert not refuses_descriptors(changing.bus)


def files_left(bus: Bus) -> list[str]:
    return [path for path in (bus.address, f"{bus.address}.admin") if os.path.lexists(path)]


AFTER_COMMIT = """
import select, signal
import sbus.broker.front.take_over as module
receive = module._receive
async def received(link):
    message, fds = await receive(link)
    if isinstance(message, module.link_protocol.Commit):
        {do}
    return message, fds
module._receive = received
"""


def test_an_old_bus_that_is_told_to_stop_after_the_commit_still_announces_the_new_one(
    changing: ChangingBus,
) -> None:
    front = changing.bus.process.pid
    with kept_subscription(changing.bus):
        stop = f"os.kill({front}, signal.SIGTERM); select.select([link], [], [], 0.5)"
        changing.run_first(AFTER_COMMIT.format(do=stop))
        assert upgrade(changing.bus)["clients"] == 2


def test_both_buses_may_be_told_to_stop_after_the_commit(tmp_path: Path) -> None:
    """As by `systemctl stop`. The new one has not said yet that it serves."""
    with told_client(tmp_path) as (changing, client):
        stop = f"os.kill({changing.bus.process.pid}, signal.SIGTERM)"
        wait, end = "select.select([link], [], [], 0.5)", "os.kill(os.getpid(), signal.SIGKILL)"
        changing.run_first(AFTER_COMMIT.format(do=f"{stop}; {wait}; {end}"))
        assert changing.bus.sbusctl("upgrade").returncode == 1
        assert client.receive_until_closed() == [end_notice("stopping")]
        assert changing.bus.process.wait(STOP_SECONDS_MAX) == 0
        assert files_left(changing.bus) == []


def test_a_new_bus_that_dies_after_the_commit_is_reported(tmp_path: Path) -> None:
    with told_client(tmp_path) as (changing, client):
        changing.run_first(AFTER_COMMIT.format(do="os.kill(os.getpid(), signal.SIGKILL)"))
        why = "no bus serves any more, because the new one has failed: the new program has ended"
        with administer(changing.bus) as admin:
            assert admin.fault("upgrade") == ("failed", why)
        assert client.receive_until_closed() == [end_notice("bus-failed")]
        assert changing.bus.process.wait(STOP_SECONDS_MAX) == 1
        # The fork server of the new bus reports its front, before or after.
        assert f"sbusd: {why}\n" in changing.bus.stderr_text()
        assert files_left(changing.bus) == []


FAILS_ALONE = """
from sbus.broker.front.supervisor import Supervisor
from sbus.errors import SbusError
def failing(self):
    while os.getppid() == {front}:
        time.sleep(0.01)
    raise SbusError("the new bus fails")
Supervisor.start_replacing = failing
"""


def test_a_new_bus_that_fails_after_the_old_one_has_ended_leaves_no_files(tmp_path: Path) -> None:
    with told_client(tmp_path) as (changing, client):
        changing.run_first(FAILS_ALONE.format(front=changing.bus.process.pid))
        with administer(changing.bus) as admin:
            admin.ask("upgrade")
        assert client.receive_until_closed() == [end_notice("bus-failed")]
        wait_until(lambda: not files_left(changing.bus), "no file is left")
        said = "sbusd: the new bus fails\n"
        wait_until(lambda: said in changing.bus.stderr_text(), "the new bus says why")


# -- sbusd --take-over -----------------------------------------------------------------------------
def take_over(bus: Bus, *options: str) -> subprocess.Popen[bytes]:
    """A program in the foreground that has taken over, or has ended."""
    arguments = ("--take-over", "-f", "-a", bus.address, *options)
    process = subprocess.Popen(
        [*SBUSD, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=sbusd_environment(),
    )
    wait_for_end_of_output(process, STOP_SECONDS_MAX)
    return process


def test_a_program_with_another_command_line_takes_over(tmp_path: Path) -> None:
    with running_bus(tmp_path, command=SBUSD) as bus, ExitStack() as stack:
        with kept_subscription(bus):
            process = stack.enter_context(take_over(bus, "--workers", "3"))
            assert bus.process.wait(STOP_SECONDS_MAX) == 0
            assert serving_pid(bus) == process.pid
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_SECONDS_MAX)
        assert not os.path.lexists(bus.address)


def test_where_no_bus_runs_there_is_nothing_to_take_over(tmp_path: Path) -> None:
    said = refusal(*SBUSD, "--take-over", "-f", "-a", str(tmp_path / "bus"))
    assert "is sbusd running there" in said


@needs_root
def test_other_administrators_may_not_take_over() -> None:
    with directory_for_everybody() as directory:
        options = ("--others", "--admin-group", str(STRANGER))
        with running_bus(directory, *options, command=SBUSD) as bus:

            def is_refused() -> bool:
                with administer(bus) as admin:
                    assert admin.ask("version")
                    return admin.fault("takeover")[0] == "not-allowed"

            assert as_user(is_refused)


def test_where_a_program_was_started_instead_of_a_directory_that_is_gone(tmp_path: Path) -> None:
    directory, moved = tmp_path / "directory", tmp_path / "moved"
    directory.mkdir()
    (directory / "sbus.toml").touch()
    launch(directory, "--config", "sbus.toml")
    directory.rename(moved)
    with daemon_in(moved), Admin(str(moved / "bus.admin")) as admin:
        _, text = admin.fault("upgrade")
        assert "sbus.toml" in text
        assert text.endswith(f"(started in /, because {directory} cannot be entered)")


# -- files -----------------------------------------------------------------------------------------
def test_the_pidfile_belongs_to_the_new_bus(tmp_path: Path) -> None:
    launch(tmp_path)
    with daemon_in(tmp_path) as old:
        with Admin(str(tmp_path / "bus.admin")) as admin:
            assert admin.ask("upgrade")["pid"] == int((tmp_path / "pid").read_text()) != old
        with daemon_in(tmp_path) as new:
            assert wait_until_gone(old, STOP_SECONDS_MAX)
            exchange(tmp_path / "bus")
            said = refusal(*SBUSD, "-r", "-a", "other", "-p", "pid", cwd=tmp_path)
            assert f"in use by process {new}" in said
            end(new)
            assert os.listdir(tmp_path) == []


def test_a_bus_without_a_pidfile_gets_none(tmp_path: Path) -> None:
    with running_bus(tmp_path, command=SBUSD) as bus, (tmp_path / "stderr").open("wb") as stderr:
        subprocess.run(
            [*SBUSD, "--take-over", "-a", bus.address, "-p", str(tmp_path / "pid")],
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            env=sbusd_environment(),
            check=True,
            timeout=STOP_SECONDS_MAX,
        )
        assert bus.process.wait(STOP_SECONDS_MAX) == 0
        assert "no pidfile" in (tmp_path / "stderr").read_text()
        assert not (tmp_path / "pid").exists()
        end(serving_pid(bus))


@needs_root
def test_the_remover_removes_the_files_of_the_new_bus() -> None:
    with directory_for_everybody() as directory:
        address = str(directory / "bus")
        as_service = ("--run-as", str(STRANGER), "--workers", "2")
        with bus_of(
            directory, "-foa", address, *as_service, address=address, command=BARE_SBUSD
        ) as bus:
            with RawClient(address) as client:
                client.whoami()
                new = subprocess.Popen(
                    [*BARE_SBUSD, "--take-over", "-foa", address, *as_service],
                    stdin=subprocess.DEVNULL,
                    env=sbusd_environment(),
                )
                with new:
                    assert bus.process.wait(STOP_SECONDS_MAX) == 0
                    client.whoami()
                    assert os.path.lexists(address)
                    new.send_signal(signal.SIGTERM)
            wait_until(lambda: not os.path.lexists(address), "the remover is done")
            wait_until(lambda: not os.path.lexists(f"{address}.admin"), "the remover is done")
