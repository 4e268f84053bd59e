"""`sbusctl request`, `reply` and `last-values` with a real bus."""

import os
import signal
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import sbus
from tests.support.bus import SBUSCTL, Bus, running_bus, sbusd_environment, wait_until_gone
from tests.support.processes import signal_asleep
from tests.support.sbusctl import RETRY_S, TIMEOUT_S, started


@pytest.fixture
def bus(shared_bus: Bus) -> Bus:
    return shared_bus


def publish_until_answered(bus: Bus, key: bytes) -> bytes:
    """The answer to one of many equal requests: then somebody answers under this key."""
    with bus.connect() as client:
        ids = client.whoami()
        client.sub(ids + b"/reply/1")
        for _ in range(int(TIMEOUT_S / RETRY_S)):
            client.pub(key, ids + b"/reply/1\0t\0long\n")
            with suppress(TimeoutError):
                return client.receive(RETRY_S)
    raise AssertionError("nobody answers")


def test_reply_answers_with_a_payload_and_ends_after_so_many_requests(bus: Bus) -> None:
    with started(bus, "reply", "motd", "nothing new", "--count", "1") as process:
        assert publish_until_answered(bus, b"motd").endswith(b"/reply/1\0t\0nothing new")
        assert process.wait(TIMEOUT_S) == 0


def test_request_prints_the_answer(bus: Bus) -> None:
    with sbus.blocking.connect(bus.address) as server, server.requests("upper") as requests:
        with started(bus, "request", "upper", "a\x1b") as process:
            request = requests.receive(timeout_seconds=TIMEOUT_S)
            request.reply(request.payload.upper())
            assert process.communicate(timeout=TIMEOUT_S) == (b"A\x1b", b"")
        with started(bus, "request", "upper") as process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.communicate(b"a\nb\n", timeout=RETRY_S)
            assert requests.receive(timeout_seconds=TIMEOUT_S).payload == b"a\nb\n"


def test_reply_answers_with_the_output_of_a_command(bus: Bus) -> None:
    command = 'test "$SBUS_KEY" = upper/fails && exit 3; tr a-z A-Z'
    with started(bus, "reply", "upper/*", "--exec", command):
        assert publish_until_answered(bus, b"upper/x").endswith(b"LONG\n")
        result = bus.sbusctl("request", "upper/fails", "x")
        assert result.returncode == 1
        assert result.stderr == b"sbusctl: the command failed with exit status 3\n"


def test_reply_says_that_an_answer_is_too_long(bus: Bus) -> None:
    with started(bus, "reply", "long", "--exec", "head -c 500000 /dev/zero"):
        assert b"too long" in publish_until_answered(bus, b"long")


def test_reply_kills_all_processes_of_a_command_that_takes_too_long(
    bus: Bus, tmp_path: Path
) -> None:
    mark = tmp_path / "pid"
    command = f"(echo $BASHPID > {mark}.new; mv {mark}.new {mark}; exec sleep 100); true"
    command = f"bash -c '{command}'; true"
    options = ("--exec-timeout", "1", "--count", "1")
    with started(bus, "reply", "group", "--exec", command, *options):
        assert publish_until_answered(bus, b"group").endswith(b"more than 1 s")
        assert wait_until_gone(int(mark.read_text()), TIMEOUT_S)


def test_reply_waits_for_no_process_that_a_command_has_left_behind(
    bus: Bus, tmp_path: Path
) -> None:
    mark = tmp_path / "pid"
    command = f"sleep 100 & echo $! > {mark}; echo started"
    with started(bus, "reply", "behind", "--exec", command, "--count", "1") as process:
        assert publish_until_answered(bus, b"behind").endswith(b"\0started\n")
        os.kill(int(mark.read_text()), signal.SIGKILL)  # it lives
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize(("ending", "status"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_reply_that_is_ended_kills_its_command_and_says_so(
    bus: Bus, tmp_path: Path, ending: signal.Signals, status: int
) -> None:
    mark = tmp_path / "pid"
    command = f"echo $$ > {mark}.new; mv {mark}.new {mark}; read word; exec sleep 100"
    with (
        started(bus, "reply", "interrupted", "--exec", command) as process,
        bus.connect() as client,
    ):
        ids = client.whoami()
        client.sub(ids + b"/reply/1")
        while not mark.exists():
            client.pub(b"interrupted", ids + b"/reply/1\0t\0word\n")
            client.whoami()
        signal_asleep(process.pid, ending)
        assert client.receive(TIMEOUT_S).startswith(
            b"MSG " + ids + b"/reply/1\0t!\0the command was killed"
        )
        assert process.wait(TIMEOUT_S) == status
        assert wait_until_gone(int(mark.read_text()), TIMEOUT_S)


def test_what_is_to_be_ignored_does_not_end_a_reply(bus: Bus) -> None:
    with started(bus, "reply", "motd", "x", before=("nohup",)) as process:
        publish_until_answered(bus, b"motd")
        process.send_signal(signal.SIGHUP)
        assert publish_until_answered(bus, b"motd").endswith(b"\0x")


def test_a_request_without_end_is_refused(bus: Bus) -> None:
    with open("/dev/zero", "rb") as endless:
        result = subprocess.run(
            [*SBUSCTL, "-a", bus.address, "request", "k"],
            env=sbusd_environment(),
            stdin=endless,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert (result.returncode, result.stdout) == (1, b"")
    assert b"packet-too-long" in result.stderr


def test_a_pattern_of_another_system_gets_a_hint(bus: Bus) -> None:
    with started(bus, "reply", "sums.>", "x") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"sbusctl: hint: ")
        signal_asleep(process.pid, signal.SIGINT)
        assert process.communicate(timeout=TIMEOUT_S)[1] == b""


def test_a_request_that_nobody_answers_fails_in_time(bus: Bus) -> None:
    with bus.connect() as silent:
        silent.sub(b"silent")
        silent.whoami()
        result = bus.sbusctl("request", "silent", "x", "--timeout", "0.1")
    assert result.returncode == 1
    assert result.stderr == b"sbusctl: no answer to a request under 'silent' came within 0.1 s\n"


def test_sub_last_begins_with_what_last_values_has_kept(bus: Bus) -> None:
    with (
        started(bus, "last-values", "lamps/", "--keys-max", "2"),
        sbus.blocking.connect(bus.address) as client,
    ):
        while not is_served(client):
            pass
        for number in range(4):
            client.publish(f"lamps/{number % 2}", str(number))
        client.sync(timeout_seconds=TIMEOUT_S)
        result = bus.sbusctl("sub", "--last", "--count", "2", "lamps/*")
        assert (result.returncode, result.stdout) == (0, b"lamps/0 2\nlamps/1 3\n")
        client.publish("lamps/2", "4")
        client.sync(timeout_seconds=TIMEOUT_S)
        form = ("--sender", "--format", "{pid} {payload}")
        result = bus.sbusctl("sub", "--last", *form, "--count", "1", "lamps/*")
        assert (result.returncode, result.stdout) == (0, b"- 3\n")
        assert result.stderr == b"sbusctl: the service of last values has not kept 1 messages\n"


def test_sub_last_says_in_time_that_nobody_keeps_these_values(bus: Bus) -> None:
    result = bus.sbusctl("sub", "--last", "--timeout", "0.3", "nobody/")
    assert (result.returncode, result.stdout) == (1, b"")
    assert b"no service has given these last values within 0.3 s" in result.stderr


def test_last_values_goes_on_when_the_bus_is_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for is_back in (False, True):
            with running_bus(tmp_path) as bus:
                if not is_back:
                    stack.enter_context(started(bus, "last-values", "lamps/", "--reconnect"))
                with sbus.blocking.connect(bus.address) as client:
                    while not is_served(client):
                        pass


def is_served(client: sbus.blocking.Connection[sbus.Message]) -> bool:
    try:
        with client.last_values("lamps/", timeout_seconds=1):
            return True
    except TimeoutError:
        return False
