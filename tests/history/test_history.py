"""Each check of a history finds the violation that it is for, and nothing in a history without one.

A history is written as lines `CLIENT DIRECTION PACKET`, with `|` for NUL.
"""

import json
import re
from pathlib import Path

import pytest

from tests.history.checks import CHECKS, check
from tests.history.history import History
from tests.history.log import Entry, Log, read_log
from tests.history.matching import is_for

SOUND = """
0 ! setting 2 65536
1 + slash 10 20 30
2 + slash 10 20 30
1 > CMSG !/notices/on
2 > CMSG !/notices/on
1 > SUB a
2 > SUB a
1 > CMSG !/sync|1
2 > CMSG !/sync|1
1 < CMSG !/sync|1
2 < CMSG !/sync|1
1 > MSG a|1
1 < MSG a|1
2 > MSG a|2
2 < MSG a|1
2 < MSG a|2
1 < MSG a|2
1 > CMSG !/publish|t|a|3
2 < MSG a|3
1 < MSG a|3
1 < CMSG !/receipt|t|2 0 0
1 > CMSG !/sync|2
2 > CMSG !/sync|2
1 < CMSG !/sync|2
2 < CMSG !/sync|2
0 ! end
"""


def history(text: str) -> History:
    def entries() -> list[Entry]:
        found = []
        for ns, line in enumerate(text.strip().splitlines()):
            client, direction, packet = f"{line} ".split(" ", 2)
            found.append(Entry(ns, int(client), direction, packet[:-1].replace("|", "\0").encode()))
        return found

    return History(entries())


def violated(text: str) -> set[str]:
    return {violation.check for violation in check(history(text))}


def with_line(line: str, behind: str) -> str:
    """The sound history with one line more."""
    assert SOUND.count(f"{behind}\n") == 1
    return SOUND.replace(f"{behind}\n", f"{behind}\n{line}\n")


def without_line(line: str) -> str:
    assert SOUND.count(f"{line}\n") == 1
    return SOUND.replace(f"{line}\n", "")


def test_a_sound_history_has_no_violation() -> None:
    assert not any(map(violated, (SOUND, PLACED_SOUND, NAMES, LATE_WATCHER)))


PLACED_SOUND = f"0 ! places-known all\n{SOUND.strip()}\n" + "".join(
    f"0 # MSG a|{number}\n" for number in (1, 2, 3)
)
NAMES = """
0 ! places-known own
1 + slash 10 20 30 1
2 + slash 10 20 30 2
1 > CMSG !/join|n|a|will
1 * MSG !/presence/20/n|join 1 10 30
1 * MSG !/presence/20/n|leave 1 10 30 left
1 * MSG !/presence/20/n|leave 1 10 30 gave-up
2 * MSG !/presence/20/n|join 2 10 30
2 * MSG !/presence/20/n|leave 2 10 30 left
0 # MSG !/presence/20/n|join 1 10 30
0 # MSG a|will
0 # MSG !/presence/20/n|leave 1 10 30 left
0 ! calm
2 < CMSG !/members|end
"""

LATE_WATCHER = """
1 + slash 10 20 30
1 > SUB a
2 + slash 10 20 30
2 > CMSG !/join|n|a|will
1 > SUB !/presence/*/*
1 > MSG a|1
1 < MSG a|will
1 < MSG a|1
"""

PLANTED = {
    "altered": with_line("2 < MSG a|never sent", "1 < MSG a|3"),
    "altered: a control message": with_line("2 < CMSG !/errors|what", "1 < MSG a|3"),
    "altered: a reply": with_line("2 < CMSG !/cred/whoami|1 2 3", "1 < MSG a|3"),
    "twice": with_line("2 < MSG a|3", "1 < MSG a|3"),
    "unwanted: no pattern": without_line("2 > SUB a"),
    "unwanted: an echo": SOUND.replace("1 > SUB a\n", "1 > CMSG echo/off\n1 > SUB a\n"),
    "unwanted: another's secret": """
        1 + slash 10 20 30
        2 + slash 10 20 30
        2 > SUB !/cred///30/
        1 > MSG !/cred//21//k|1
        2 < MSG !/cred//21//k|1""",
    "order": """
        1 + slash 10 20 30
        2 + slash 10 20 30
        1 > SUB a
        2 > SUB a
        1 > MSG a|1
        2 > MSG a|2
        1 < MSG a|1
        1 < MSG a|2
        2 < MSG a|2
        2 < MSG a|1""",
    "order: of one publisher": """
        1 + slash 10 20 30
        1 > SUB a
        1 > MSG a|1
        1 > MSG a|2
        1 < MSG a|2
        1 < MSG a|1""",
    "order: places": """
        1 + slash 10 20 30
        2 + slash 10 20 30
        1 > SUB a
        1 > MSG a|1
        1 > MSG a|2
        1 < CMSG !/from|9 1 10 20 30 MSG a|1
        1 < CMSG !/from|8 1 10 20 30 MSG a|2""",
    "order: of what has a place": PLACED_SOUND.replace(
        "0 # MSG a|1\n0 # MSG a|2\n", "0 # MSG a|2\n0 # MSG a|1\n"
    ),
    "cause": """
        1 + slash 10 20 30
        2 + slash 10 20 30
        3 + slash 10 20 30
        1 > SUB a
        2 > SUB a
        3 > SUB a
        1 > MSG a|1
        2 < MSG a|1
        3 > MSG a|2
        1 < MSG a|2
        1 < MSG a|1""",
    "sender": SOUND.replace("2 < MSG a|3", "2 < CMSG !/from|7 1 10 21 30 MSG a|3"),
    "sender: two places": SOUND.replace(
        "2 < MSG a|3", "2 < CMSG !/from|7 1 10 20 30 MSG a|3"
    ).replace("1 < MSG a|3", "1 < CMSG !/from|8 1 10 20 30 MSG a|3"),
    "sender: two messages in a place": SOUND.replace(
        "2 < MSG a|1", "2 < CMSG !/from|7 1 10 20 30 MSG a|1"
    ).replace("2 < MSG a|3", "2 < CMSG !/from|7 1 10 20 30 MSG a|3"),
    "sender: a wrong number": SOUND.replace("1 + slash 10 20 30", "1 + slash 10 20 30 1").replace(
        "2 < MSG a|3", "2 < CMSG !/from|7 2 10 20 30 MSG a|3"
    ),
    "missing": without_line("2 < MSG a|3"),
    "missing: announced elsewhere": with_line(
        "2 < CMSG !/lost|1", "1 < CMSG !/receipt|t|2 0 0"
    ).replace("2 < MSG a|1\n", "0 ! death 1\n"),
    "missing: before a message": PLACED_SOUND.replace("2 < MSG a|1\n2 < MSG a|2\n", "2 < MSG a|2\n")
    + "2 < CMSG !/lost|1\n",
    "missing: of the bus": f"0 ! places-known own\n3 + slash 10 20 30\n{SOUND.strip()}\n"
    "3 * MSG a|joined\n0 # MSG a|joined",
    "missing: without need": with_line("2 < CMSG !/lost|1", "1 < MSG a|2").replace(
        "2 < MSG a|3\n", ""
    ),
    "published": PLACED_SOUND.replace("0 # MSG a|2\n", ""),
    "published: two places": PLACED_SOUND.replace("0 # MSG a|2\n", "0 # MSG a|2\n0 # MSG a|2\n"),
    "admitted": with_line("2 < CMSG !/lost|3", "1 < MSG a|2"),
    "receipt": without_line("1 < CMSG !/receipt|t|2 0 0"),
    "receipt: two numbers": with_line("1 < CMSG !/receipt|t|2 1 0", "1 < CMSG !/receipt|t|2 0 0")
    + "0 ! death 1\n",
    "receipt: of what was not published": PLACED_SOUND.replace("0 # MSG a|3\n", ""),
    "receipt: of what has a place": PLACED_SOUND.replace(
        "1 < CMSG !/receipt|t|2 0 0", "1 < CMSG !/error|packets-lost 1 packet was lost"
    ),
    "receipt: of nothing": with_line("1 < CMSG !/receipt|u|2 0 0", "1 < MSG a|3"),
    "receipt: of a wrong number": SOUND.replace("t|2 0 0", "t|3 0 0"),
    "receipt: unknown without a death": SOUND.replace("t|2 0 0", "t|?"),
    "receipt: refused and published": SOUND.replace("t|2 0 0", "t|refused reserved no"),
    "barrier": without_line("2 < CMSG !/sync|2"),
    "barrier: twice": with_line("2 < CMSG !/sync|2", "2 < CMSG !/sync|2").replace(
        "0 ! end\n", "1 < CMSG !/sync|1\n0 ! end\n"
    ),
    "disconnected": with_line("2 - ", "1 < MSG a|3"),
    "disconnected: an error": with_line("2 < CMSG !/error|reserved no", "1 < MSG a|3"),
    "presence": """
        1 + slash 10 20 30
        1 > SUB !/presence/*/*
        1 < MSG !/presence/20/n|join 7 10 30
        1 < MSG !/presence/20/n|join 8 10 30""",
    "presence: a stranger left": """
        1 + slash 10 20 30
        1 > SUB !/presence/*/*
        1 < MSG !/presence/20/n|leave 7 10 30 left
        1 < MSG !/presence/20/n|leave 7 10 30 left""",
    "presence: behind a will": """
        1 + slash 10 20 30
        1 > SUB !/presence/*/*
        1 > SUB a
        1 > CMSG !/sync|1
        1 < CMSG !/sync|1
        2 + slash 10 20 30
        2 > CMSG !/join|n|a|will
        1 > MSG a|1
        1 < MSG a|will
        1 < MSG a|1
        1 < MSG !/presence/20/n|leave 7 10 30 left""",
    "members: taken": NAMES.replace("leave 1", "join 2").replace(" left", ""),
    "members: of another": NAMES.replace("leave 1", "leave 2"),
    "members: behind a will": NAMES.replace("left", "gave-up"),
    "members: not behind a will": NAMES.replace(
        "0 # MSG a|will\n", "0 # MSG a|will\n0 # MSG a|other\n"
    ).replace("0 ! places", "3 + slash 10 20 30\n3 > MSG a|other\n0 ! places"),
    "members: has left": NAMES.replace("0 # MSG !/presence/20/n|leave 1 10 30 left", "1 x "),
    "members: of a list": NAMES.replace("0 # MSG !/presence/20/n|leave 1 10 30 left\n", ""),
    "ledger": with_line(
        "0 = "
        + json.dumps(
            {"bus": {"accepted": 7, "delivered": 6, "discarded": {}, "replaced": 0, "backlog": 0}}
        ),
        "2 < CMSG !/sync|2",
    ),
    "process": with_line("0 ! fault upgrade: no", "2 < CMSG !/sync|2"),
    "process: a death": with_line("0 ~ sbusd: worker 1 (pid 9) died: signal 9", "1 < MSG a|3"),
    "process: a traceback": with_line("0 ~ Traceback (most recent call last)", "1 < MSG a|3"),
}


def test_all_checks_are_shown_to_fail() -> None:
    assert {name.partition(":")[0] for name in PLANTED} == CHECKS.keys()


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    text = re.sub(r"^ +", "", PLANTED[name], flags=re.MULTILINE)
    assert name.partition(":")[0] in violated(text)


@pytest.mark.parametrize(
    "explained",
    [
        "0 ! death 1\n2 < CMSG !/lost|1\n1 < MSG a|3\n",
        "0 ! death 1\n1 < CMSG !/error|packets-lost 1 packet was lost\n",
    ],
)
def test_what_was_announced_is_not_missing(explained: str) -> None:
    text = SOUND.replace("2 < MSG a|3\n1 < MSG a|3\n", explained)
    text = text.replace("t|2 0 0", "t|?")
    assert "missing" not in violated(text)


UNCERTAIN = """
1 + slash 10 20 30
2 + slash 10 20 30
2 > CMSG !/notices/on
2 > CMSG !/sync|1
2 < CMSG !/sync|1
2 > FIRST
2 > CMSG !/sync|2
2 < CMSG !/sync|2
SENDER > MSG a|1
2 < MSG a|1
SENDER > CMSG !/sync|3
SENDER < CMSG !/sync|3
2 > CMSG !/sync|4
2 < CMSG !/sync|4
"""
LOST_PACKET = "2 < CMSG !/error|packets-lost 1 packet was lost\n"


@pytest.mark.parametrize(
    ("first", "sender", "without", "check_name"),
    [
        ("SUB a", "1", "2 < MSG a|1\n", "missing"),
        ("SUB a\n2 > CMSG echo/off", "2", "", "unwanted"),
    ],
    ids=["a subscription", "echo/off"],
)
def test_a_packet_that_may_have_been_lost_is_in_doubt(
    first: str, sender: str, without: str, check_name: str
) -> None:
    text = UNCERTAIN.replace("FIRST", first).replace("SENDER", sender).replace(without, "")
    assert check_name in violated(text)
    text = f"{text}0 ! death 1\n".replace(
        "2 < CMSG !/sync|2\n", f"{LOST_PACKET}2 < CMSG !/sync|2\n"
    )
    assert check_name not in violated(text)


def test_secret_keys_match_as_documented() -> None:
    own = (b"10", b"20", b"30")

    def matches(pattern: bytes, key: bytes) -> bool:
        return is_for(pattern, key, own, "slash")

    assert matches(b"!/cred//20//k", b"!/cred//20//k")
    assert matches(b"!/cred////k", b"!/cred//20//k")
    assert not matches(b"!/cred//20//k", b"!/cred////k")
    assert not matches(b"!/cred////k", b"!/cred//21//k")
    assert not matches(b"!/cred//21//k", b"!/cred//20//k")
    assert matches(b"!/cred////", b"!/cred//20//!/cred/1/2/3/k")
    assert not matches(b"", b"!/cred////k")


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(path)
    packet = bytes(range(256))
    log.write(1, ">", packet)
    log.event("end")
    log.close()
    entries = list(read_log(path.read_bytes().splitlines(keepends=True)))
    assert [entry[1:] for entry in entries] == [(1, ">", packet), (0, "!", b"end")]
