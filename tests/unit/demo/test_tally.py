"""The verdict: every subscriber must have received its part of the one order."""

import pytest

from sbus.demo.samples import Message
from sbus.demo.tally import Publisher, Subscriber, add_up

ONE: list[Message] = [(b"a/x", b"1"), (b"a/y", b"2")]
TWO: list[Message] = [(b"b/x", b"3")]
ORDER = [ONE[0], TWO[0], ONE[1]]


def verdict(everything: list[Message], x_only: list[Message]) -> tuple[list[str], bool]:
    publishers = [Publisher("one", ONE), Publisher("two", TWO)]
    subscribers = [
        Subscriber("everything", b"", 0.0, received=everything),
        Subscriber("x", b"*/x", 0.0, received=x_only),
    ]
    return add_up(publishers, subscribers)


def test_all_is_well() -> None:
    lines, is_well = verdict(ORDER, [ONE[0], TWO[0]])
    assert is_well
    assert not [line for line in lines if "WRONG" in line]


@pytest.mark.parametrize(
    ("everything", "x_only", "name"),
    [
        (ORDER[:2], [ONE[0], TWO[0]], "everything"),
        (ORDER, [ONE[0]], "x"),
        (ORDER, [TWO[0], ONE[0]], "x"),
        (ORDER, ORDER, "x"),
    ],
    ids=["lost", "part is lost", "other order", "too much"],
)
def test_a_subscriber_without_its_part_is_named(
    everything: list[Message], x_only: list[Message], name: str
) -> None:
    lines, is_well = verdict(everything, x_only)
    assert not is_well
    assert [line for line in lines if "WRONG" in line] == [
        f"WRONG: {name} did not receive what was published for it"
    ]
