"""A copy of a checkout, in which one file at a time is changed.

Every process of a bus and every program of a test imports what is changed, whatever environment,
user or directory it is started with, and Python and C are changed in the same way.

What runs can be seen from outside: an instrumented module stores into a page of memory that all
processes share, which no system call and no descriptor shows to a test.
"""

import ast
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutation.operators import body_start

_PAGE_MODULE = '''\
"""A page of memory that all processes share: what they run is stored here."""
import codecs, mmap, os

page = bytearray({size})
try:
    _file = os.open({path!r}, os.O_RDWR | os.O_CLOEXEC)
except OSError:
    pass
else:
    # The mapping keeps a copy of its descriptor, which tests would count among those of the bus. It
    # is closed; for it not to be closed again the mapping must outlive every module.
    _copy = os.dup(_file)
    os.close(_copy)
    page = mmap.mmap(_file, {size})
    os.close(_copy)
    os.close(_file)
    codecs.register_error("sbus-executed", lambda error, _kept=page: error)
'''
_IMPORT = "from sbus._executed import page as _sbus_executed"


class Scratch:
    """The copy; `executed` is the page."""

    def __init__(self, tree: Path, path: Path, page_bytes: int) -> None:
        self.path = path
        self._times = itertools.count(2_000_000_000)  # one that no compiled file knows
        listed = subprocess.run(
            [
                "git",
                "-C",
                str(tree),
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ],
            capture_output=True,
            check=True,
        )
        for name in listed.stdout.decode().split("\0"):
            if (tree / name).is_file():
                target = path / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(tree / name, target)
        page = path / "executed.page"
        page.write_bytes(bytes(page_bytes))
        page.chmod(0o666)
        text = _PAGE_MODULE.format(path=str(page), size=page_bytes)
        (path / "sbus/_executed.py").write_text(text)

    @property
    def page(self) -> Path:
        return self.path / "executed.page"

    def write(self, name: str, text: str) -> None:
        """Change a file, so that what was compiled of it is not used."""
        (self.path / name).write_text(text)
        moment = next(self._times)
        os.utime(self.path / name, (moment, moment))

    @contextmanager
    def changed(self, name: str, text: str) -> Iterator[None]:
        """Change a file for the length of a block."""
        old = (self.path / name).read_text()
        self.write(name, text)
        try:
            yield
        finally:
            self.write(name, old)

    def was_executed(self) -> bool:
        """Whether any process came to a mark since this was asked last."""
        content = self.page.read_bytes()
        self.clear()
        return any(content)

    def clear(self) -> None:
        with self.page.open("r+b") as file:
            file.write(bytes(self.page.stat().st_size))


@contextmanager
def scratch_of(tree: Path, page_bytes: int = 4096) -> Iterator[Scratch]:
    """A copy of this checkout for the length of a block, which all users may read."""
    with tempfile.TemporaryDirectory(prefix="sbus-mutation-") as path:
        os.chmod(path, 0o755)
        yield Scratch(tree, Path(path), page_bytes)


def mark(number: int) -> ast.stmt:
    """The statement that stores into the page."""
    return ast.parse(f"_sbus_executed[{number}] = 1").body[0]


def text_of(tree: ast.Module) -> str:
    """The text of a tree with marks in it."""
    futures = [
        place
        for place, node in enumerate(tree.body)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]
    start = futures[-1] + 1 if futures else body_start(tree.body)
    tree.body.insert(start, ast.parse(_IMPORT).body[0])
    return ast.unparse(ast.fix_missing_locations(tree))
