"""Messages with receipts: they are published, and their publishers told what came of them.

A receipt is complete when every worker that the message is for has delivered it. The last of them
wakes the publisher's worker. An entry of the table is kept until the receipt is in the client's
socket: a successor sends those again that may not have come there.
"""

from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.publish_batch import PublishBatch
from sbus.broker.worker.router import Router
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.wait_queue import FOR_ROOM, Wait
from sbus.protocol import receipts
from sbus.shared.receipt_table import OpenReceipt


class Receipts:
    """Of one worker."""

    def __init__(
        self, context: WorkerContext, router: Router, sequencer: Sequencer, sessions: Sessions
    ) -> None:
        self._context = context
        self._table = context.receipts
        self._router = router
        self._sequencer = sequencer
        self._sessions = sessions

    def publish(self, session: Session, request: receipts.Request) -> Wait | None:
        """Publish a message; returns what it has to wait for, if anything. Raises ClientFault."""
        route = session.own_route(self._router.look_up(request.key))
        mark = session.slot.begin_step()
        entry = self._table.take(session.client, session.account_place, mark, request.token)
        if entry is None:
            return FOR_ROOM
        batch = PublishBatch(session, entry)
        batch.add(request.packet, request.key, route)
        wait = self._sequencer.publish(batch)
        if not batch.messages:
            self._give_back(entry)
            if wait is None:  # who was stalled has room again by now
                self._context.wake()
            return wait or FOR_ROOM
        session.messages_in += 1
        session.slot.forget_pending()  # from here on the entry tells a successor
        if self._table.is_local(entry):
            self._tell(self._table.open[entry])
        elif self._table.is_complete(entry):  # and perhaps earlier ones, which are told first
            self._context.wake()
        return None

    def tell_complete(self) -> None:
        """Send the receipts that are complete."""
        for receipt in self._table.complete():
            self._tell(receipt)

    def _tell(self, receipt: OpenReceipt) -> None:
        entry, client, _ = receipt
        session = self._sessions.find(client)
        if session is None:
            self._give_back(entry)
            return
        packet = receipts.receipt(self._table.token(entry), self._table.counts(entry))
        self._table.note_told(entry)
        session.tell(packet)
        if not session.outbox.controls_waiting:
            self._sessions.forget_told(client)

    def _give_back(self, entry: int) -> None:
        if self._table.give_back(entry):
            self._context.wake()
