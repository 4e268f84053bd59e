"""Planted faults of the client library, the bridge and the recorder."""

from tests.mutation.planted import Bug

BUGS = (
    Bug(
        "sync waits for a reply that died with a worker",
        "Inbox._feed_refusal",
        "code == PACKETS_LOST and self.mend_lost_packets()",
        "False",
        found_by=["tests/unit/client/test_reconnection.py"],
    ),
    Bug(
        "a publisher that waits to send does not read",
        "BlockingLink.wait_to_send",
        (
            "if not self._wait(select.POLLIN | select.POLLOUT) & select.POLLOUT:\n"
            "    self.link.read_nowait(READ_PACKETS_MAX)"
        ),
        "self._wait(select.POLLOUT)",
        found_by=["tests/broker/test_refused_publishers.py"],
    ),
    Bug(
        "a connection loses messages after its last stream",
        "Routes.never_wait",
        "bool(self._subscriptions)",
        "self.are_shared",
        found_by=["tests/broker/test_subscription_objects.py"],
    ),
    Bug(
        "a lazy name is looked for at each access",
        "__getattr__",
        "globals()[name] = value",
        "",
        found_by=["tests/unit/client/test_public_names.py"],
    ),
    Bug(
        "an inner limit replaces the deadline of a call",
        "BlockingLink.limit",
        "before.or_after(seconds)",
        "Deadline(seconds)",
        found_by=["tests/unit/client/test_blocking.py"],
    ),
    Bug(
        "a file in memory stays open that could not be written",
        "make_memfd",
        "os.close(memfd)",
        "",
        found_by=["tests/unit/unix/test_memfd.py"],
    ),
    Bug(
        "the spool loses records when the bridge is killed",
        "Spool.release",
        (
            "self._file.write(state)\n"
            "rest = state.end - end\n"
            "if rest and end < max(rest, _READ_BYTES):\n"
            "    return"
        ),
        (
            "rest = state.end - end\n"
            "if rest and end < max(rest, _READ_BYTES):\n"
            "    self._file.write(state)\n"
            "    return"
        ),
        found_by=["tests/unit/bridge/test_spool.py"],
    ),
    Bug(
        "an end that is heard meanwhile is deleted unseen",
        "Ends.due",
        "if self._ends.get(origin) is end:\n    del self._ends[origin]",
        "del self._ends[origin]",
        found_by=["tests/unit/bridge/test_ends.py"],
    ),
    Bug(
        "rows of an earlier recording are never dropped",
        "drop_expired",
        "recorded.values()",
        "list(recorded.values())[-1:]",
        found_by=["tests/unit/pipeline/store/test_sealing.py"],
    ),
    Bug(
        "merged files are not on disk when they are listed",
        "SealedFileWriter.finish",
        "sync(part)",
        "",
        found_by=["tests/unit/pipeline/store/test_compaction.py"],
    ),
)
