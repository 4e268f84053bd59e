"""EventEmitter of a process whose log is a list of the test's."""

from sbus.broker.events.emitter import EventEmitter
from sbus.protocol.event import Event


def logging_to(lines: list[str]) -> EventEmitter:
    """EventEmitter whose texts are appended to `lines`, those that are logged."""

    def write(_event: Event, text: str) -> None:
        lines.append(text)

    return EventEmitter(write)
