"""sbusctl with a real bus, as people and scripts use it."""

import json
import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbus.version import __version__
from tests.support.bus import SBUSCTL, Bus, running_bus, sbusd_environment, stop
from tests.support.processes import signal_asleep, stopped
from tests.support.raw_client import RawClient
from tests.support.sbusctl import TIMEOUT_S, end_of, publish_until_seen, read_line, started


@contextmanager
def subscribed(bus: Bus, *words: str) -> Iterator[tuple[RawClient, subprocess.Popen[bytes]]]:
    """`sbusctl sub WORDS ready` that has printed all `ready` messages it got, and a publisher."""
    with bus.connect() as client, started(bus, "sub", *words, "ready") as process:
        assert process.stdout is not None
        publish_until_seen(client, process.stdout.fileno(), b"ready", b"go")
        client.pub(b"ready", b"last")
        while b"last" not in read_line(process):
            pass
        yield client, process


OVERRUN_MESSAGES = 2_000


@contextmanager
def overrun(directory: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`sbusctl sub WORDS` that was stopped while more messages came than the bus keeps for it.

    With one worker, the publisher's barrier shows that all of them have been dropped.
    """
    with (
        running_bus(directory, "--limit", "backlog_messages_max=10", workers=1) as bus,
        subscribed(bus, *words) as (client, process),
    ):
        with stopped(process.pid):
            for _ in range(OVERRUN_MESSAGES):
                client.pub(b"k", b"x")
            client.whoami()
        yield process


@pytest.fixture
def bus(shared_bus: Bus) -> Bus:
    return shared_bus


PUBLISHED = {
    "text": (["k", "käfer"], b"", ["käfer".encode()]),
    "any bytes": (["--", "k", os.fsdecode(b"-\xff\x01")], b"", [b"-\xff\x01"]),
    "nothing": (["k", ""], b"", [b""]),
    "a negative number": (["k", "-.5"], b"", [b"-.5"]),
    "lines": (["k"], b"one\n\n\xfftwo\r\nthree", [b"one", b"", b"\xfftwo\r", b"three"]),
}
"""Words, standard input, and the payloads of the messages."""


class TestPub:
    @pytest.fixture
    def listener(self, bus: Bus) -> Iterator[RawClient]:
        with bus.connect() as listener:
            listener.sub(b"k")
            listener.whoami()
            yield listener

    @pytest.mark.parametrize(
        ("words", "stdin", "payloads"), PUBLISHED.values(), ids=PUBLISHED.keys()
    )
    def test_messages_have_been_processed_when_it_ends(
        self,
        bus: Bus,
        listener: RawClient,
        words: Sequence[str],
        stdin: bytes,
        payloads: Sequence[bytes],
    ) -> None:
        result = bus.sbusctl("pub", *words, stdin=stdin)
        assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
        assert listener.sync() == [b"MSG k\0" + payload for payload in payloads]

    def test_sends_a_line_when_it_is_there(self, bus: Bus, listener: RawClient) -> None:
        with started(bus, "pub", "k") as process:
            assert process.stdin is not None
            for line in (b"one", b"two"):
                process.stdin.write(line + b"\n")
                assert listener.receive() == b"MSG k\0" + line
            assert end_of(process) == (0, b"", b"")

    def test_sends_a_file_as_one_message(
        self, bus: Bus, listener: RawClient, tmp_path: Path
    ) -> None:
        contents = os.urandom(1000) + b"\n\n"
        (tmp_path / "file").write_bytes(contents)
        files = ("--file", str(tmp_path / "file"), "--file", "-")
        assert bus.sbusctl("pub", "k", *files, stdin=b"a\nb\n").returncode == 0
        assert listener.sync() == [b"MSG k\0" + contents, b"MSG k\0a\nb\n"]

    def test_names_the_file_that_is_not_there(self, bus: Bus, tmp_path: Path) -> None:
        result = bus.sbusctl("pub", "k", "--file", str(tmp_path / "none"))
        assert result.returncode == 1
        assert result.stderr == f"sbusctl: {tmp_path}/none: No such file or directory\n".encode()

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            (("pub", "a/!/b"), "reserved"),
            (("pub", "k" * 5000, "x"), "key-too-long"),
            (("sub", "a", "!/b"), "reserved"),
        ],
        ids=["refused", "disconnected", "a pattern"],
    )
    def test_fails_with_the_code_of_a_refusal(
        self, bus: Bus, words: Sequence[str], code: str
    ) -> None:
        result = bus.sbusctl(*words, stdin=b"line\n" * 10)
        assert result.returncode == 1
        assert re.fullmatch(rf"sbusctl: .*\({code}\)\n", result.stderr.decode())

    def test_a_line_that_is_too_long_is_not_sent_in_part(
        self, bus: Bus, listener: RawClient
    ) -> None:
        result = bus.sbusctl("pub", "k", stdin=b"short\n" + bytes(2_000_000))
        assert result.returncode == 1
        assert b"at most 409600 are allowed" in result.stderr
        assert listener.sync() == [b"MSG k\0short"]

    def test_ctrl_c_ends_it_quietly(self, bus: Bus, listener: RawClient) -> None:
        with started(bus, "pub", "k") as process:
            assert process.stdin is not None
            process.stdin.write(b"one\n")
            listener.receive()
            signal_asleep(process.pid, signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 130
            assert end_of(process) == (130, b"", b"")


class TestPubAtTheDefaultAddress:
    """It does not import what the verb needs, and does the same."""

    def publish(
        self, bus: Bus, *words: str, python: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [SBUSCTL[0], *python, *SBUSCTL[1:], "pub", *words],
            env={**sbusd_environment(), "SBUS_ADDRESS": bus.address},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def test_the_message_has_been_processed_when_it_ends(self, bus: Bus) -> None:
        with bus.connect() as listener:
            listener.sub(b"k")
            listener.whoami()
            result = self.publish(bus, "k", "käfer", python=("-X", "importtime"))
            assert listener.sync() == [b"MSG k\0" + "käfer".encode()]
        assert (result.returncode, result.stdout) == (0, b"")
        imported = {line.rpartition(b"|")[2].strip() for line in result.stderr.splitlines()}
        assert b"sbus.cli.sbusctl.start" in imported
        assert not {b"click", b"msgspec", b"sbus.client"} & imported

    @pytest.mark.parametrize(
        "words",
        [("a/!/b", "x"), ("k" * 5000, "x"), ("k", "--help"), ("k", "x", "y")],
        ids=["refused", "disconnected", "help", "misused"],
    )
    def test_everything_else_is_as_with_an_address(self, bus: Bus, words: tuple[str, ...]) -> None:
        plain, general = self.publish(bus, *words), bus.sbusctl("pub", *words)
        assert plain.returncode == general.returncode
        assert (plain.stdout, plain.stderr) == (general.stdout, general.stderr)


class TestSub:
    def test_prints_a_line_for_a_message_when_it_comes(self, bus: Bus) -> None:
        with subscribed(bus, "a/*", "b") as (client, process):
            client.pub(b"a/x", b"hello world")
            assert read_line(process) == b"a/x hello world\n"
            client.pub(b"a/x/y", b"does not match")
            client.pub(b"b", "käfer".encode())
            assert read_line(process) == "b käfer\n".encode()

    def test_gives_a_hint_for_another_systems_pattern(self, bus: Bus) -> None:
        with subscribed(bus, "lamps/#") as (client, process):
            assert process.stderr is not None
            assert process.stderr.readline().startswith(b"sbusctl: hint: the pattern 'lamps/#'")
            client.pub(b"lamps/#", b"x")
            assert read_line(process) == b"lamps/# x\n"

    def test_raw_prints_one_payload_as_a_file_has_it(self, bus: Bus) -> None:
        picture = b"\xff\xd8\n\0"
        with bus.connect() as client, started(bus, "sub", "--raw", "--count", "1", "k") as process:
            assert process.stdout is not None
            publish_until_seen(client, process.stdout.fileno(), b"k", picture)
            assert end_of(process) == (0, picture, b"")

    def test_ctrl_c_ends_it_quietly(self, bus: Bus) -> None:
        with subscribed(bus, "k") as (_client, process):
            signal_asleep(process.pid, signal.SIGINT)
            assert end_of(process) == (130, b"", b"")

    def test_a_reader_that_leaves_ends_it_quietly(self, bus: Bus) -> None:
        with subscribed(bus, "k") as (client, process):
            assert process.stdout is not None
            process.stdout.close()
            client.pub(b"k", b"x")
            assert process.wait(TIMEOUT_S) == 141
            assert process.stderr is not None
            assert process.stderr.read() == b""

    def test_a_bus_that_ends_is_an_error(self, tmp_path: Path) -> None:
        with running_bus(tmp_path) as bus, subscribed(bus, "k") as (_client, process):
            stop(bus)
            status, output, errors = end_of(process)
            assert (status, output) == (1, b"")
            why = b"the bus ends, or is restarted (stopping)"
            assert errors == b"sbusctl: the bus closed the connection: " + why + b"\n"

    def test_into_a_pipe_it_holds_no_publisher(self, bus: Bus) -> None:
        """It keeps the choices of the bus; what is lost is told, as below."""
        with subscribed(bus, "k"):
            clients = json.loads(bus.sbusctl("clients", "--json").stdout)["clients"]
        choices = {(it["activity"]["soft"], it["activity"]["hard"]) for it in clients}
        assert choices == {("queue", "discard")}

    def test_losses_are_one_line_on_standard_error(self, tmp_path: Path) -> None:
        with overrun(tmp_path, "--soft", "queue", "k") as process:
            assert process.stderr is not None
            assert select.select([process.stderr], [], [], TIMEOUT_S)[0], "nothing was told"
            told = re.fullmatch(
                rb"sbusctl: (\d+) messages were lost.*\n", process.stderr.readline()
            )
            assert told
            for _ in range(OVERRUN_MESSAGES - int(told[1])):
                assert read_line(process) == b"k x\n"
            signal_asleep(process.pid, signal.SIGINT)
            assert end_of(process) == (130, b"", b"")

    def test_soft_error_ends_it_when_it_is_too_slow(self, tmp_path: Path) -> None:
        with overrun(tmp_path, "--soft", "error", "k") as process:
            status, output, errors = end_of(process)
            assert (status, errors[:9]) == (1, b"sbusctl: ")
            assert output == b"k x\n" * (len(output) // 4)

    def test_lost_messages_count(self, tmp_path: Path) -> None:
        count = str(OVERRUN_MESSAGES + 2)  # with "go" and "last", or more of the first
        with overrun(tmp_path, "--soft", "queue", "--count", count, "k") as process:
            status, output, errors = end_of(process)
            lost = re.search(rb"(\d+) messages were lost here", errors)
            assert lost
            assert status == 1
            assert output.count(b"\n") >= OVERRUN_MESSAGES - int(lost[1])

    def test_a_time_limit_ends_it(self, bus: Bus) -> None:
        assert bus.sbusctl("sub", "--timeout", "0.1", "k").returncode == 0
        result = bus.sbusctl("sub", "--timeout", "0.1", "--count", "2", "k")
        assert (result.returncode, result.stdout) == (1, b"")
        assert result.stderr == b"sbusctl: 0 of 2 messages came within 0.1 s\n"

    def test_timestamps(self, bus: Bus) -> None:
        with subscribed(bus, "--timestamps", "k") as (client, process):
            client.pub(b"k", b"x")
            shown = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} k x\n"
            assert re.fullmatch(shown, read_line(process))

    def test_runs_without_standard_output(self, bus: Bus) -> None:
        """The connection must not become standard output, or the bus would get the lines."""
        script = f"exec {' '.join(SBUSCTL)} -a {bus.address} whoami >&-"
        result = subprocess.run(
            ["/bin/sh", "-c", script],
            env=sbusd_environment(),
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("pub", "k", "-x"), "No such option '-x'"),
        (("pub", "--json", "k", "x"), "--json is for --receipt"),
        (("reply", "k"), "either PAYLOAD or the output of --exec"),
        (("reply", "k", "payload", "--exec", "true"), "either PAYLOAD or the output of --exec"),
        (("sub", "--last", "a", "b"), "one PATTERN"),
    ],
)
def test_a_misuse_has_status_2(bus: Bus, words: Sequence[str], text: str) -> None:
    result = bus.sbusctl(*words)
    assert result.returncode == 2
    assert text in result.stderr.decode()


class TestWhoami:
    def test_prints_the_ids_of_the_process_itself(self, bus: Bus) -> None:
        with started(bus, "whoami") as process:
            expected = f"!/cred/{os.getgid()}/{os.getuid()}/{process.pid}\n".encode()
            assert end_of(process) == (0, expected, b"")

    def test_prints_them_as_json(self, bus: Bus) -> None:
        with started(bus, "whoami", "--json") as process:
            status, output, errors = end_of(process)
            ids = {"gid": os.getgid(), "uid": os.getuid(), "pid": process.pid}
        assert (status, errors) == (0, b"")
        key = "!/cred/{gid}/{uid}/{pid}".format_map(ids)
        assert json.loads(output) == {"key": key, **ids}


class TestVersion:
    def test_a_user_without_an_admin_socket_sees_the_version(self, tmp_path: Path) -> None:
        with running_bus(tmp_path, "--admin-address", "none") as bus:
            text, as_json = bus.sbusctl("version"), bus.sbusctl("version", "--json")
        assert (text.stdout, text.stderr) == (f"sbusd  {__version__}\n".encode(), b"")
        assert json.loads(as_json.stdout) == {"version": __version__}


class TestWait:
    @pytest.mark.parametrize(
        "words", [("pub", "k", "x"), ("stats",)], ids=["the bus", "its admin socket"]
    )
    def test_it_waits_for_a_bus(self, tmp_path: Path, words: tuple[str, ...]) -> None:
        """It is started before the bus."""
        address = str(tmp_path / "bus.socket")
        command = [*SBUSCTL, "-a", address, "--wait", str(TIMEOUT_S), *words]
        with (
            subprocess.Popen(
                command, env=sbusd_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as process,
            running_bus(tmp_path) as bus,
        ):
            assert bus.address == address
            status, _, errors = end_of(process)
        assert (status, errors) == (0, b"")

    def test_it_does_not_wait_for_longer(self, tmp_path: Path) -> None:
        words = ("-a", str(tmp_path / "none"), "--wait", "0.1", "whoami")
        result = subprocess.run(
            [*SBUSCTL, *words],
            env=sbusd_environment(),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert result.returncode == 1
        assert result.stderr.startswith(b"sbusctl: cannot connect to ")


class TestDialect:
    @pytest.mark.parametrize(
        "words", [("sub", "a.b"), ("pub", "a.b", "x"), ("ping",)], ids=" ".join
    )
    def test_a_bus_of_the_other_dialect_is_an_error(self, bus: Bus, words: tuple[str, ...]) -> None:
        result = bus.sbusctl("--dialect", "dot", *words)
        assert (result.returncode, result.stdout) == (1, b"")
        why = f"the bus at {bus.address} has the slash dialect: leave --dialect out"
        assert result.stderr.decode() == f"sbusctl: {why}\n"


LINE = re.compile(rb"(\d+) bytes: seq=(\d+) time=(\d+\.\d{3}) ms\n")
SUMMARY = re.compile(
    rb"\n--- (\S+) ping statistics ---\n"
    rb"(\d+) packets transmitted, (\d+) received, (\d+)% packet loss, time \d+ms\n"
    rb"rtt min/avg/max/mdev = (\d+\.\d{3})/(\d+\.\d{3})/(\d+\.\d{3})/(\d+\.\d{3}) ms\n"
)


class TestPing:
    def test_prints_a_line_for_each_and_a_summary(self, tmp_path: Path) -> None:
        with running_bus(tmp_path, "--dialect", "dot") as bus:
            words = ("ping", "--count", "3", "--interval", "0", "--size", "1000")
            result = bus.sbusctl("--dialect", "dot", *words)
        assert (result.returncode, result.stderr) == (0, b"")
        head, *lines = result.stdout.splitlines(keepends=True)
        assert head == f"PING {bus.address}: 1000 bytes\n".encode()
        pings = [LINE.fullmatch(line) for line in lines[:3]]
        assert all(pings)
        assert [ping and ping.group(1, 2) for ping in pings] == [
            (b"1000", b"1"),
            (b"1000", b"2"),
            (b"1000", b"3"),
        ]
        summary = SUMMARY.fullmatch(b"".join(lines[3:]))
        assert summary
        assert summary.group(1, 2, 3, 4) == (bus.address.encode(), b"3", b"3", b"0")

    def test_prints_an_object_for_each_and_a_summary(self, bus: Bus) -> None:
        result = bus.sbusctl("ping", "--count", "3", "--interval", "0", "--json")
        assert (result.returncode, result.stderr) == (0, b"")
        *pings, summary = map(json.loads, result.stdout.splitlines())
        assert [ping["seq"] for ping in pings] == [1, 2, 3]
        times = [ping["rtt_ms"] for ping in pings]
        assert (summary["sent"], summary["received"]) == (3, 3)
        assert (summary["rtt_ms_min"], summary["rtt_ms_max"]) == (min(times), max(times))
        assert summary["rtt_ms_avg"] == pytest.approx(sum(times) / 3)
        assert summary["elapsed_ms"] >= sum(times)

    def test_ctrl_c_ends_it_with_the_summary(self, bus: Bus) -> None:
        with started(bus, "ping", "--interval", "60") as process:
            assert read_line(process).startswith(b"PING ")
            assert LINE.fullmatch(read_line(process))
            signal_asleep(process.pid, signal.SIGINT)
            status, output, errors = end_of(process)
        assert (status, errors) == (130, b"")
        summary = SUMMARY.fullmatch(output)
        assert summary
        assert summary.group(2, 3) == (b"1", b"1")

    def test_a_bus_that_does_not_answer_is_a_failure(self, bus: Bus) -> None:
        for pid in bus.pids():
            os.kill(pid, signal.SIGSTOP)
        try:
            result = bus.sbusctl("ping", "--count", "1", "--timeout", "0.2")
        finally:
            for pid in bus.pids():
                os.kill(pid, signal.SIGCONT)
        assert result.returncode == 1
        assert result.stderr.startswith(b"sbusctl: the bus gave no answer within 0.2 s")
