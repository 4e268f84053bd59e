"""Print the part of deploy/requirements.lock that some extras need, and what the bus itself does.

The comments that the resolver left in the lock (`# via NAME`) say which package needs which; the
project's own requirements are in pyproject.toml. The extra `build` has those of its build.
Usage: `lock_subset.py CHECKOUT [EXTRA...]`.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any


def main() -> None:
    checkout = Path(sys.argv[1])
    metadata = tomllib.loads((checkout / "pyproject.toml").read_text())
    project = metadata["project"]
    project["optional-dependencies"]["build"] = metadata["build-system"]["requires"]
    lock = (checkout / "deploy/requirements.lock").read_text()
    parts = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.M)[1:]
    names = {name_of(part) for part in parts}
    needed = {name_of(requirement) for requirement in requirements(project, sys.argv[2:])}
    while more := {name_of(part) for part in parts if needed & dependents(part)} - needed:
        needed |= more
    if missing := needed - names:
        raise SystemExit(f"deploy/requirements.lock has no {', '.join(sorted(missing))}")
    for part in parts:
        if name_of(part) in needed:
            print(re.sub(r"^ +#.*\n", "", part, flags=re.M), end="")


def requirements(project: dict[str, Any], extras: list[str]) -> list[str]:
    """What the project requires with these extras, some of which name further extras of its own."""
    found = [*project["dependencies"]]
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{project['name']}\[(.*)\]", requirement)
            found += requirements(project, own[1].split(",")) if own else [requirement]
    return found


def name_of(requirement: str) -> str:
    """The normalized name of the package that a requirement or a part of the lock begins with."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[._-]+", "-", found[0]).lower()


def dependents(part: str) -> set[str]:
    """The packages that need the package of this part."""
    comments = re.findall(r"^ +# +(?:via +)?(\S+)", part, re.M)
    return {name_of(comment) for comment in comments if comment != "via"}


main()
