"""A worker's end of its link, without a worker: says what the test wants, keeps what it is told."""

import socket

import msgspec

from sbus.broker.ipc.messages import Order, Report

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Order)


class PretendedWorker:
    """Takes over `link_socket`."""

    def __init__(self, pid: int, link_socket: socket.socket) -> None:
        self.pid = pid
        self._sock = link_socket.dup()
        self._sock.setblocking(False)
        link_socket.close()

    def say(self, report: Report) -> None:
        self._sock.send(_encoder.encode(report))

    def told(self) -> list[Order]:
        """Every order since this was last asked; descriptors that came along are dropped."""
        orders: list[Order] = []
        while True:
            try:
                orders.append(_decoder.decode(self._sock.recv(4096)))
            except BlockingIOError:
                return orders

    def close(self) -> None:
        self._sock.close()
