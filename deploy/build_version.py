"""The version of a build: `python deploy/build_version.py` prints it, a space, and the commit.

A version grows with the number of commits, so that what is built from a later commit is newer. The
sources of a source distribution have this in a file. Without that and without git the number of
commits counts as 0.
"""

import re
import subprocess
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
RECORD = PROJECT / "sbus/build.txt"
"""Not in a checkout; what is built has it."""


def build() -> str:
    """The version, a space and the commit."""
    if RECORD.exists():
        return RECORD.read_text().strip()
    release = re.findall(r'^RELEASE = "(.+)"$', (PROJECT / "sbus/version.py").read_text(), re.M)[0]
    commit = _git("rev-parse", "--short=8", "HEAD")
    if f"v{release}" in _git("tag", "--points-at", "HEAD").split():
        return f"{release} {commit}"
    return f"{release}.dev{_git('rev-list', '--count', 'HEAD') or 0} {commit}".strip()


def _git(*words: str) -> str:
    """What git prints; "" where it is missing, or these sources are no checkout."""
    if not (PROJECT / ".git").exists():
        return ""
    try:
        done = subprocess.run(["git", "-C", PROJECT, *words], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    print(build())
