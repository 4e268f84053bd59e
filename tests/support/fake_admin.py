"""An admin socket that sends the replies that a test chooses, right or wrong.

A thread answers every request with what `answers` has for its verb: a struct, an error, or bytes
that are sent as they are; a function is asked first. b"" hangs up, None says nothing. The requests
that came are kept, as dicts.
"""

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from sbus.protocol.admin import Fault

Answer = msgspec.Struct | Fault | bytes | None
TIMEOUT_S = 60.0


class FakeAdmin:
    """Listens at `address`, beside the address of a bus that is not there, `bus_address`."""

    def __init__(
        self, directory: Path, answers: "dict[str, Answer | Callable[[dict[str, Any]], Answer]]"
    ) -> None:
        self.bus_address = str(directory / "bus")
        self.address = f"{self.bus_address}.admin"
        self.answers = answers
        self.requests: list[dict[str, Any]] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.address)
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "a client of the fake admin socket did not leave"
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # shut down: the test is over
                return
            with client:
                client.settimeout(TIMEOUT_S)
                self._converse(client)

    def _converse(self, client: socket.socket) -> None:
        while packet := client.recv(100_000):
            request = json.loads(packet)
            self.requests.append(request)
            verb, number = request["verb"], request["id"]
            answer = self.answers[verb]
            if callable(answer):
                answer = answer(request)
            if answer == b"":
                return
            if answer is not None:
                client.send(encoded(answer, number))


def encoded(answer: Answer, number: int) -> bytes:
    """The packet of an answer to the request of this number."""
    if isinstance(answer, bytes):
        return answer
    what = "error" if isinstance(answer, Fault) else "result"
    return msgspec.json.encode({"version": 1, "id": number, what: answer})
