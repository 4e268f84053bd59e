"""The report from top to bottom: what each section says, in sentences, plots and tables.

A section whose question has no answer says so in a sentence. Most important first: tiles, then a
few findings, each a sentence with a link to where it is shown. Knows nothing of the page around it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from sbus.cli.terminal import units
from sbus.pipeline.report import figures
from sbus.pipeline.report.facts import Facts, Row
from sbus.pipeline.report.figures import COLOURS, Plot
from sbus.pipeline.report.markup import (
    Bar,
    Head,
    Html,
    escaped,
    join,
    labelled,
    moment,
    name,
    nothing,
    number,
    share,
    size,
    table,
    tile,
)

NO_WORDS = Html("")
STRANGE_SHOWN = 12
BAD_EVENTS = {
    "client-expelled": "clients disconnected for misbehaviour",
    "client-kicked": "clients disconnected by an administrator",
    "client-stalled": "times a client had no room, and its publishers waited",
    "connection-refused": "connections refused",
    "access-denied": "packets refused by access rules",
    "packet-refused": "packets refused",
    "messages-discarded": "reports of discarded messages",
    "limit-reached": "limits reached",
    "worker-died": "workers died",
    "worker-silent": "workers killed for their silence",
}


@dataclass
class Section:
    id: str
    title: str
    introduction: Html = NO_WORDS
    parts: list[Html] = field(default_factory=list)
    plots: list[tuple[str, Plot]] = field(default_factory=list)

    @property
    def body(self) -> Html:
        return join(self.parts)

    def add(self, *parts: Html) -> None:
        self.parts += parts

    def plot(self, made: Plot) -> Html:
        """Where it will be drawn."""
        own = f"plot-{self.id}-{len(self.plots)}"
        self.plots.append((own, made))
        wide = " wide" if made.wide else ""
        title = escaped(made.figure.layout.title.text)
        return Html(
            f'<figure><figcaption id="{own}-title">{title}</figcaption><div class="scroll">'
            f'<div id="{own}" class="plot{wide}" role="img" aria-labelledby="{own}-title" '
            f'style="height:{made.height_px}px"></div></div></figure>'
        )


def pair(*parts: Html) -> Html:
    """A plot and what stands beside it, or below it where there is no room."""
    return Html(f'<div class="pair split">{join(parts)}</div>')


def sections(facts: Facts) -> list[Section]:
    makers: tuple[Callable[[Facts], Section], ...] = (glance, flows, slow, lost, unusual)
    return [make(facts) for make in makers]


def headline(facts: Facts) -> Html:
    """Who was recorded, when and for how long."""
    summary = facts.summary
    if summary["first"] is None:
        return Html("The recording holds no messages.")
    hosts = units.enumerated(name(host) for host in summary["hosts"])
    length = units.duration(summary["seconds"])
    return Html(
        f"{hosts}, {length} from {moment(summary['first'], date=True)} "
        f"to {moment(summary['last'], date=True)} (UTC)."
    )


# -- what happened, at a glance --------------------------------------------------------------------
def glance(facts: Facts) -> Section:
    section = Section("glance", "What happened")
    summary = facts.summary
    section.add(Html(f'<div class="tiles">{join(_tiles(facts))}</div>'), _findings(facts))
    if not summary["messages"]:
        section.add(nothing("No message was recorded, so there is no traffic to show."))
        return section
    heads = [Head("prefix", right=False), Head("messages"), Head("share"), Head("bytes")]
    rows = [
        [
            labelled(len(COLOURS) if row["prefix"] is None else place, _prefix(row)),
            number(row["messages"]),
            share(row["messages"], summary["messages"]),
            size(row["bytes"]),
        ]
        for place, row in enumerate(facts.prefixes)
    ]
    section.add(pair(section.plot(figures.traffic(facts)), table(heads, rows)))
    most = max(row["messages"] for row in facts.hot_keys)
    heads = [Head("key", right=False), Head("messages"), Head("bytes"), Head("publishers")]
    keys: list[list[Html | Bar]] = [
        [
            name(row["key"]),
            Bar(number(row["messages"]), row["messages"] / most),
            size(row["bytes"]),
            number(row["publishers"]),
        ]
        for row in facts.hot_keys
    ]
    section.add(table(heads, keys, f"The busiest of {summary['keys']:,} keys"))
    return section


def _prefix(row: Row) -> Html:
    if row["prefix"] is None:
        return Html(units.counted(row["prefixes"], "other prefix", "other prefixes"))
    return name(row["prefix"])


def _tiles(facts: Facts) -> list[Html]:
    summary = facts.summary
    seconds = summary["seconds"]
    rate = f"{units.count(round(summary['messages'] / seconds, 1))} a second" if seconds else ""
    tiles = [
        tile(units.count(summary["messages"]), "messages", Html(rate)),
        tile(units.size(summary["bytes"]), "of payloads", _per_message(summary)),
        tile(units.count(summary["keys"]), "keys", Html("")),
    ]
    if summary["publishers"] is not None:
        users = len({(row["host"], row["uid"]) for row in facts.senders})
        tiles.append(
            tile(
                units.count(summary["publishers"]),
                "publishers",
                Html(f"of {units.counted(users, 'user')}"),
            )
        )
    if summary["deliveries"] is not None and summary["messages"]:
        each = summary["deliveries"] / summary["messages"]
        tiles.append(
            tile(units.count(summary["deliveries"]), "deliveries", Html(f"{each:.1f} a message"))
        )
    if probes := figures.worst_by_start(facts.latency):
        half = sorted(row["p50_ms"] for row in probes)[len(probes) // 2]
        slowest = max(row["max_ms"] for row in probes)
        tiles.append(
            tile(
                units.microseconds(half * 1000),
                "from end to end",
                Html(f"at most {units.microseconds(slowest * 1000)}"),
            )
        )
    discarded = sum(row["discarded"] for row in facts.users)
    if facts.users:
        tone = "bad" if discarded else "good"
        behind = units.counted(facts.slow_count, "slow client")
        tiles.append(tile(units.count(discarded), "discarded", Html(behind), tone=tone))
    tiles.append(_missing_tile(summary))
    return tiles


def _per_message(summary: Row) -> Html:
    if not summary["messages"]:
        return Html("")
    return Html(f"{units.size(summary['bytes'] / summary['messages'])} a message")


def _missing_tile(summary: Row) -> Html:
    if not summary["gaps"]:
        return tile("0", "missing here", Html("the recording is whole"), tone="good")
    more = " and more" if summary["unknown_gaps"] else ""
    gaps = units.counted(summary["gaps"], "gap")
    return tile(units.count(summary["lost"]), "missing here", Html(f"in {gaps}{more}"), tone="bad")


def _findings(facts: Facts) -> Html:
    found = []
    if facts.slow and (worst := facts.slow[0])["discarded"]:
        found.append(
            f"{_client(worst)} was too slow for {number(worst['discarded'])} messages, "
            f'which were <a href="#slow">discarded</a>.'
        )
    if facts.strange:
        row = facts.strange[0]
        verb = "burst" if row["score"] > 0 else "fell silent"
        found.append(
            f"{name(row['prefix'])} {verb} at {moment(row['start'])}: {escaped(row['why'])} "
            f'(<a href="#unusual">unusual</a>).'
        )
    unheard = sum(row["messages"] for row in facts.fan_out if row["recipients"] == 0)
    if unheard:
        part = share(unheard, facts.summary["messages"])
        found.append(f'{part} of all messages went to <a href="#flows">nobody</a>.')
    if facts.summary["gaps"]:
        count = units.counted(facts.summary["gaps"], "gap")
        found.append(f'The recording has {count}: see <a href="#lost">what was lost</a>.')
    if not found:
        return Html("")
    return Html(f'<ul class="findings">{"".join(f"<li>{line}</li>" for line in found)}</ul>')


def _user(row: Row) -> Html:
    return Html(f"<span class=whole>uid {row['uid']} on {name(row['host'])}</span>")


def _client(row: Row) -> Html:
    program = name(row["program"]) if row["program"] else Html("a client that has ended")
    return Html(f"{program} (client {row['client']}, uid {row['uid']}, {name(row['host'])})")


# -- who sends what to whom ------------------------------------------------------------------------
def flows(facts: Facts) -> Section:
    section = Section("flows", "Who sends what to whom")
    summary = facts.summary
    if not summary["messages"]:
        section.add(nothing("Nobody sent anything."))
        return section
    if summary["publishers"] is None:
        section.add(
            nothing(
                "It was recorded without the right to watch the bus, so nobody knows who sent "
                "what, or to how many it went."
            )
        )
    else:
        section.introduction = Html(
            "Left: who sent how many messages under which prefix. Right, if it was recorded: who "
            "asked for them; what several clients ask for counts several times."
        )
        section.add(section.plot(figures.flow(facts)))
    section.add(_fan_out(section, facts), _users(facts))
    return section


def _fan_out(section: Section, facts: Facts) -> Html:
    if not any(row["recipients"] is not None for row in facts.fan_out):
        return Html("")
    drawn = section.plot(figures.fan_out(facts))
    if not facts.unheard:
        return pair(drawn, nothing("Every message had a recipient."))
    heads = [Head("prefix", right=False), Head("unheard"), Head("of all below it")]
    rows = [
        [name(row["prefix"]), number(row["unheard"]), share(row["unheard"], row["messages"])]
        for row in facts.unheard
    ]
    return pair(drawn, table(heads, rows, "What nobody received"))


def _users(facts: Facts) -> Html:
    if not facts.users:
        return nothing("No clients were recorded, so nothing is known of users.")
    busiest = max(max(row["messages_in"], row["delivered"]) for row in facts.users) or 1
    heads = [
        *(Head("user", right=False), Head("programs", right=False), Head("clients")),
        *(Head("published"), Head("bytes"), Head("received"), Head("bytes")),
        *(Head("discarded"), Head("refused")),
    ]
    rows: list[list[Html | Bar]] = [
        [
            _user(row),
            join([name(program) for program in row["programs"] if program], ", "),
            number(row["clients"]),
            Bar(number(row["messages_in"]), row["messages_in"] / busiest),
            size(row["bytes_in"]),
            Bar(number(row["delivered"]), row["delivered"] / busiest),
            size(row["delivered_bytes"]),
            number(row["discarded"]),
            number(row["refused"]),
        ]
        for row in facts.users
    ]
    return table(heads, rows, "What each user took of the bus")


# -- what is slow ----------------------------------------------------------------------------------
def slow(facts: Facts) -> Section:
    section = Section("slow", "What is slow")
    section.introduction = Html(
        "Clients that do not read as fast as they are sent to, and how long messages take when "
        "nobody is to blame."
    )
    section.add(_slow_clients(section, facts))
    probes = figures.worst_by_start(facts.latency)
    inside = sum(row["deliveries"] for row in facts.broker_latency) > 0
    drawn = [section.plot(figures.latency(facts))] if probes else []
    drawn += [section.plot(figures.broker_latency(facts))] if inside else []
    if drawn:
        section.add(Html('<div class="apart"></div>'), pair(*drawn) if len(drawn) > 1 else drawn[0])
    if not probes:
        section.add(nothing("There are no probes in the recording, so latency is not known."))
    return section


def _slow_clients(section: Section, facts: Facts) -> Html:
    if not facts.slow:
        seen = "No client fell behind." if facts.users else "No clients were recorded."
        return nothing(seen)
    heads = [
        *(Head("client", right=False), Head("user", right=False), Head("received")),
        *(Head("discarded"), Head("most waiting"), Head("backlog grows"), Head("stalled")),
        *(Head("when its socket is full", right=False), Head("and its backlog", right=False)),
    ]
    rows = [
        [
            labelled(
                min(place, len(COLOURS)),
                Html(
                    f"<span class=whole>{name(row['program'] or '(ended)')} "
                    f"(client {row['client']})</span>"
                ),
            ),
            _user(row),
            number(row["delivered"]),
            number(row["discarded"]),
            number(row["backlog_max"]),
            Html(f"{number(row['backlog_growth'], 1)} / s"),
            Html(f"{100 * row['stalled_share']:.0f} % of time"),
            escaped(row["soft"] or ""),
            escaped(row["hard"] or ""),
        ]
        for place, row in enumerate(facts.slow)
    ]
    behind = units.counted(facts.slow_count, "client")
    made = table(heads, rows, f"{behind} did not keep up")
    return join([section.plot(figures.backlogs(facts)), made]) if facts.backlogs else made


# -- what was lost ---------------------------------------------------------------------------------
def lost(facts: Facts) -> Section:
    section = Section("lost", "What was lost")
    summary = facts.summary
    if summary["gaps"]:
        recorders = [row["recorder"] for row in facts.gaps_by_recorder]
        heads = [
            *(Head("recorder", right=False), Head("gaps"), Head("lost")),
            *(Head("unknown"), Head("last")),
        ]
        rows = [
            [
                labelled(
                    min(place, len(COLOURS)),
                    Html(f"<span class=whole>{name(row['recorder'])}</span>"),
                ),
                number(row["gaps"]),
                number(row["lost"]),
                number(row["unknown"]),
                moment(row["last"]),
            ]
            for place, row in enumerate(facts.gaps_by_recorder)
        ]
        section.introduction = Html(
            "The recorder reads the bus like any client. Where it was too slow, or not running, "
            "the recording says so."
        )
        section.add(pair(section.plot(figures.losses(facts, recorders)), table(heads, rows)))
    else:
        section.add(nothing("Nothing is missing from the recording."))
    happened = {row["event"]: row["times"] for row in facts.events}
    bad = [(happened[event], words) for event, words in BAD_EVENTS.items() if event in happened]
    if bad:
        rows = [[Html(words), number(times)] for times, words in sorted(bad, reverse=True)]
        section.add(table([Head("what happened", right=False), Head("times")], rows))
    elif happened:
        section.add(nothing("Nobody was refused, stalled or disconnected."))
    else:
        section.add(nothing("No events were recorded, so refusals are not known."))
    return section


# -- what is unusual -------------------------------------------------------------------------------
def unusual(facts: Facts) -> Section:
    section = Section("unusual", "What is unusual")
    section.introduction = Html(
        "Each prefix compared with itself: grey is the median of its windows, give or take the "
        "usual deviation; red windows are six and more deviations off."
    )
    if not facts.strange:
        section.add(nothing("No prefix strayed far from what is usual for it."))
        return section
    heads = [Head("when"), Head("prefix", right=False), Head("what", right=False), Head("score")]
    rows = [
        [
            moment(row["start"]),
            name(row["prefix"]),
            escaped(row["why"]),
            Html(f"{row['score']:+.1f}"),
        ]
        for row in facts.strange[:STRANGE_SHOWN]
    ]
    more = len(facts.strange) - STRANGE_SHOWN
    caption = f"The strangest windows; {more} more" if more > 0 else "Strange windows"
    section.add(pair(section.plot(figures.strange(facts)), table(heads, rows, caption)))
    return section
