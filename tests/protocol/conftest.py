"""Collects the sections of `NN-chapter.t`: each in some configurations on real buses, and in all
of them in the lab, if that can play it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sbus.compiled import STEP
from tests.protocol.configurations import Configuration, all_of, chosen
from tests.protocol.lab_bus import lab_bus, needs_front
from tests.protocol.packets import TranscriptError
from tests.protocol.player import Player
from tests.protocol.pool import Pool
from tests.protocol.transcript import Section, read_chapter
from tests.support.needs import PYTHON_WAS_CHOSEN

_STEPS = ("python",) if STEP == "python" or PYTHON_WAS_CHOSEN else ("compiled", "python")
_FOLDER = Path(__file__).parent
_POOL = pytest.StashKey[Pool]()


class _Item(pytest.Item):
    """One section."""

    obj = None
    """pytest-trio looks at the function of every test."""

    def __init__(self, *, section: Section, **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self._section = section

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None
    ) -> str:
        if isinstance(excinfo.value, AssertionError):
            return f"{self._section.path}:{excinfo.value}"
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self._section.line - 1, self.name


class Transcript(_Item):
    """One section in one configuration on a real bus."""

    def __init__(self, *, configuration: Configuration, **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self._configuration = configuration

    def runtest(self) -> None:
        with _pool(self).lent(self._section, self._configuration) as bus:
            Player(self._section, self._configuration, bus).play()


class LabTranscript(_Item):
    """One section in the lab."""

    def __init__(self, *, configurations: list[Configuration], **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self._configurations = configurations

    def runtest(self) -> None:
        for configuration in self._configurations:
            try:
                with lab_bus(self._section, configuration) as bus:
                    Player(self._section, configuration, bus).play()
            except AssertionError as error:
                raise AssertionError(f"{error} [{configuration.row}-{configuration}]") from error


class Chapter(pytest.File):
    """One file."""

    def collect(self) -> Iterator[_Item]:
        sections = read_chapter(self.path)
        for section in sections:
            every = [it for it in all_of(section, _STEPS) if not needs_front(section, it)]
            if every:
                name = f"{section.title} [lab]"
                yield LabTranscript.from_parent(
                    self, name=name, section=section, configurations=every
                )
        for section, configuration in chosen(sections, _STEPS):
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
