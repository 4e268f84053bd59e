"""A worker's end of its link, without a worker: says what the test wants, keeps what it is told."""

import socket

import msgspec

from sbus.broker.ipc.worker_protocol import WorkerCommand, WorkerEvent

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(WorkerCommand)


class PretendedWorker:
    """Takes over `link_socket`."""

    def __init__(self, pid: int, link_socket: socket.socket) -> None:
        self.pid = pid
        self._sock = link_socket.dup()
        self._sock.setblocking(False)
        link_socket.close()

    def say(self, report: WorkerEvent) -> None:
        self._sock.send(_encoder.encode(report))

    def told(self) -> list[WorkerCommand]:
        """Every order since this was last asked; descriptors that came along are dropped."""
        orders: list[WorkerCommand] = []
        while True:
            try:
                orders.append(_decoder.decode(self._sock.recv(4096)))
            except BlockingIOError:
                return orders

    def close(self) -> None:
        self._sock.close()
