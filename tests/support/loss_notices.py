"""How exact the numbers of `!/lost` notices are after deaths of workers."""

from collections.abc import Sequence


def sends_in_doubt(too_many: int, notices: Sequence[int]) -> int:
    """How many sends explain that a client was told of this many losses too many.

    The send that was under way at a death counts as not made. If it was a message, that is one
    loss too many. If it was one of these `notices`, a later notice repeats its number.
    """
    repeatable = sorted(notices[:-1])
    sends = 0
    while too_many > 0:
        too_many -= repeatable.pop() if repeatable else 1
        sends += 1
    return sends
