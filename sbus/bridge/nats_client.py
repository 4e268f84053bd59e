"""The client of NATS: how it is made and closed, and what nats-py does not bear."""

import asyncio
import ssl
from contextlib import suppress
from typing import Any, Final

from nats.aio.client import Client

from sbus.bridge.configuration import Link

_CLOSE_SECONDS: Final = 1.0


class LinkClient(Client):
    """A message may hold any bytes where nats-py expects UTF-8 or a status. That would end the
    connection, and the next one again if the message is in a stream. So it comes without headers,
    and is refused like any other without an envelope."""

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        try:
            await super()._process_msg(sid, subject, reply, data, headers)
        except (UnicodeDecodeError, IndexError):
            subject, reply = (text.decode(errors="replace").encode() for text in (subject, reply))
            await super()._process_msg(sid, subject, reply, data, b"")


async def close(nc: Client) -> None:
    """Without an end to wait for if the server ended the connection while it was made; the client
    asserts that it had begun to."""
    with suppress(TimeoutError, AssertionError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await nc.close()


def credentials(plan: Link) -> dict[str, Any]:
    """The options of `connect` for this link."""
    options: dict[str, Any] = {}
    if plan.ca or plan.certificate or any(url.startswith("tls:") for url in plan.servers):
        context = ssl.create_default_context(cafile=plan.ca or None)
        if plan.certificate:
            context.load_cert_chain(plan.certificate, plan.key)
        options["tls"] = context
    if plan.credentials:
        options["user_credentials"] = plan.credentials
    if plan.nkey:
        options["nkeys_seed"] = plan.nkey
    return options
