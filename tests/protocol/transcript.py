"""The text of a chapter: sections of packets between clients and a bus (see CONTRIBUTING.md).

A file `NN-chapter.t` opens with a comment that is its title. `bus:` and `run:` lines before the
first section hold for all of them, those of a section for itself. What can be checked without a bus
is checked here: a control key that no document has, a subscription that is undone and was never
made, two parameters that are the same packets, and whatever would be passed over in silence: a
section without steps, a parameter that no step has, a count of nothing.

Needs nothing but the standard library.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.protocol.packets import PATTERNS, Piece, TranscriptError, parse

_STEP = re.compile(r"([A-Z]+)(>\?|>|~>|<)(?: (.*))?")
_STATE = re.compile(r"([A-Z]+)(?: (end|held)|\| (full|read [1-9]\d*))")
_EVENT = re.compile(r"! ([a-z{}-]+)(?: ([A-Z]))?(?: (\d+))?")
_ADMIN = re.compile(r"admin ([a-z]+)(?: ([A-Z]))?(?: (.*))?")
_HOLE = re.compile(r"\{([a-z_]+)\}")
STATEMENT = re.compile(r"(?:([A-Z])\.(lost|replaced)|([a-z-]+))=([1-9]\d*)")
"""Of a `=` line: what a client lost without being told, or a refusal; and how many."""
_SETTING = re.compile(r"([a-z_]+)=(\S+)")
_PARAMETER = re.compile(r"(?:^|\s+)([a-z_]+)=")
_DOCUMENTED_CONTROL = re.compile(
    rb"!/(cred/whoami|sync|me|publish|notices/on|join|leave|members)"
    rb"|echo/(on|off)|sender/(on|off)|age/(0|[1-9][0-9]{0,7})|order/(queue|stack|random|latest)"
    rb"|blocking/soft/(queue|discard|block|error)|blocking/hard/(discard|block|error)"
)
"""The control keys of docs/protocol.md."""
_IS_REFUSED = re.compile(rb"^!|/!(/|$)|^.{4097}|([^/]*/){128}", re.DOTALL)
"""Such patterns are refused, and not looked for."""
EVENTS = frozenset(
    {
        *("die", "move", "upgrade", "restart", "resume"),
        *("close", "shutdown-read", "shutdown-write", "stop", "continue", "wait"),
    }
)
"""The first five are what a client may survive. The next three are its own; `stop` and `continue`
concern its worker; `wait` takes so many milliseconds."""
_OF_NO_CLIENT = frozenset({"upgrade", "restart", "resume", "wait"})
SURVIVED = ("die", "move", "upgrade", "restart", "resume")


@dataclass(frozen=True)
class Step:
    """One line: `verb` says what `who` does or what happens to them."""

    line: int
    verb: str
    who: str = ""
    text: str = ""
    pieces: tuple[Piece, ...] = ()

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(frozen=True)
class Section:
    """Its steps as written: parameters and `{event}` are filled in by `steps`."""

    path: Path
    line: int
    title: str
    bus: Mapping[str, str]
    run: Mapping[str, tuple[str, ...]]
    rows: tuple[Mapping[str, str], ...]
    lines: tuple[tuple[int, str], ...]

    @property
    def clients(self) -> str:
        """The names of its clients, in the order in which they appear."""
        names = [name for step in self.steps(self.rows[0], "die") for name in step.who]
        return "".join(dict.fromkeys(names))

    def steps(self, row: Mapping[str, str], event: str) -> list[Step]:
        """What to play with these parameters and this event."""
        known = {**row, **({"event": event} if "event" in self.run else {})}
        return [_parsed(self.path, number, text, known) for number, text in self.lines]


@dataclass
class _Draft:
    """A section that is being read."""

    line: int
    title: str
    bus: dict[str, str]
    run: dict[str, tuple[str, ...]]
    rows: list[dict[str, str]] = field(default_factory=list)
    lines: list[tuple[int, str]] = field(default_factory=list)

    def take(self, path: Path, number: int, text: str) -> None:
        word, _, rest = text.partition(" ")
        if word in ("bus:", "run:", "with") and self.lines:
            raise TranscriptError(f"{path}:{number}: {word} behind the first step")
        if word == "bus:":
            self.bus.update(_settings(path, number, rest))
        elif word == "run:":
            found = _settings(path, number, rest)
            self.run.update({name: tuple(it.split(",")) for name, it in found.items()})
        elif word == "with":
            self.rows.append(_row(path, number, rest))
        else:
            self.lines.append((number, text))


def read_chapter(path: Path) -> list[Section]:
    """All sections of a file; TranscriptError if there is anything wrong with it."""
    texts = path.read_text().splitlines()
    if not texts or not texts[0].startswith("# "):
        raise TranscriptError(f"{path}: the first line is not its title")
    head = _Draft(0, "", {}, {})
    drafts: list[_Draft] = []
    for number, text in enumerate(texts, start=1):
        if not text or text.startswith("#"):
            continue
        if text.startswith("== "):
            drafts.append(_Draft(number, text[3:], dict(head.bus), dict(head.run)))
        else:
            (drafts[-1] if drafts else head).take(path, number, text)
    if head.lines or head.rows:
        raise TranscriptError(f"{path}: a step, or its parameters, before the first section")
    if not drafts:
        raise TranscriptError(f"{path}: it has no section")
    sections = [_finished(path, draft) for draft in drafts]
    titles = [section.title for section in sections]
    if repeated := {title for title in titles if titles.count(title) > 1}:
        raise TranscriptError(f"{path}: two sections have the title {repeated.pop()!r}")
    return sections


def _finished(path: Path, draft: _Draft) -> Section:
    names = {tuple(row) for row in draft.rows}
    if len(names) > 1:
        raise TranscriptError(f"{path}:{draft.line}: rows with different parameters: {names}")
    if not draft.lines:
        raise TranscriptError(f"{path}:{draft.line}: the section has no step")
    holes = {*draft.rows[0]} if draft.rows else set()
    holes |= {"event"} & draft.run.keys()
    if unused := [name for name in holes if not any(f"{{{name}}}" in it for _, it in draft.lines)]:
        raise TranscriptError(f"{path}:{draft.line}: no step has {{{min(unused)}}}")
    rows = tuple(draft.rows) or ({},)
    lines = tuple(draft.lines)
    section = Section(path, draft.line, draft.title, draft.bus, draft.run, rows, lines)
    seen: dict[str, int] = {}
    for number, row in enumerate(rows):
        steps = section.steps(row, "die")
        _check(section, steps)
        same = seen.setdefault(repr([(it.verb, it.who, it.pieces) for it in steps]), number)
        if same != number:
            raise TranscriptError(f"{path}:{draft.line}: {row} is the same packets as {rows[same]}")
    return section


def _settings(path: Path, number: int, text: str) -> dict[str, str]:
    found = {match[1]: match[2] for match in map(_SETTING.fullmatch, text.split()) if match}
    if len(found) != len(text.split()):
        raise TranscriptError(f"{path}:{number}: not NAME=VALUE ...: {text}")
    return found


def _row(path: Path, number: int, text: str) -> dict[str, str]:
    parts = _PARAMETER.split(text)
    if parts[0] or len(parts) < 3:
        raise TranscriptError(f"{path}:{number}: not NAME=VALUE ...: {text}")
    row = dict(zip(parts[1::2], parts[2::2], strict=True))
    if hidden := row.keys() & {*PATTERNS, "event"}:
        raise TranscriptError(f"{path}:{number}: {{{min(hidden)}}} has a meaning of its own")
    return row


def _parsed(path: Path, number: int, text: str, known: Mapping[str, str]) -> Step:
    try:
        return _step(number, text, known)
    except TranscriptError as error:
        raise TranscriptError(f"{path}:{number}: {error}") from None


def _step(number: int, text: str, known: Mapping[str, str]) -> Step:
    if found := _STEP.fullmatch(text):
        who, verb, packet = found.groups()
        return Step(number, verb, who, text, tuple(parse(packet or "", known)))
    if found := _STATE.fullmatch(text):
        return Step(number, found[2] or found[3].partition(" ")[0], found[1], text)
    if found := _EVENT.fullmatch(text.replace("{event}", known.get("event", "{event}"))):
        if found[1] not in EVENTS:
            raise TranscriptError(f"there is no event {found[1]!r}")
        if not found[2] and found[1] not in _OF_NO_CLIENT:
            raise TranscriptError(f"{found[1]} needs a client")
        if (found[1] == "wait") != bool(found[3]):
            raise TranscriptError("`wait` has milliseconds, and nothing else has a number")
        return Step(number, "!", found[2] or "", f"! {found[1]} {found[3] or ''}".rstrip())
    if found := _ADMIN.fullmatch(text):
        if found[1] != "kick" and not found[3]:
            raise TranscriptError(f"it names no field: {text}")
        return Step(number, "admin", found[2] or "", f"{found[1]} {found[3] or ''}".rstrip())
    if text.startswith("= "):
        counts = _HOLE.sub(lambda hole: known.get(hole[1], hole[0]), text[2:])
        if not counts.split() or not all(map(STATEMENT.fullmatch, counts.split())):
            raise TranscriptError(f"not CODE=N A.lost=N A.replaced=N ...: {counts}")
        return Step(number, "=", "", counts)
    raise TranscriptError(f"no step: {text}")


def _check(section: Section, steps: list[Step]) -> None:
    """That packets mean what they seem to, unless they are marked with `?`."""
    subscribed: Counter[tuple[str, tuple[Piece, ...]]] = Counter()
    for step in steps:
        for who in step.who if step.verb in (">", "~>", ">?") else "":
            is_ignored = _is_unknown_unsubscription(subscribed, who, step.pieces) or (
                section.bus.get("dialect") != "dot" and _is_unknown_control(step.pieces)
            )
            if is_ignored and step.verb != ">?":
                raise TranscriptError(f"{section.path}:{step.line}: the bus ignores {step.text}")


def _is_unknown_control(pieces: tuple[Piece, ...]) -> bool:
    word, rest = _word(pieces)
    return word == b"CMSG " and not _DOCUMENTED_CONTROL.fullmatch(rest.partition(b"\0")[0])


def _is_unknown_unsubscription(
    subscribed: Counter[tuple[str, tuple[Piece, ...]]], who: str, pieces: tuple[Piece, ...]
) -> bool:
    word, rest = _word(pieces)
    pattern = (who, (rest.partition(b"\0")[0], *pieces[1:]))
    if word == b"SUB ":
        subscribed[pattern] += 1
    elif word == b"UNSUB " and not _IS_REFUSED.search(rest):
        subscribed[pattern] -= 1
        return subscribed[pattern] < 0
    return False


def _word(pieces: tuple[Piece, ...]) -> tuple[bytes, bytes]:
    """The word of a packet, and what comes behind it before the first hole."""
    start = pieces[0] if pieces and isinstance(pieces[0], bytes) else b""
    word, space, rest = start.partition(b" ")
    return word + space, rest


def chapters(folder: Path) -> Iterator[Path]:
    """The files of all chapters, in their order."""
    yield from sorted(folder.glob("[0-9][0-9]-*.t"))
