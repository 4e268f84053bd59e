"""Earlier versions of the broker, which a bus is upgraded from and goes back to.

The tree of a commit is laid out once, below build/ of the checkout, and its step is compiled.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.bus import PROJECT

PREVIOUS = "7b29a2ca"
"""The version before the changes that are under way."""
FIRST = "04e6ae3f"
"""The oldest version that a bus may be upgraded from, until there is a release."""
_TREES = PROJECT / "build/trees"


def is_known(commit: str) -> bool:
    """Whether the history of this checkout goes back to this commit: a shallow clone's does not,
    and what was unpacked has none."""
    command = ["git", "-C", str(PROJECT), "cat-file", "-e", f"{commit}^{{commit}}"]
    return not subprocess.run(command, capture_output=True, check=False).returncode


def skip_without(commit: str) -> None:
    """Skip the test where history does not go back to this commit."""
    if not is_known(commit):
        pytest.skip(f"the history of this checkout has no commit {commit}")


def tree_of(commit: str) -> Path:
    """Where the tree of a commit is. Raises subprocess.CalledProcessError for a commit that the
    checkout's history does not have."""
    tree = _TREES / commit
    if not tree.exists():
        _TREES.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=_TREES))
        try:
            _lay_out(commit, new)
            os.rename(new, tree)
        except OSError:
            if not tree.exists():  # which another process may have made meanwhile
                raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return tree


def _lay_out(commit: str, tree: Path) -> None:
    archive = ["git", "-C", str(PROJECT), "archive", commit, "sbus", "deploy", "pyproject.toml"]
    content = subprocess.run(archive, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", tree], input=content, check=True)
    subprocess.run([sys.executable, "-I", str(tree / "deploy/compile_step.py")], check=True)
    tree.chmod(0o755)  # other users run it
