"""Requests to the admin socket of a bus, as bytes: JSON in, JSON out.

This module uses none of the project's types for requests and results, so that a mistake shared by
both sides cannot hide.
"""

import json
import os
import socket
from collections.abc import Callable
from typing import Any, Self

from tests.support.bus import Bus
from tests.support.threads import wait_until

TIMEOUT_S = 60.0
ANSWER_BYTES_MAX = 1024 * 1024


class Admin:
    """A connection to an admin socket."""

    def __init__(self, address: str | bytes, timeout_s: float = TIMEOUT_S) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(timeout_s)
        try:
            self.sock.connect(address)
        except BaseException:
            self.sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def exchange(self, packet: bytes) -> dict[str, Any]:
        """Send a packet; returns the reply."""
        self.sock.send(packet)
        return self.receive()

    def receive(self) -> dict[str, Any]:
        """The next reply; an AssertionError at the end of the connection."""
        packet = self.sock.recv(ANSWER_BYTES_MAX)
        assert packet, "the admin socket closed the connection"
        reply = json.loads(packet)
        assert isinstance(reply, dict)
        return reply

    def ask(self, verb: str, **arguments: object) -> Any:
        """The result of a request."""
        reply = self.exchange(json.dumps({"verb": verb, "id": 7, **arguments}).encode())
        assert reply["id"] == 7
        assert reply["version"] == 1
        assert "error" not in reply, reply
        return reply["result"]

    def fault(self, verb: str, **arguments: object) -> tuple[str, str]:
        """Code and text of the error that a request gets."""
        reply = self.exchange(json.dumps({"verb": verb, "id": 7, **arguments}).encode())
        assert reply["id"] == 7
        assert "result" not in reply, reply
        return reply["error"]["code"], reply["error"]["text"]

    def pages(self, verb: str, name: str, **arguments: object) -> list[list[Any]]:
        """All pages of a list."""
        pages = []
        after: dict[str, object] = {}
        while True:
            result = self.ask(verb, **arguments, **after)
            pages.append(result[name])
            if result["next"] is None:
                return pages
            after = {"after": result["next"]}


def administer(bus: Bus) -> Admin:
    """A connection to the admin socket of a bus that is at a path."""
    return Admin(f"{bus.address}.admin")


def own_user(admin: Admin) -> dict[str, Any]:
    """What the bus says about this user. It has an account of root besides."""
    users = {user["uid"]: user for user in admin.ask("users")["users"]}
    found: dict[str, Any] = users[os.geteuid()]
    return found


def held_seconds(bus: Bus) -> float:
    """For how long the bus has counted that clients of this user held others."""
    with administer(bus) as admin:
        return float(own_user(admin)["held_seconds"])


def wait_for_traffic(admin: Admin, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The traffic of the whole bus, once it is as expected (workers share it with some delay)."""
    found: dict[str, Any] = {}

    def look() -> bool:
        found.update(admin.ask("stats")["traffic"])
        return is_so(found)

    wait_until(look, "traffic as expected")
    return found
