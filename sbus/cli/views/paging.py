"""Whole lists from the pages of the admin protocol."""

from typing import Any, TypeVar

import msgspec

from sbus.client.admin import AdminConnection
from sbus.protocol.admin import Request

R = TypeVar("R", bound=msgspec.Struct)


def ask_all_pages(admin: AdminConnection, request: Request, expected: type[R]) -> R:
    """The answer to a request, with the entries of all pages if it is a list."""
    result = admin.ask(request, expected)
    if getattr(result, "next", None) is None:
        return result
    whole: dict[str, Any] = msgspec.structs.asdict(result)
    while whole["next"] is not None:
        page = admin.ask(msgspec.structs.replace(request, after=whole["next"]), expected)
        for name, entries in msgspec.structs.asdict(page).items():
            whole[name] = entries if name == "next" else [*whole[name], *entries]
    if "unanswered" in whole:
        whole["unanswered"] = sorted(set(whole["unanswered"]))
    return expected(**whole)
