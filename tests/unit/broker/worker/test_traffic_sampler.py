"""Which clients exchange how many messages, counted for a bounded number of deliveries."""

from types import SimpleNamespace
from typing import Any, cast

from sbus.broker.delivery.fan_out_times import Recipient
from sbus.broker.ipc.worker_protocol import ClientTraffic, Exchange, TrafficSample
from sbus.broker.worker.publish_batch import PublishBatch
from sbus.broker.worker.router import Route
from sbus.broker.worker.session import Session
from sbus.broker.worker.traffic_sampler import TrafficSampler


def session_of(client: int) -> Session:
    return cast("Session", SimpleNamespace(client=client, outbox=object()))


def route_to(*sessions: Session) -> Route:
    return Route(0, tuple(cast("Recipient", it.outbox) for it in sessions))


def batch_of(publisher: Session, *routes: Route) -> PublishBatch:
    messages = [(b"", b"", route) for route in routes]
    return cast("PublishBatch", SimpleNamespace(session=publisher, messages=messages))


def test_messages_and_exchanges_are_counted() -> None:
    ann, bob, eve = clients = [session_of(number) for number in (1, 2, 3)]
    sampler = TrafficSampler()
    for _ in range(3):
        sampler.published(batch_of(ann, route_to(bob), route_to(bob, ann)))
    sampler.published(batch_of(bob, route_to()))
    sampler.walked(77, [route_to(eve), route_to(eve, bob)])
    assert sampler.sample(clients) == TrafficSample(
        clients=[ClientTraffic(1, 6, 3), ClientTraffic(2, 1, 7), ClientTraffic(3, 0, 2)],
        exchanges=[Exchange(1, 2, 6), Exchange(77, 3, 2), Exchange(77, 2, 1)],
    )


def test_recipients_that_left_are_not_reported() -> None:
    ann, bob = session_of(1), session_of(2)
    sampler = TrafficSampler()
    sampler.published(batch_of(ann, route_to(bob)))
    assert sampler.sample([ann]) == TrafficSample(clients=[ClientTraffic(1, 1, 0)])


def test_what_is_counted_and_reported_is_bounded() -> None:
    publisher, *others = clients = [session_of(number) for number in range(1, 2_002)]
    everybody = route_to(*others)
    sampler = TrafficSampler()
    for _ in range(1_000):
        sampler.published(batch_of(publisher, everybody))
    sample = sampler.sample(clients)
    assert len(sample.clients) == len(sample.exchanges) == 512
    assert sample.clients[0] == ClientTraffic(1, 10, 0)


def test_nothing_is_counted_without_messages() -> None:
    assert TrafficSampler().sample(cast("Any", [])) == TrafficSample()
