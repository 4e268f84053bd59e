"""The front's parts are built so that a bus can start."""

import os
import socket
from typing import cast

import trio

from sbus.broker.config.resolution import Configuration, ConfigurationSource
from sbus.broker.config.settings import BusSettings
from sbus.broker.front.fork_server import ForkServer
from sbus.broker.front_process import Endpoints, FrontResources, build_front
from sbus.shared.accounts import Accounts
from sbus.unix.notify import Notifier
from tests.support.events import logging_to
from tests.unit.shared.memories import open_memory, small_limits


async def test_root_and_the_user_of_the_bus_have_accounts_before_anybody_connects(
    nursery: trio.Nursery,
) -> None:
    """Otherwise other users could take all accounts first."""
    settings = BusSettings(workers=1, limits=small_limits())
    configuration = Configuration(settings=settings)
    with (
        open_memory(1, settings.limits) as memory,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        listener.bind("")
        resources = FrontResources(
            configuration=configuration,
            source=ConfigurationSource(lambda: configuration, lambda: configuration),
            endpoints=Endpoints(listener),
            memory=memory,
            fork_server=cast(ForkServer, None),
            events=logging_to([]),
            notifier=Notifier(),
        )
        build_front(nursery, resources)
        accounts = Accounts(memory.accounts, 1, settings.limits)
        for place in range(1, 1 + len({0, os.getuid()})):
            assert accounts[place].has_room_for_connection()
