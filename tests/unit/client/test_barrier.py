"""Questions and their answers, in both dialects."""

import pytest

from sbus.client.barrier import (
    EchoBarrier,
    Identity,
    WhoamiBarrier,
    barrier_of,
    parse_identity,
)
from sbus.errors import ProtocolViolation
from sbus.protocol.keys import DOT, SLASH


class TestIdentity:
    def test_is_what_the_kernel_said(self) -> None:
        assert parse_identity(b"!/cred/100/1000/4711") == Identity(
            b"!/cred/100/1000/4711", gid=100, uid=1000, pid=4711
        )

    def test_is_the_last_part_behind_the_prefix_of_an_uplinked_bus(self) -> None:
        whole = b"!/cred/1/2/3/!/cred/4/5/6"
        assert parse_identity(whole) == Identity(whole, gid=4, uid=5, pid=6)

    def test_begins_the_keys_of_messages_to_oneself(self) -> None:
        own = parse_identity(b"!/cred/1/2/3/!/cred/4/5/6")
        assert own.secret_key("x/y") == own.secret_key(b"x/y") == own.key + b"/x/y"
        assert own.secret_key() == b"!/cred/1/2/3/!/cred/4/5/6/"

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"!/cred/1/2",
            b"!/cred/1/2/",
            b"!/cred/1/2/x",
            b"!/cred/1/2/-3",
            b"a/cred/1/2/3",
            b"!/cred/1/2/" + b"3" * 5000,
        ],
    )
    def test_is_nothing_else(self, payload: bytes) -> None:
        with pytest.raises(ProtocolViolation):
            parse_identity(payload)


class TestSlash:
    def test_greets_by_asking_for_notices_and_asks_whoami(self) -> None:
        barrier = barrier_of(SLASH)
        assert barrier.greeting == b"CMSG !/notices/on"
        assert barrier.question() == b"CMSG !/cred/whoami"
        assert barrier.echo_key is None

    def test_an_answer_settles_the_oldest_question(self) -> None:
        barrier = WhoamiBarrier()
        first = barrier.asked(barrier.question())
        second = barrier.asked(barrier.question())
        assert not barrier.settled(first)
        barrier.answered(b"!/cred/1/2/3")
        assert barrier.settled(first)
        assert not barrier.settled(second)
        barrier.answered(b"!/cred/1/2/3")
        assert barrier.settled(second)

    def test_the_answer_to_an_abandoned_question_is_nobody_elses(self) -> None:
        barrier = WhoamiBarrier()
        barrier.abandon(barrier.asked(barrier.question()))
        second = barrier.asked(barrier.question())
        barrier.answered(b"!/cred/1/2/3")
        assert not barrier.settled(second)


def _token(question: bytes) -> bytes:
    return question.partition(b"\0")[2]


class TestDot:
    def test_greets_by_subscribing_to_a_key_of_its_own(self) -> None:
        barrier, other = barrier_of(DOT), barrier_of(DOT)
        assert barrier.echo_key
        assert b"*" not in barrier.echo_key
        assert barrier.greeting == b"SUB " + barrier.echo_key
        assert barrier.question().startswith(b"MSG " + barrier.echo_key + b"\0")
        assert barrier.echo_key != other.echo_key

    def test_an_answer_settles_its_question_and_those_before(self) -> None:
        barrier = EchoBarrier(b".")
        questions = [barrier.question() for _ in range(3)]
        first, second, third = map(barrier.asked, questions)
        barrier.answered(_token(questions[1]))
        assert barrier.settled(first)
        assert barrier.settled(second)
        assert not barrier.settled(third)

    def test_an_answer_that_was_overtaken_unsettles_nothing(self) -> None:
        barrier = EchoBarrier(b".")
        questions = [barrier.question() for _ in range(2)]
        _, second = map(barrier.asked, questions)
        barrier.answered(_token(questions[1]))
        barrier.answered(_token(questions[0]))
        assert barrier.settled(second)

    def test_what_somebody_else_sends_under_that_key_settles_nothing(self) -> None:
        barrier = EchoBarrier(b".")
        old = barrier.question()
        barrier.asked(old)
        barrier.answered(_token(old))
        ticket = barrier.asked(barrier.question())
        for forged in (b"", b"1", _token(old), b"\0" * 32):
            barrier.answered(forged)
        assert not barrier.settled(ticket)

    def test_abandoned_questions_leave_nothing_behind(self) -> None:
        barrier = EchoBarrier(b".")
        question = barrier.question()
        ticket = barrier.asked(question)
        barrier.abandon(ticket)
        barrier.answered(_token(question))
        assert not barrier.settled(ticket)
