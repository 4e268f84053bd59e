"""`sbusd` whose workers with odd numbers do the ordinary step in Python, the others compiled.

A program, so that a bus which upgrades itself runs it again. It imports nothing of the tests, as
the tree that it runs may be another one.
"""

from sbus.broker.worker import ordinary_step, sequencer
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.ordinary_step import OrdinaryStep, PythonStep
from sbus.broker.worker.router import Route
from sbus.cli.sbusd.command import main
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.subscription_table import SubscriptionTable


def make_by_turns(
    context: WorkerContext, recent: dict[bytes, Route], log: OrderedLog, table: SubscriptionTable
) -> OrdinaryStep:
    if context.worker % 2:
        return PythonStep(context)
    return ordinary_step.make_ordinary_step(context, recent, log, table)


setattr(sequencer, "make_ordinary_step", make_by_turns)  # noqa: B010
main()
