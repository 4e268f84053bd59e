"""Print the part of deploy/requirements.lock that is needed to run sbus, with its metrics.

Who needs what stands in the lock itself, in the comments that the resolver left: `# via NAME`. What
the project needs by itself is in pyproject.toml. Usage: `runtime_lock.py CHECKOUT`.
"""

import re
import sys
import tomllib
from pathlib import Path


def name_of(requirement: str) -> str:
    """The name of a requirement, spelled in the one way that counts."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[._-]+", "-", found[0]).lower()


def main() -> None:
    checkout = Path(sys.argv[1])
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["metrics"]]
    lock = (checkout / "deploy/requirements.lock").read_text()
    parts = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.M)[1:]
    blocks = {name_of(part): part for part in parts}
    needed = {name_of(requirement) for requirement in requirements}
    while more := {name for name in blocks.keys() - needed if needed & needing(blocks[name])}:
        needed |= more
    missing = needed - blocks.keys()
    if missing:
        raise SystemExit(f"deploy/requirements.lock has no {', '.join(sorted(missing))}")
    for name in sorted(needed):
        print(re.sub(r"^ +#.*\n", "", blocks[name], flags=re.M), end="")


def needing(block: str) -> set[str]:
    """Who needs the package of this block."""
    comments = re.findall(r"^ +# +(?:via +)?(\S+)", block, re.M)
    return {name_of(comment) for comment in comments if comment != "via"}


main()
