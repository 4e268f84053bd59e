"""For the programs of this folder: the checkout's sources, and a Python that has their packages.

A Python that already has the packages is used as it is, as in the build of a distribution's
package. Otherwise the program runs anew in the checkout's virtual environment, which is made first
if need be.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


def need(*packages: str) -> None:
    """Go on with these packages at hand, and with `sbus` from this checkout; may run anew."""
    sys.path[:0] = [str(PROJECT)]
    if all(importlib.util.find_spec(package) for package in packages):
        return
    python = PROJECT / ".venv/bin/python"
    if Path(sys.prefix) == PROJECT / ".venv":
        raise SystemExit(f"{sys.argv[0]}: {python} lacks one of {', '.join(packages)}")
    subprocess.run([PROJECT / "deploy/setup-venv"], check=True)
    os.execv(python, [str(python), *sys.argv])


def only_argument() -> Path:
    """The one word on the command line, a directory, which is made."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(f"usage: {sys.argv[0]} DIR")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    return folder
