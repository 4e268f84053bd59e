"""Collects the sections of `NN-chapter.t`, each in the configurations that cover every pair."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sbus.compiled import STEP
from tests.protocol.configurations import Configuration, chosen
from tests.protocol.packets import TranscriptError
from tests.protocol.player import Player
from tests.protocol.pool import Pool
from tests.protocol.transcript import Section, read_chapter
from tests.support.needs import PYTHON_WAS_CHOSEN

_STEPS = ("python",) if STEP == "python" or PYTHON_WAS_CHOSEN else ("compiled", "python")
_POOL = pytest.StashKey[Pool]()
_DIRECTORY = pytest.StashKey[TemporaryDirectory[str]]()


class Transcript(pytest.Item):
    """One section in one configuration."""

    obj = None
    """pytest-trio looks at the function of every test."""

    def __init__(self, *, section: Section, configuration: Configuration, **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self._section = section
        self._configuration = configuration

    def runtest(self) -> None:
        with _pool(self.session).lent(self._section, self._configuration) as bus:
            Player(self._section, self._configuration, bus).play()

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None
    ) -> str:
        if isinstance(excinfo.value, AssertionError):
            return f"{self._section.path}:{excinfo.value}"
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self._section.line - 1, self.name


class Chapter(pytest.File):
    """One file."""

    def collect(self) -> Iterator[Transcript]:
        for section, configuration in chosen(read_chapter(self.path), _STEPS):
            row = f"{configuration.row}-" if len(section.rows) > 1 else ""
            name = f"{section.title} [{row}{configuration}]"
            yield Transcript.from_parent(
                self, name=name, section=section, configuration=configuration
            )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str:  # type: ignore[override]
        if isinstance(excinfo.value, TranscriptError):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Chapter | None:
    return Chapter.from_parent(parent, path=file_path) if file_path.suffix == ".t" else None


def _pool(session: pytest.Session) -> Pool:
    if _POOL not in session.stash:
        session.stash[_DIRECTORY] = TemporaryDirectory(prefix="sbus-transcripts-")
        session.stash[_POOL] = Pool(Path(session.stash[_DIRECTORY].name))
    return session.stash[_POOL]


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End all buses behind the last section: what they then have to say fails it."""
    if nextitem is None and _POOL in item.session.stash:
        item.session.stash[_POOL].close()
        item.session.stash[_DIRECTORY].cleanup()
