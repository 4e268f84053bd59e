"""The benchmarks of CPU time per delivered message: one-to-one, fan-out, subscriptions, workers.

Each is a choice of cases (a server and the traffic through it), which are measured in turn, and a
table of medians in which some cases are compared with a reference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from sbus.bench.figures import change_percent, pairwise_ratios
from sbus.bench.report import Result, wrapped
from sbus.bench.servers import RunSettings
from sbus.bench.traffic import (
    Bystanders,
    Case,
    Sample,
    Traffic,
    allow_bystanders,
    measure_in_turn,
)

CROWDS = {
    "20k literal": Bystanders(clients=1_000, patterns_per_client=20, wildcards=False),
    "10k wildcard": Bystanders(clients=10, patterns_per_client=1_000, wildcards=True),
}
"""What `subscriptions` adds to the base, one at a time."""

Samples = Mapping[str, Sequence[Sample]]


def compare_with_relays(name: str, run: RunSettings, traffic: Traffic, workers: int) -> Result:
    """The broker against both relays: one-to-one and fan-out, by `traffic.subscribers`."""
    cases = {
        "relay": Case(run.relay("each"), traffic),
        "relay-drain": Case(run.relay("drain"), traffic, "relay"),
        "broker": Case(run.broker(workers), traffic, "relay"),
    }
    samples = measure_in_turn(run, cases)
    notes = [
        *ratio_lines("broker", "relay", samples),
        *ratio_lines("broker", "relay-drain", samples),
    ]
    settings = {"workers": workers, **traffic_settings(traffic), **run.shown()}
    return cost_result(name, settings, cases, samples, notes)


def subscriptions(
    run: RunSettings, traffic: Traffic, workers: int, crowds: Mapping[str, Bystanders]
) -> Result:
    """The same traffic with and without each crowd of patterns that it does not match."""
    allow_bystanders(crowds.values())
    cases: dict[str, Case] = {}
    for label, keys in (("16 keys", 16), ("new keys", 0)):
        base = f"base, {label}"
        same_keys = replace(traffic, keys=keys)
        cases[base] = Case(run.broker(workers), same_keys)
        for name, crowd in crowds.items():
            crowded = replace(same_keys, bystanders=crowd)
            cases[f"{name}, {label}"] = Case(run.broker(workers), crowded, base)
    settings = {"workers": workers, **traffic_settings(traffic), **run.shown()}
    del settings["keys"]
    samples = measure_in_turn(run, cases)
    return cost_result("subscriptions", settings, cases, samples, percent=True)


def workers(run: RunSettings, one_to_one: Traffic, fan_out: Traffic) -> Result:
    """One worker against two; `apart`: the publisher alone on one, its subscribers on the other."""
    cases: dict[str, Case] = {}
    for name, traffic in (("one-to-one", one_to_one), ("fan-out", fan_out)):
        base = f"{name}, 1 worker"
        cases[base] = Case(run.broker(1), traffic)
        for placing, fillers in (("together", "before"), ("apart", "after")):
            placed = replace(traffic, fillers=fillers)
            cases[f"{name}, 2, {placing}"] = Case(run.broker(2), placed, base)
    cases["fan-out, 2, spread"] = Case(run.broker(2), fan_out, "fan-out, 1 worker")
    settings = {
        **traffic_settings(one_to_one),
        **run.shown(),
        "fan_out_messages": fan_out.messages,
        "fan_out_subscribers": fan_out.subscribers,
    }
    return cost_result("workers", settings, cases, measure_in_turn(run, cases))


def traffic_settings(traffic: Traffic) -> dict[str, str | int | float]:
    """For the head of a result."""
    return {
        "messages": traffic.messages,
        "subscribers": traffic.subscribers,
        "size": traffic.size_bytes,
        "keys": traffic.keys,
        "window": traffic.window_messages,
    }


def cost_result(
    name: str,
    settings: dict[str, str | int | float],
    cases: Mapping[str, Case],
    samples: Samples,
    notes: Sequence[str] = (),
    *,
    percent: bool = False,
) -> Result:
    """Medians of each case, and of its pairwise ratio to its reference (or change in percent)."""
    rows = []
    for case, those in samples.items():
        compared = ""
        if reference := cases[case].reference:
            ratio = median(ratios(case, reference, samples))
            compared = f"{change_percent(ratio, 1):+.1f} %" if percent else f"{ratio:.2f} x"
        rows.append((*cost_cells(case, those), compared))
    return Result(
        name=name,
        settings=settings,
        columns=("case", "µs/msg", "least", "most", "msg/s", "busy %", "vs base"),
        rows=rows,
        notes=list(notes),
        samples=samples,
    )


def cost_cells(case: str, samples: Sequence[Sample]) -> tuple[str, ...]:
    """One row without the comparison: medians, and the extremes of the cost."""
    costs = [sample.cpu_us_per_delivery for sample in samples]
    rate = median(sample.deliveries_per_second for sample in samples)
    busy = median(sample.busy_percent for sample in samples)
    extremes = (f"{min(costs):.2f}", f"{max(costs):.2f}")
    return (case, f"{median(costs):.2f}", *extremes, f"{rate:,.0f}", f"{busy:.0f}")


def ratios(case: str, reference: str, samples: Samples) -> list[float]:
    """Of each pair of measurements that were made next to each other."""
    return pairwise_ratios(
        [sample.cpu_us_per_delivery for sample in samples[case]],
        [sample.cpu_us_per_delivery for sample in samples[reference]],
    )


def ratio_lines(case: str, reference: str, samples: Samples) -> list[str]:
    """The ratios of all pairs, for the foot of a result."""
    pairs = ratios(case, reference, samples)
    shown = "  ".join(f"{ratio:.2f}" for ratio in pairs)
    return [f"{case} / {reference}, pair by pair (median {median(pairs):.2f}):", *wrapped(shown)]
