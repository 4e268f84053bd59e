"""`me`: asking the bus what it knows about this client's user.

Every question is answered, in its place among everything else that the bus sends. Hardly anybody
asks, so what an answer holds is looked at, and the types for it are loaded, when somebody did.

Pure: knows no socket, and not who waits for an answer.
"""

from typing import TYPE_CHECKING

import msgspec

from sbus.client.barrier import CountedQuestions
from sbus.errors import ProtocolViolation
from sbus.protocol import controls
from sbus.protocol.packets import encode_control

if TYPE_CHECKING:
    from sbus.protocol.admin_results import MeResult


class MeQuestions(CountedQuestions):
    """The questions and answers of one connection."""

    _newest = b""

    def question(self) -> bytes:
        return encode_control(controls.ME)

    def answered(self, payload: bytes) -> None:
        self._newest = payload
        self.settle_one()

    def result(self) -> "MeResult":
        """What the newest answer says; ProtocolViolation where that makes no sense."""
        from sbus.protocol.admin_results import MeResult

        try:
            return msgspec.json.decode(self._newest, type=MeResult)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(f"the bus answered me with nonsense: {error}") from error
