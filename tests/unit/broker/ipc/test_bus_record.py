"""The record of a bus: what one version writes, the others of its major version read."""

import os

import msgspec
import pytest

from sbus.broker.ipc.bus_record import (
    BusRecord,
    ConnectionRecord,
    UserRecord,
    take_memfd,
    write_owning_memfd,
)
from sbus.broker.ipc.client_record import UnknownVersion
from sbus.shared.account_record import AccountRecord
from sbus.unix.credentials import Credentials

BUS = BusRecord(
    version=(1, 0),
    clients=[
        ConnectionRecord(
            number=1,
            cookie=2**60,
            credentials=Credentials(gid=2, uid=3, pid=4, began_at_ticks=5),
            connected_at=6.5,
            worker=7,
        )
    ],
    waiting_cookies=[8, 9],
    admitted=10,
    refused={"not-admitted": 11},
    users=[
        UserRecord(
            account=AccountRecord(
                uid=12,
                messages_paid_until_ns=13,
                connections_paid_until_ns=14,
                held_spans=[(15, 16)],
                dropped=17,
            ),
            limits={"connections_max": 18, "held_seconds_max": 19.5},
        )
    ],
    counters=[{"messages_in": 20}, {}],
)
BUS_1_0 = bytes.fromhex(
    "87a776657273696f6e920100a7636c69656e74739185a66e756d62657201a6636f6f6b6965cf1000000000000000ab63"
    "726564656e7469616c7384a367696402a375696403a370696404ae626567616e5f61745f7469636b7305ac636f6e6e65"
    "637465645f6174cb401a000000000000a6776f726b657207af77616974696e675f636f6f6b696573920809a861646d69"
    "747465640aa77265667573656481ac6e6f742d61646d69747465640ba575736572739182a76163636f756e7485a37569"
    "640cb66d657373616765735f706169645f756e74696c5f6e730db9636f6e6e656374696f6e735f706169645f756e7469"
    "6c5f6e730eaa68656c645f7370616e7391920f10a764726f7070656411a66c696d69747382af636f6e6e656374696f6e"
    "735f6d617812b068656c645f7365636f6e64735f6d6178cb4033800000000000a8636f756e746572739281ab6d657373"
    "616765735f696e1480"
)
"""As version 1.0 wrote it."""


def memfd_of(data: bytes) -> int:
    memfd = os.memfd_create("record")
    os.write(memfd, data)
    return memfd


def test_a_record_is_read_as_it_was_written() -> None:
    assert take_memfd(write_owning_memfd(BUS)) == BUS


def test_the_first_version_is_read_for_ever() -> None:
    assert take_memfd(memfd_of(BUS_1_0)) == BUS


def test_a_later_minor_version_is_read() -> None:
    later = {**msgspec.to_builtins(BUS), "version": (1, 9), "invented_later": [1, {}]}
    assert take_memfd(memfd_of(msgspec.msgpack.encode(later))).clients == BUS.clients
    assert take_memfd(memfd_of(msgspec.msgpack.encode({}))) == BusRecord()


@pytest.mark.parametrize("version", [(0, 1), (2, 0)])
def test_another_major_version_is_refused(version: tuple[int, int]) -> None:
    other = msgspec.structs.replace(BUS, version=version)
    with pytest.raises(UnknownVersion, match=rf"version {version[0]}\.{version[1]}"):
        take_memfd(write_owning_memfd(other))
