"""Which version this is.

A release is the commit that is tagged `vRELEASE`; what is built from another commit is a
development version before it. What was built has both in a file beside this module, which
deploy/build_version.py writes; a checkout does not.
"""

import os

RELEASE = "0.2.0"
"""The next release, until it is tagged."""


def _build() -> tuple[str, str]:
    try:
        with open(os.path.join(os.path.dirname(__file__), "build.txt")) as file:
            version, _, commit = file.read().strip().partition(" ")
            return version, commit
    except FileNotFoundError:
        return f"{RELEASE}.dev0", ""


__version__, COMMIT = _build()


def describe(step: str) -> str:
    """The version for people, with the commit, if known, and which step is in use."""
    commit = f"commit {COMMIT}, " if COMMIT else ""
    return f"{__version__} ({commit}step: {step})"
