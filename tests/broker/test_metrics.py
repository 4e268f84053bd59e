"""`sbusctl metrics` with a real bus: the figures are what the clients of the test did."""

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.admin import administer, wait_for_traffic
from tests.support.bus import SBUSCTL, Bus, running_bus, sbusd_environment
from tests.support.raw_client import RawClient
from tests.support.threads import wait_until

TIMEOUT_S = 60.0


def scrape(bus: Bus) -> str:
    outcome = bus.sbusctl("metrics")
    assert (outcome.returncode, outcome.stderr) == (0, b"")
    return outcome.stdout.decode()


def sums(exposition: str) -> dict[str, float]:
    """Every figure, summed over workers and all other labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(exposition):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            if sample.labels.get("le", "+Inf") == "+Inf":
                found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def test_the_figures_are_what_clients_did(bus: Bus) -> None:
    """3 subscribers received what 2 publishers sent, 4 × 25 messages of 12 bytes for all of them
    and 50 for nobody, and two packets were refused."""
    with (
        RawClient(bus.address) as a,
        RawClient(bus.address) as b,
        RawClient(bus.address) as c,
        administer(bus) as admin,
    ):
        for client in (a, b, c):
            client.sub(b"x/")
            client.sync()
        for number in range(100):
            (a, b)[number % 2].pub(b"x/%02d" % number, b"123")
        for _ in range(50):
            c.pub(b"nobody", b"")
        c.sub(b"a/!/b")
        c.sub(b"!")
        for client in (a, b, c):
            client.sync()
        wait_for_traffic(admin, lambda now: (now["messages_in"], now["delivered"]) == (150, 300))
        found = sums(scrape(bus))
    assert found["sbus_up"] == 1
    assert found["sbus_clients"] == 3
    assert found["sbus_connections_accepted_total"] == 3
    assert found["sbus_worker_up"] == 2
    assert found["sbus_worker_clients"] == 3
    assert found["sbus_subscriptions"] == 3
    assert found["sbus_messages_published_total"] == 150
    assert found["sbus_deliveries_due_total"] == 300
    assert found["sbus_deliveries_total"] == 300
    assert found["sbus_delivered_bytes_total"] == 300 * len(b"MSG x/00\x00123")
    assert found["sbus_latency_seconds_count"] == 300
    assert found["sbus_refused_total"] == 2
    assert found["sbus_discarded_total"] == 0
    assert found["sbus_backlog_messages"] == 0
    assert found["sbus_user_connections"] == 3
    assert found["sbus_user_subscriptions"] == 3


@contextmanager
def exporter(address: str, listen: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [*SBUSCTL, "-a", address, "metrics", "--listen", str(listen), *options]
    process = subprocess.Popen(command, env=sbusd_environment(), stderr=subprocess.PIPE)
    try:
        wait_until(lambda: is_there(listen, process), "it listens")
        yield process
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def is_there(listen: Path, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the exporter ended"
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(listen)) == 0


def get(listen: Path) -> tuple[str, str]:
    """The head and the body of an answer to a plain question."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT_S)
        client.connect(str(listen))
        client.sendall(
            b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
            b"Accept: application/openmetrics-text; version=1.0.0\r\n\r\n"
        )
        response = b"".join(iter(lambda: client.recv(65_536), b""))
    head, _, body = response.decode().partition("\r\n\r\n")
    return head, body


def test_over_a_socket_with_and_without_a_bus(tmp_path: Path) -> None:
    listen = tmp_path / "metrics"
    with exporter(str(tmp_path / "bus.socket"), listen) as process:
        head, body = get(listen)
        assert head.startswith("HTTP/1.1 200 ")
        assert sums(body) == {"sbus_up": 0}
        with running_bus(tmp_path):
            with socket.socket(socket.AF_UNIX) as silent:
                silent.connect(str(listen))
                head, body = get(listen)
            assert "Content-Type: application/openmetrics-text; version=1.0.0" in head
            assert sums(body)["sbus_worker_up"] == 2
        assert sums(get(listen)[1]) == {"sbus_up": 0}
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        assert not listen.exists()
        assert process.stderr is not None
        assert process.stderr.read().count(b"\n") == 2, "why it is away, once each time"


def test_a_file_is_rewritten_at_every_interval(bus: Bus, tmp_path: Path) -> None:
    path = tmp_path / "sbus.prom"
    command = [*SBUSCTL, "-a", bus.address, "metrics", "--textfile", str(path)]
    process = subprocess.Popen([*command, "--interval", "0.1"], env=sbusd_environment())
    try:
        wait_until(path.exists, "there is a file")
        assert "\nsbus_clients 0.0\n" in path.read_text()
        with bus.connect() as client:
            client.whoami()
            wait_until(lambda: "\nsbus_clients 1.0\n" in path.read_text(), "it is rewritten")
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        assert not list(tmp_path.glob(".sbus.prom.*")), "nothing half written is left"
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
