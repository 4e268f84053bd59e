"""The ledger of a receiver, against every way's own account of what it has brought."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.bridge.ledger import HELD_MAX, WAY_SECONDS, Gap, Ledger

NOW = 100.0
E1, E2 = "aa", "bb"


def expand(given_: list[int | Gap]) -> list[tuple[int, bool]]:
    """Each number, and whether it was delivered."""
    numbers = []
    for item in given_:
        if isinstance(item, Gap):
            assert item.count is not None
            assert item.count > 0
            numbers += [(item.first + at, False) for at in range(item.count)]
        else:
            numbers.append((item, True))
    return numbers


schedules = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["come", "lose", "beat"])), max_size=80
)


@settings(max_examples=5 * settings().max_examples)
@given(schedules)
def test_each_number_is_delivered_or_missing_once_and_in_order(
    schedule: list[tuple[str, str]],
) -> None:
    """Each way has its own position among the numbers, and brings or loses the next one."""
    ledger: Ledger[int] = Ledger(E1)
    positions = dict.fromkeys("abc", 0)
    for way in positions:
        assert ledger.heartbeat(way, E1, 0, NOW) == []
    brought: set[int] = set()
    marks = dict.fromkeys("abc", 0)
    told: list[tuple[int, bool]] = []
    for way, what in schedule:
        if what != "beat":
            positions[way] += 1
        number = positions[way]
        if what == "lose":
            continue
        marks[way] = number
        if what == "come":
            brought.add(number)
            told += expand(ledger.feed(way, E1, number, number, NOW))
        else:
            told += expand(ledger.heartbeat(way, E1, number, NOW))
        ledger.check_invariants()
        # What is told is exactly the numbers up to the first that may still come.
        first_open = next(n for n in range(1, 100) if n not in brought and n > min(marks.values()))
        assert [number for number, _ in told] == list(range(1, first_open))
    assert all(is_delivered == (number in brought) for number, is_delivered in told)
    missing = sum(not is_delivered for _, is_delivered in told)
    assert (ledger.counts.delivered, ledger.counts.missing) == (len(told) - missing, missing)


def test_begins_with_the_first_message_it_hears_of() -> None:
    ledger: Ledger[str] = Ledger()
    assert ledger.feed("a", E1, 7, "x", NOW) == ["x"]
    assert ledger.feed("a", E1, 9, "z", NOW) == [Gap(E1, 8, 1), "z"]


def test_begins_behind_the_first_heartbeat_it_hears() -> None:
    ledger: Ledger[str] = Ledger()
    assert ledger.heartbeat("a", E1, 7, NOW) == []
    assert ledger.feed("a", E1, 9, "z", NOW) == [Gap(E1, 8, 1), "z"]


def test_a_message_by_two_ways_is_delivered_once() -> None:
    ledger: Ledger[str] = Ledger(E1)
    assert ledger.feed("a", E1, 1, "x", NOW) == ["x"]
    assert ledger.feed("b", E1, 1, "x", NOW) == []
    assert ledger.counts.duplicates == 1


def test_does_not_wait_for_a_silent_way() -> None:
    ledger: Ledger[str] = Ledger(E1)
    ledger.heartbeat("b", E1, 0, NOW)
    later = NOW + WAY_SECONDS + 1
    assert ledger.feed("a", E1, 2, "y", later) == []
    assert ledger.expire(later) == [Gap(E1, 1, 1), "y"]


def test_once_all_links_are_silent_nothing_waits_any_more() -> None:
    ledger: Ledger[str] = Ledger(E1)
    ledger.heartbeat("b", E1, 0, NOW)
    assert ledger.feed("a", E1, 2, "last", NOW) == []
    assert ledger.expire(NOW + WAY_SECONDS + 1) == [Gap(E1, 1, 1), "last"]


def test_a_link_that_comes_back_neither_repeats_nor_hides() -> None:
    ledger: Ledger[str] = Ledger(E1)
    ledger.feed("a", E1, 1, "x", NOW)
    ledger.expire(NOW + WAY_SECONDS + 1)
    assert ledger.ways == {}
    assert ledger.feed("a", E1, 1, "x", NOW + 60) == []
    assert ledger.feed("a", E1, 4, "w", NOW + 60) == [Gap(E1, 2, 2), "w"]


def test_a_new_epoch_is_a_gap_of_unknown_size() -> None:
    ledger: Ledger[str] = Ledger(E1)
    ledger.heartbeat("b", E1, 0, NOW)
    assert ledger.feed("a", E1, 2, "held", NOW) == []
    given_ = ledger.feed("a", E2, 2, "new", NOW)
    assert given_ == [Gap(E1, 1, 1), "held", Gap(E1, 3, None), Gap(E2, 1, 1), "new"]
    assert ledger.feed("b", E1, 3, "late", NOW) == []
    assert ledger.heartbeat("b", E1, 3, NOW) == []
    assert ledger.counts.stale == 2
    assert ledger.next == 3


def test_holds_a_bounded_number() -> None:
    ledger: Ledger[int] = Ledger(E1)
    ledger.heartbeat("b", E1, 0, NOW)
    for number in range(2, HELD_MAX + 2):
        assert ledger.feed("a", E1, number, number, NOW) == []
    given_ = ledger.feed("a", E1, HELD_MAX + 2, HELD_MAX + 2, NOW)
    assert given_ == [Gap(E1, 1, 1), *range(2, HELD_MAX + 3)]
    assert ledger.held == 0


def test_goes_on_from_what_was_delivered_before() -> None:
    ledger: Ledger[str] = Ledger(E1, last=5)
    assert ledger.feed("a", E1, 5, "again", NOW) == []
    assert ledger.feed("a", E1, 6, "x", NOW) == ["x"]
    assert ledger.feed("a", E1, 9, "y", NOW) == [Gap(E1, 7, 2), "y"]
    ledger.heartbeat("b", E1, 0, NOW)
    ledger.feed("a", E1, 11, "z", NOW)
    assert ledger.give_up() == [Gap(E1, 10, 1), "z"]


def test_waits_for_what_a_way_sends_again() -> None:
    ledger: Ledger[str] = Ledger(E1)
    assert ledger.feed("a", E1, 2, "y", NOW, passed=0) == []
    assert ledger.feed("a", E1, 3, "z", NOW, passed=0) == []
    assert ledger.feed("a", E1, 1, "x", NOW, passed=0) == ["x", "y", "z"]
    assert ledger.feed("a", E1, 7, "w", NOW, passed=5) == [Gap(E1, 4, 2)]
    assert ledger.feed("a", E1, 8, "v", NOW, passed=7) == [Gap(E1, 6, 1), "w", "v"]
