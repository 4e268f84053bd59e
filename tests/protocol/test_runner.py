"""The runner of transcripts tests them: a wrong text fails, and says where."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from sbus.compiled import STEP
from tests.protocol.accounts import difference
from tests.protocol.any_bus import needs_more
from tests.protocol.configurations import AXES, Configuration, all_of, each_value, shared_out
from tests.protocol.conftest import Chapter
from tests.protocol.lab_bus import lab_bus, needs_front
from tests.protocol.packets import Identity, Known, TranscriptError, mismatch
from tests.protocol.player import Player
from tests.protocol.real_bus import RealBus
from tests.protocol.transcript import chapters, read_chapter
from tests.support.bus import PROJECT

FOLDER = Path(__file__).parent
CONFIGURATION = Configuration(workers=2, place="other", step=STEP)
OPTIONS = {
    "socket_buffer_bytes": "20000",
    "packet_bytes_max": "8000",
    "backlog_messages_max": "1",
}
OWN_MESSAGE = "{A.client} {A.gid} {A.uid} {A.pid} MSG k\\0"


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealBus]:
    """Of a slow client it keeps one message."""
    running = RealBus(tmp_path_factory.mktemp("bus"), OPTIONS, CONFIGURATION)
    yield running
    running.close()


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not come is not awaited for a minute."""
    for module in ("plain_link", "real_bus"):
        monkeypatch.setattr(f"tests.protocol.{module}.PATIENCE_SECONDS", 1.0)


def write(directory: Path, text: str) -> Path:
    path = directory / "99-chapter.t"
    path.write_text(f"# A chapter\n== a section\n{text}\n")
    return path


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("A> CMSG blocking/soft", "the bus ignores"),
        ("A> CMSG age/1.5", "the bus ignores"),
        ("A> UNSUB k", "the bus ignores"),
        ("A> SUB k\nA> UNSUB k\nA> UNSUB k", "the bus ignores"),
        ("A> SUB k\nB> UNSUB k", "the bus ignores"),
        ("with x=a\\0\nwith x=a\\x00\nA> SUB {x}", "the same packets"),
        ("with x=1\nwith y=1\nA> SUB k", "different parameters"),
        ("A> SUB {x}", "there is no hole"),
        ("A> SUB k\nbus: soft=error", "behind the first step"),
        ("A: SUB k", "no step"),
        ("! explode A", "there is no event"),
        ("A> SUB k\\y", "means nothing"),
        ("A> SUB k\nA< {any}", "there is no hole"),
        ("with text=x\nA> SUB {text}", "a meaning of its own"),
        ("", "has no step"),
        ("with x=1 y=2\nA> SUB {x}", "no step has {y}"),
        ("run: event=*\nA> SUB k\n! die A", "no step has {event}"),
        ("A> SUB k\n! close", "close needs a client"),
        ("A> SUB k\n! wait", "milliseconds"),
        ("A> SUB k\n! close A 5", "milliseconds"),
        ("A> SUB k\nadmin clients A", "no field"),
        ("A> SUB k\nA| read 0", "no step"),
        ("A> SUB k\n= reserved=0", "not CODE=N"),
        ("A> SUB k\n= ", "not CODE=N"),
        ("A> SUB k\n= A.received=1", "not CODE=N"),
        ("A> SUB k\n= {code}=1", "not CODE=N"),
    ],
)
def test_a_text_that_cannot_be_meant_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(TranscriptError, match=why) as error:
        read_chapter(write(tmp_path, text))
    assert "99-chapter.t" in str(error.value)


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("places=same", "no axis places; there is .*workers, place"),
        ("place=here", "no place here; there is same, other"),
    ],
)
def test_where_nothing_can_be_played_is_an_error(tmp_path: Path, run: str, why: str) -> None:
    (section,) = read_chapter(write(tmp_path, f"run: {run}\nA> SUB k"))
    with pytest.raises(TranscriptError, match=rf"99-chapter\.t:2: {why}"):
        all_of(section, AXES["step"])


def test_a_wrong_text_is_reported_in_one_line(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = write(tmp_path, "A: SUB k")
    chapter = Chapter.from_parent(request.session, path=path)
    with pytest.raises(TranscriptError) as error:
        list(chapter.collect())
    assert chapter.repr_failure(error) == f"{path}:3: no step: A: SUB k"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# A chapter", "no section"),
        ("# A chapter\nwith x=1 y=2\n== a section\nA> SUB k", "before the first section"),
        ("== a section\nA> SUB k", "the first line"),
    ],
)
def test_a_file_that_is_no_chapter_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "99-chapter.t").write_text(text)
    with pytest.raises(TranscriptError, match=why):
        read_chapter(tmp_path / "99-chapter.t")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("A> SUB k\nB> MSG k\\01", r"not mentioned: A received MSG k\\01"),
        ("A> SUB k\nA> MSG k\\01\nA< MSG k\\02", r"line 6: .*A received MSG k\\01"),
        ("A> SUB k\nB> MSG k\\0more\nA< MSG k\\0{n}", "A received"),
        ("A> CMSG !/cred/whoami", "not mentioned"),
        ("A~> HELLO", "not mentioned: A received the end of its connection"),
        ("A~> HELLO\nA end", "refused or ignored {'unknown-word': 1}, not {}"),
        ("A> SUB k\nA~> HELLO\nA< MSG k\\01", "the connection of A ended"),
        ("A>? CMSG echo/off", "refused or ignored {}, not {'unknown-control': 1}"),
        ("A> MSG !/k\\0", "refused or ignored {'reserved': 1}, not {}"),
        ("A> SUB k\n= reserved=1", "refused or ignored {}, not {'reserved': 1}"),
        ("A> CMSG sender/on\nA> SUB k\nA> MSG k\\01\nA> MSG k\\02\n"
         f"A< CMSG !/from\\0{{place:2}} {OWN_MESSAGE}1\n"
         f"A< CMSG !/from\\0{{place:1}} {OWN_MESSAGE}2", "another order"),
        ("A> CMSG sender/on\nA> SUB k\nA> MSG k\\01\nA> MSG k\\02\n"
         f"A< CMSG !/from\\0{{place:1}} {OWN_MESSAGE}1\n"
         f"A< CMSG !/from\\0{{place:1}} {OWN_MESSAGE}2", "place 1 was"),
        ("A> SUB k\nA> MSG k\\01\nA end", "A received MSG"),
        ("A> SUB k\nA end", "goes on"),
        ("A> SUB k\nA| full\nB> MSG k\\01\nB> MSG k\\02\nA< MSG k\\01", "'discarded': 1"),
        ("A> SUB k\n= A.lost=1", "'discarded': 0"),
        ("A> SUB k\nA> MSG k\\01\nA| full\nA| read 1", "received MSG k"),
        ("A| full\nA| read 99", "not so many"),
        ("A| full\nA~> CMSG !/sync\\0\nA held", "the bus reads on"),
        ("A> SUB k\nadmin clients A subscriptions=2", "it has"),
        ("A> SUB k\nA held", "needs a request"),
        ("A~> CMSG !/sync\\0\nA held", "the bus reads on"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("impatience")
def test_what_a_text_does_not_say_fails_it(
    bus: RealBus, tmp_path: Path, text: str, why: str
) -> None:
    options = " ".join(f"{name}={value}" for name, value in OPTIONS.items())
    (section,) = read_chapter(write(tmp_path, f"bus: {options}\n{text}"))
    with pytest.raises(AssertionError, match=why), lab_bus(section, CONFIGURATION) as lab:
        Player(section, CONFIGURATION, lab).play()
    with pytest.raises(AssertionError, match=why):
        Player(section, CONFIGURATION, bus).play()
    bus.barrier([])
    with suppress(AssertionError):
        bus.check({}, {})  # what was refused is not held against the next text


@pytest.mark.usefixtures("impatience")
def test_a_connection_that_the_bus_keeps_is_noticed(bus: RealBus) -> None:
    link = bus.connect(0)
    with pytest.raises(AssertionError, match="descriptors"):
        bus.finish()
    link.close()
    bus.finish()


def test_numbers_of_clients_that_packets_tell_are_compared() -> None:
    known = Known({name: Identity(1, 2, 3) for name in "AB"})
    assert mismatch([b"by ", "A.client"], b"by 7", known) == ""
    assert mismatch(["A.client"], b"8", known) == "received 8"
    assert "the number of another client" in mismatch(["B.client"], b"7", known)
    assert "another number than before" in mismatch(["B.client", b"/", "B.client"], b"8/9", known)
    assert mismatch(["B.client", b"/", "A.client"], b"8/7", known) == ""


def test_refusals_and_messages_that_are_not_accounted_for_are_told_apart() -> None:
    parts = dict.fromkeys(("delivered", "replaced", "undelivered", "backlog"), 1)
    traffic = {**parts, "discarded": {"hard": 1}, "refused": {"reserved": 3}, "accepted": 5}
    assert difference(traffic, Counter(reserved=1), Counter(reserved=2)) == ""
    assert "refused" in difference(traffic, Counter(reserved=1), Counter())
    traffic["accepted"] = 6
    assert difference(traffic, Counter(reserved=3), Counter()) == (
        "the bus accounts for 5 of 6 messages"
    )


def test_each_value_occurs_on_real_buses(tmp_path: Path) -> None:
    (section,) = read_chapter(
        write(tmp_path, "run: event=*\nwith x=1\nwith x=2\nA> SUB {x}\nB> SUB {x}\n! {event} A")
    )
    every = all_of(section, AXES["step"])
    chosen = each_value(every)
    assert len(chosen) < len(every) / 6
    for axis in vars(every[0]):
        assert {getattr(it, axis) for it in chosen} == {getattr(it, axis) for it in every}
    assert not [
        it for it in every if it.workers == 1 and (it.place, it.event) != ("same", it.event)
    ]
    assert not [it for it in every if it.workers == 1 and it.event == "move"]


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("place=other\nA> SUB k", "place=other"),
        ("workers=1 event=die,move\nA> SUB k\n! {event} A", "event=move"),
        ("workers=3\nA> SUB k", "no workers"),
        ("worker=1\nA> SUB k", "no axis"),
    ],
)
def test_a_value_that_would_be_left_out_is_an_error(tmp_path: Path, run: str, why: str) -> None:
    (section,) = read_chapter(write(tmp_path, f"run: {run}"))
    with pytest.raises(TranscriptError, match=why):
        all_of(section, AXES["step"])


def test_sections_share_the_configurations_of_dear_events(tmp_path: Path) -> None:
    text = "run: event=*\nwith x=1\nwith x=2\nA> SUB {x}\nB> SUB k\n! {event} A"
    sections = read_chapter(write(tmp_path, f"{text}\n== another\n{text}\nA> SUB l"))
    chosen = shared_out(sections, AXES["step"])
    assert {it.event for _, it in chosen} == set(AXES["event"])
    for section in sections:
        own = [it for one, it in chosen if one is section]
        assert {it.event for it in own} >= {"die", "move", "upgrade"}
        assert {it.event for it in own} & {"restart", "resume"}
        assert {it.workers for it in own} == {1, 2, 4}
        for row in (0, 1):
            of_row = [it for it in own if it.row == row]
            assert {it.event for it in of_row} >= {"die", "move", "upgrade"}
            assert {it.place for it in of_row} == {"same", "other"}
        assert len(own) < len(all_of(section, AXES["step"])) / 3


def test_the_lab_plays_most(tmp_path: Path) -> None:
    sections = [section for path in chapters(FOLDER) for section in read_chapter(path)]
    every = [(section, it) for section in sections for it in all_of(section, AXES["step"])]
    assert sum(not needs_front(section, it) for section, it in every) > 0.75 * len(every)
    (section,) = read_chapter(write(tmp_path, "A> SUB k\nadmin kick A why\nA end"))
    assert needs_front(section, CONFIGURATION) == "`admin kick`"


def test_chapters_follow_each_other_and_most_up_to_presence_need_only_an_address() -> None:
    paths = list(chapters(FOLDER))
    assert set(FOLDER.glob("*.t")) == set(paths)
    sections = [section for path in paths[:9] for section in read_chapter(path)]
    assert sum(not needs_more(section) for section in sections) > 0.8 * len(sections)


def test_where_a_bus_places_clients_is_not_known_from_outside(tmp_path: Path) -> None:
    text = "A> SUB k\nB> SUB k"
    (anywhere,) = read_chapter(write(tmp_path, text))
    assert needs_more(anywhere) == ""
    (together,) = read_chapter(write(tmp_path, f"run: place=same\n{text}"))
    assert "workers" in needs_more(together)


@pytest.fixture
def program() -> ModuleType:
    """`tests/protocol/run`."""
    loader = SourceFileLoader("transcripts_program", str(FOLDER / "run"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_a_section_that_fails_disturbs_none_behind_it(program: ModuleType, tmp_path: Path) -> None:
    wrong = "run: workers=1 step=python\nA~> HELLO"
    right = "run: workers=1 step=python\nA> SUB k\nA> MSG k\\0\nA< MSG k\\0"
    sections = read_chapter(write(tmp_path, f"{wrong}\n== another\n{right}"))
    (first, second) = program.play_every(sections)
    assert first[1] == "not mentioned: A received the end of its connection"
    assert second == ("99-chapter.t: another [0-1-same-python]", "")


@pytest.mark.parametrize(
    ("words", "status"), [("slow-client", 2), ("a name counts", 2), ("names", 0)]
)
def test_sections_that_need_more_than_an_address_are_counted(
    bus: RealBus, words: str, status: int
) -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "run", "--address", bus.running.address, "-k", words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert ("for want of options of sbusd" in done.stdout) == bool(status)


BUSES_THAT_COMPLAIN = """
from tests.protocol import player, pool

class Bus:
    is_used_up = False

    def __init__(self, *_): ...

    def close(self):
        assert False, "a bus complains at its end"

pool.RealBus = Bus
player.Player.play = lambda self: None
"""


def test_what_buses_say_at_their_end_fails_a_section_although_other_tests_follow(
    tmp_path: Path,
) -> None:
    (tmp_path / "complaining.py").write_text(BUSES_THAT_COMPLAIN)
    files = (
        "tests/protocol/07-senders.t",
        "tests/unit/test_ratchets.py::test_each_kind_is_counted",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "complaining", *files],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "a bus complains at its end" in done.stdout, done.stdout + done.stderr
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
