"""Metrics over HTTP on a stream socket: one request, one response, one connection at a time.

A client has two seconds to send a request of at most 8 KiB, and two to take the response. Then the
next one is served, so none can hold up the exporter. Prometheus' client library chooses the format
and the compression.
"""

import http.client
import io
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from urllib.parse import urlsplit

from prometheus_client.exposition import make_wsgi_app

from sbus.cli.metrics.collector import BusCollector, registry_of
from sbus.errors import AddressError
from sbus.unix.address import Address, RandomAbstractAddress, parse_address
from sbus.unix.listener import open_listener

REQUEST_BYTES_MAX = 8 * 1024
REQUEST_SECONDS_MAX = 2.0
RESPONSE_SECONDS_MAX = 2.0
PATH = "/metrics"

App = Callable[[dict[str, str], Callable[[str, list[tuple[str, str]]], None]], list[bytes]]
"""The part of WSGI that a request without a body needs."""


def listen_and_serve(address: str, mode: int, collector: BusCollector) -> None:
    """Serve clients of the socket until SIGTERM. Raises AddressError if it cannot listen."""
    app: App = make_wsgi_app(registry_of(collector))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with listening(parse_address(address), mode) as listener:
        while True:
            connection, _ = listener.accept()
            with connection:
                serve(connection, app)


# -- a request and its response --------------------------------------------------------------------
def serve(connection: socket.socket, app: App) -> None:
    """Respond to one request. A client that is gone, or too slow, gets nothing."""
    try:
        request = _read_request(connection)
        if request:
            connection.settimeout(RESPONSE_SECONDS_MAX)
            connection.sendall(respond(request, app))
    except (TimeoutError, ConnectionError):
        return


def _read_request(connection: socket.socket) -> bytes:
    """The head of a request, or what came of it before the client ended or the room did."""
    deadline = time.monotonic() + REQUEST_SECONDS_MAX
    request = b""
    while b"\r\n\r\n" not in request and len(request) < REQUEST_BYTES_MAX:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(REQUEST_BYTES_MAX - len(request))
        if not part:
            break
        request += part
        if time.monotonic() > deadline:
            raise TimeoutError
    return request


def respond(request: bytes, app: App) -> bytes:
    """The response to a request."""
    head, end, _ = request.partition(b"\r\n\r\n")
    line, _, fields = head.partition(b"\r\n")
    words = line.decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not end:
        return _plain(HTTPStatus.BAD_REQUEST, "this is not an HTTP/1 request")
    try:
        headers = http.client.parse_headers(io.BytesIO(fields + end))
        target = urlsplit(words[1])
    except (http.client.HTTPException, ValueError):
        return _plain(HTTPStatus.BAD_REQUEST, "the request is malformed")
    if target.path != PATH:
        return _plain(HTTPStatus.NOT_FOUND, f"metrics are at {PATH}")
    started: list[tuple[str, list[tuple[str, str]]]] = []
    environment = {
        "REQUEST_METHOD": words[0],
        "PATH_INFO": target.path,
        "QUERY_STRING": target.query,
        "HTTP_ACCEPT": _valid_accept(headers.get("Accept", "")),
        "HTTP_ACCEPT_ENCODING": headers.get("Accept-Encoding", ""),
    }
    body = b"".join(app(environment, lambda *start: started.append(start)))
    return _response(*started[0], body)


def _valid_accept(accept: str) -> str:
    """The header, or nothing if a version in it is malformed: the library would raise."""
    versions = re.findall(r"version=([^;,]*)", accept)
    valid = all(re.fullmatch(r"\d{1,4}(\.\d{1,4}){0,3}", text.strip()) for text in versions)
    return accept if valid else ""


def _plain(status: HTTPStatus, text: str) -> bytes:
    fields = [("Content-Type", "text/plain; charset=utf-8")]
    return _response(f"{status.value} {status.phrase}", fields, text.encode() + b"\n")


def _response(status: str, fields: list[tuple[str, str]], body: bytes) -> bytes:
    all_fields = [*fields, ("Content-Length", str(len(body))), ("Connection", "close")]
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in all_fields), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


# -- the socket ------------------------------------------------------------------------------------
@contextmanager
def listening(address: Address, mode: int) -> Iterator[socket.socket]:
    """A listening stream socket; its file gets exactly this mode, and is removed at the end. The
    file of an exporter that was killed is replaced. An inherited socket may have any family."""
    if isinstance(address, RandomAbstractAddress):
        raise AddressError("a random address is of no use here: give one with its HEX")
    listener = open_listener(address, mode=mode, replace=True, kind=socket.SOCK_STREAM)
    try:
        listener.socket.settimeout(None)
        yield listener.socket
    finally:
        listener.close()
