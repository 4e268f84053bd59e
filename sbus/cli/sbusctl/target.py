"""Which bus a verb is about, and the ways to it.

A bus has two sockets: its own, which everybody talks to, and that of its administrator, which is
found from the first one's address unless it is given. This module asks neither anything.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbus.client.link import LinkOptions

if TYPE_CHECKING:
    from sbus.client.admin import AdminConnection


@dataclass(frozen=True, slots=True)
class Target:
    """What the options before the verb say; `address` None is the default bus, `admin_address`
    None the admin socket that belongs to the bus."""

    address: str | None
    admin_address: str | None
    options: LinkOptions

    def connect_admin(self) -> "AdminConnection":
        """A connection to the admin socket, to be closed; AddressError where there is none."""
        from sbus.client.admin import AdminConnection

        return AdminConnection(self.address, address=self.admin_address)
