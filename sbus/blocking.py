"""The client library for programs without an event loop, see `sbus.client.blocking`."""

from sbus.client.blocking import Connection, connect

__all__ = ["Connection", "connect"]
