"""Metrics over HTTP: responses, slow clients, and the socket itself."""

import socket
import stat
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.registry import CollectorRegistry

from sbus.cli.metrics import http_exporter
from sbus.cli.metrics.http_exporter import App, listening, respond, serve
from sbus.errors import AddressError
from sbus.unix.address import parse_address

APP: App = make_wsgi_app(CollectorRegistry())
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def ask(request: bytes) -> tuple[int, dict[str, str], bytes]:
    response = respond(request, APP)
    head, _, body = response.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    headers = dict(field.split(": ", 1) for field in fields)
    assert int(headers["Content-Length"]) == len(body)
    return int(line.split(" ")[1]), headers, body


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, "text/plain; version=0.0.4"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
        ("text/html", "text/plain; version=0.0.4"),
        ("text/plain;version=abc", "text/plain; version=0.0.4"),
        ("application/openmetrics-text;version=1..0", "text/plain; version=0.0.4"),
        (f"text/plain;version={'9' * 5000}", "text/plain; version=0.0.4"),
    ],
)
def test_the_format_is_negotiated(accept: str | None, content_type: str) -> None:
    field = f"Accept: {accept}\r\n" if accept else ""
    status, headers, body = ask(f"GET /metrics HTTP/1.1\r\nHost: x\r\n{field}\r\n".encode())
    assert status == 200
    assert headers["Content-Type"].startswith(content_type)
    assert (body == b"# EOF\n") == ("openmetrics" in content_type)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET /metrics?name[]=sbus_up HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics HTTP/1.1\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"GET http://[/metrics HTTP/1.1\r\n\r\n", 400),
        (b"\xff\0\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 400),
        (b"x" * 8192, 400),
    ],
)
def test_every_request_gets_a_response(request_bytes: bytes, status: int) -> None:
    assert ask(request_bytes)[0] == status


_WORDS = st.sampled_from(
    [
        *(b"GET", b"/metrics", b"HTTP/1.1", b" ", b"\r\n", b"\r\n\r\n", b"?name[]=", b"&", b"%ff"),
        *(b"Accept: ", b"text/plain;version=", b"application/openmetrics-text; version=", b"1.0.0"),
        *(b"escaping=", b"Accept-Encoding: gzip", b",", b";", b"=", b"..", b":", b"\0", b"\xff"),
    ]
)


@given(st.lists(_WORDS | st.binary(max_size=8), max_size=24).map(b"".join))
@example(b"GET /metrics HTTP/1.1\r\nAccept: text/plain;version=1\r\n 2\r\n\r\n")
def test_no_request_raises(data: bytes) -> None:
    """Whatever a client sends, the response is well-formed."""
    for request in (data, b"GET /metrics HTTP/1.1\r\n" + data + b"\r\n\r\n"):
        status, headers, _ = ask(request)
        assert status in (200, 400, 404, 405)
        assert headers["Connection"] == "close"


# -- slow clients ----------------------------------------------------------------------------------
def test_a_request_may_be_followed_by_more_data() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(REQUEST + b"more than was asked for")
        serve(ours, APP)
        assert theirs.recv(65_536).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTT"])
def test_a_client_that_sends_no_request_is_dropped(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(http_exporter, "REQUEST_SECONDS_MAX", 0.02)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(said)
        serve(ours, APP)
        ours.close()
        assert theirs.recv(100) == b""


def test_the_deadline_is_for_the_whole_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not extend it."""
    now = 0.0

    class Drip(socket.socket):
        def recv(self, *_: object) -> bytes:
            nonlocal now
            now += 0.9
            return b"x"

    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Drip() as connection:
        serve(connection, APP)
    assert now < http_exporter.REQUEST_SECONDS_MAX + 1


def test_a_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_exporter, "RESPONSE_SECONDS_MAX", 0.02)

    def long_response(_environment: object, start: object) -> list[bytes]:
        assert callable(start)
        start("200 OK", [])
        return [bytes(10_000_000)]

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(REQUEST)
        serve(ours, long_response)


def test_a_client_that_is_gone_is_no_error() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(REQUEST)
        theirs.close()
        serve(ours, APP)
        serve(ours, APP)


# -- the socket ------------------------------------------------------------------------------------
def test_the_socket_file_has_exactly_the_mode_and_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    for mode in (0o600, 0o666):
        with listening(parse_address(str(path)), mode):
            assert stat.S_IMODE(path.stat().st_mode) == mode
        assert not path.exists()


def test_a_dead_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with (
        listening(parse_address(str(path)), 0o600) as alive,
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.connect(str(path))
        alive.accept()[0].close()


def test_an_inherited_socket_may_have_any_family() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        name = server.getsockname()
        with listening(parse_address(f"/dev/fd/{server.detach()}"), 0o600) as listener:
            assert listener.getsockname() == name


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("/dev/fd/999999", "Bad file descriptor"),
        ("/dev/null/x", "Not a directory"),
        ("/dev/unix/abstract", "give one"),
    ],
)
def test_an_unusable_address_is_reported(address: str, why: str) -> None:
    with pytest.raises(AddressError, match=why), listening(parse_address(address), 0o600):
        pass


def test_an_inherited_socket_must_be_for_streams() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as packets:
        address = parse_address(f"/dev/fd/{packets.fileno()}")
        with pytest.raises(AddressError, match="not a stream socket"), listening(address, 0o600):
            pass
