"""A worker's end of its link, without a worker: sends the test's events, keeps the commands."""

import socket

import msgspec

from sbus.broker.ipc.worker_protocol import WorkerCommand, WorkerEvent

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(WorkerCommand)


class FakeWorker:
    """Takes over `link_socket`."""

    def __init__(self, pid: int, link_socket: socket.socket) -> None:
        self.pid = pid
        self._sock = link_socket.dup()
        self._sock.setblocking(False)
        link_socket.close()

    def send(self, event: WorkerEvent) -> None:
        self._sock.send(_encoder.encode(event))

    def commands(self) -> list[WorkerCommand]:
        """Every command since the last call; descriptors that came along are dropped."""
        commands: list[WorkerCommand] = []
        while True:
            try:
                commands.append(_decoder.decode(self._sock.recv(4096)))
            except BlockingIOError:
                return commands

    def close(self) -> None:
        self._sock.close()
