"""`me`: asking the bus what it knows about this client's user.

The answer is no barrier, other workers may have to be asked for it. So the first that comes after
a question is taken for its answer: where an earlier question was abandoned, that may be the answer
to it, a moment older. The bus may refuse the question, and then that is all that comes.

Pure: knows no socket, and not who waits for an answer.
"""

from typing import TYPE_CHECKING

import msgspec

from sbus.errors import ProtocolViolation
from sbus.protocol import controls
from sbus.protocol.packets import encode_control

if TYPE_CHECKING:
    from sbus.protocol.admin_results import MeResult


class MeQuestions:
    """The questions and answers of one connection; see `barrier.Questions`."""

    may_be_refused: bool = True

    def __init__(self) -> None:
        self._answers = 0
        self._newest = b""

    def question(self) -> bytes:
        return encode_control(controls.ME)

    def asked(self, question: bytes) -> int:
        return self._answers

    def answered(self, payload: bytes) -> None:
        self._answers += 1
        self._newest = payload

    def settled(self, ticket: int) -> bool:
        return self._answers > ticket

    def abandon(self, ticket: int) -> None:
        """Its answer does no harm when it comes."""

    def result(self) -> "MeResult":
        """What the newest answer says; ProtocolViolation where that makes no sense."""
        # Hardly anybody asks, and everybody would wait for these types.
        from sbus.protocol.admin_results import MeResult

        try:
            return msgspec.json.decode(self._newest, type=MeResult)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(f"the bus answered me with nonsense: {error}") from error
