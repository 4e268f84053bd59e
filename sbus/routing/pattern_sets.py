"""Patterns as sets of keys: does one hold all of another's, have two any in common?

Both are answered segment by segment, because a path's segments are independent of each other: what
a pattern asks of one segment says nothing about the next. A segment is a literal, a set of one, or
a prefix, the set of what begins so; of two prefixes one holds the other or they have nothing in
common. How many segments a key may have is the other half: exactly as many as the path, or, with
`subtree`, any number above.

Does not know which keys are reserved: of patterns that begin with no literal `!`, none matches one
(`index.py`), and nothing here changes by that.
"""

from sbus.protocol.keys import PatternPath


def contains(outer: PatternPath, inner: PatternPath) -> bool:
    """Whether `outer` matches every key that `inner` matches."""
    if outer.subtree:
        fits = len(inner.segments) + inner.subtree > len(outer.segments)
    else:
        fits = not inner.subtree and len(inner.segments) == len(outer.segments)
    return fits and all(
        _segment_contains(outer, inner, place) for place in range(len(outer.segments))
    )


def overlap(one: PatternPath, other: PatternPath) -> bool:
    """Whether some key matches both."""
    if one.subtree and other.subtree:
        fits = True
    elif one.subtree:
        fits = len(other.segments) > len(one.segments)
    elif other.subtree:
        fits = len(one.segments) > len(other.segments)
    else:
        fits = len(one.segments) == len(other.segments)
    common = min(len(one.segments), len(other.segments))
    return fits and all(
        _segment_contains(one, other, place) or _segment_contains(other, one, place)
        for place in range(common)
    )


def _segment_contains(outer: PatternPath, inner: PatternPath, place: int) -> bool:
    if outer.wildcards[place]:
        return inner.segments[place].startswith(outer.segments[place])
    return not inner.wildcards[place] and inner.segments[place] == outer.segments[place]
