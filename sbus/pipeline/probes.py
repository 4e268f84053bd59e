"""The recorder's probes: messages to itself that say when they were sent.

    key      sbus/probe/RECORDER
    payload  microseconds since 1970, in decimal

Pure: knows neither who sends them nor what is made of them.
"""

PROBE_KEY_BEGINNING = "sbus/probe/"


def probe_key(recorder: str) -> bytes:
    """What this recorder publishes its probes under; nobody else should."""
    return (PROBE_KEY_BEGINNING + recorder).encode()


def probe_payload(sent_us: int) -> bytes:
    return b"%d" % sent_us
