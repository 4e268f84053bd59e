"""Collects the sections of `NN-chapter.t`, each in the configurations that cover every pair."""

from collections.abc import Iterator
from contextlib import ExitStack
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
_FOLDER = Path(__file__).parent
_POOL = pytest.StashKey[Pool]()


class Transcript(pytest.Item):
    """One section in one configuration."""

    obj = None
    """pytest-trio looks at the function of every test."""

    def __init__(self, *, section: Section, configuration: Configuration, **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self._section = section
        self._configuration = configuration

    def runtest(self) -> None:
        with _pool(self).lent(self._section, self._configuration) as bus:
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


def _pool(item: pytest.Item) -> Pool:
    """The buses of this folder. They end behind the last of its tests, before those of another
    folder: what they then have to say fails it."""
    folder = next(node for node in item.listchain() if node.path == _FOLDER)
    if _POOL not in folder.stash:
        with ExitStack() as stack:
            directory = stack.enter_context(TemporaryDirectory(prefix="sbus-transcripts-"))
            pool = folder.stash[_POOL] = Pool(Path(directory))
            stack.callback(pool.close)
            stack.callback(folder.stash.__delitem__, _POOL)
            folder.addfinalizer(stack.pop_all().close)
    return folder.stash[_POOL]
