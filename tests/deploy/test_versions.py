"""The version of a build grows with every commit, and names the commit."""

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from sbus.version import RELEASE, describe
from tests.support.bus import PROJECT

AUTHOR = ("-c", "user.name=x", "-c", "user.email=x@example.org")


def git(checkout: Path, *words: str) -> str:
    done = subprocess.run(["git", *AUTHOR, *words], cwd=checkout, capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that make a version, without a commit."""
    for name in ("deploy/build_version.py", "sbus/version.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes((PROJECT / name).read_bytes())
    return tmp_path


def commit(checkout: Path) -> None:
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "x")


def version_of(checkout: Path) -> str:
    command = [sys.executable, "-I", str(checkout / "deploy/build_version.py")]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def test_a_later_commit_is_newer_and_the_release_is_the_newest(checkout: Path) -> None:
    git(checkout, "init", "--quiet")
    versions = []
    for _ in range(11):
        commit(checkout)
        version, named = version_of(checkout).split()
        assert git(checkout, "rev-parse", "HEAD").startswith(named)
        versions.append(Version(version))
    git(checkout, "tag", f"v{RELEASE}")
    versions.append(Version(version_of(checkout).split()[0]))
    assert versions == sorted(set(versions))
    assert str(versions[-1]) == RELEASE


def test_sources_without_commits_have_a_version(checkout: Path) -> None:
    assert version_of(checkout) == f"{RELEASE}.dev0"


def test_what_was_built_says_from_which_commit(checkout: Path) -> None:
    (checkout / "sbus/build.txt").write_text("1.2.3.dev4 0123abcd\n")
    assert version_of(checkout) == "1.2.3.dev4 0123abcd"
    script = "import version; print(version.__version__, version.describe('compiled'))"
    command = [sys.executable, "-c", script]
    printed = subprocess.run(command, cwd=checkout / "sbus", capture_output=True, check=True).stdout
    assert printed == b"1.2.3.dev4 1.2.3.dev4 (commit 0123abcd, step: compiled)\n"


def test_a_checkout_says_what_it_will_be() -> None:
    assert describe("python") == f"{RELEASE}.dev0 (step: python)"
