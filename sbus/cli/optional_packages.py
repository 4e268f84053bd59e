"""Packages that come with an extra of sbus, for commands that need them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sbus.errors import PackageMissing


@contextmanager
def needs_packages(extras: Mapping[str, str]) -> Iterator[None]:
    """Raise PackageMissing if one of these packages is missing; it names the extra that
    installs the package."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in extras:
            raise
        name = package.replace("_", "-")
        raise PackageMissing(
            f"this needs the package {name}: pip install 'sbusd[{extras[package]}]'"
        ) from error
