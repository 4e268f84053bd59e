"""Source trees whose sbusd is measured."""

from pathlib import Path

import pytest

from sbus.bench import BenchmarkFailed
from sbus.bench.programs import PROJECT
from sbus.bench.servers import has_placement


def make_tree(root: Path, main: str) -> Path:
    """A source tree with this as its sbusd."""
    package = root / "sbus/cli/sbusd"
    package.mkdir(parents=True)
    for directory in (package, package.parent, package.parents[1]):
        (directory / "__init__.py").touch()
    (package / "__main__.py").write_text(main)
    return root


def test_this_sbusd_has_a_placement() -> None:
    assert has_placement(PROJECT)


def test_another_tree_is_asked_itself(tmp_path: Path) -> None:
    assert not has_placement(make_tree(tmp_path, "print('--workers')"))


def test_a_tree_whose_sbusd_does_not_start(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, "raise SystemExit('broken')")
    with pytest.raises(BenchmarkFailed, match="broken"):
        has_placement(tree)


def test_a_directory_that_is_no_source_tree(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkFailed, match="no source tree"):
        has_placement(tmp_path)
