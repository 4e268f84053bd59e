"""Events of a process whose log is a list of the test's."""

from sbus.broker.events.emitter import Events
from sbus.protocol.events import Event


def logging_to(lines: list[str]) -> Events:
    """Events whose texts are appended to `lines`, those that are logged."""

    def write(_event: Event, text: str) -> None:
        lines.append(text)

    return Events(write)
