"""Patterns as sets of keys: does one contain another, do two overlap?

The segments of a path are independent of each other, so both are decided segment by segment. The
literals that match a segment are one (a literal) or all with a prefix; of two prefixes, one extends
the other or they are disjoint. The number of segments of a key must equal the path's or, with
`subtree`, exceed it. Reserved keys (`index.py`) make no difference.
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
