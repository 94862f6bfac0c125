"""Any sound run passes; any single defect put into it is found."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

from audit_histories import Run, close_all
from hypothesis import given, settings
from hypothesis import strategies as st

from ordermq.audit import audit

Events = list[dict[str, Any]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["consume"] * 6 + ["fail", "partial", "commit", "hand off", "crash",
                         "expire", "broker restart"]),
        st.integers(1, 4),
    ),
    min_size=6,
    max_size=30,
)  # fmt: skip


class Members:
    """Members that take turns at one queue, by our rules."""

    def __init__(self) -> None:
        self.run = Run()
        self.run.store(*range(60), keys=[f"k{each % 5}" for each in range(60)])
        self.epoch = 0
        self.committed = self.next = 0
        self.attempt = 0
        self.holder = ""
        self.take()

    def take(self) -> None:
        self.epoch += 1
        self.holder = f"member-{self.epoch}"
        self.run.open(self.holder)
        self.run.lock(self.holder, self.epoch)
        self.next, self.attempt = self.committed, 0

    def step(self, kind: str, size: int) -> None:
        run, holder = self.run, self.holder
        batch = range(self.next, min(self.next + size, 60))
        if kind in ("consume", "fail", "partial") and batch:
            run.start(holder, *batch, attempt=self.attempt)
            done = {"consume": len(batch), "fail": 0, "partial": len(batch) // 2}[kind]
            run.end(holder, done=done)
            self.next += done
            self.attempt = 0 if done == len(batch) else self.attempt + 1
            run.lock(holder, self.epoch)  # renewed in time
        elif kind == "commit":
            self.commit()
        elif kind == "hand off":
            self.commit()
            run.unlock(holder)
            run.close(holder)
            self.take()
        elif kind == "crash":
            run.start(holder, *(batch or [59]), attempt=self.attempt or 1)
            run.crash(holder)
            run.wait_ms(60_000)
            self.take()
        elif kind == "expire":
            run.wait_ms(61_000)
            run.record(holder, "LOCK_LOST")
            self.take()
        elif kind == "broker restart":
            run.restart_broker(f"broker-of-{self.epoch + 1}")
            run.record(holder, "LOCK_LOST")
            self.take()

    def commit(self) -> None:
        if self.next > self.committed:
            self.run.commit(self.holder, self.next)
            self.committed = self.next

    def finish(self) -> Events:
        while self.next < 60:
            self.step("consume", 8)
        self.commit()
        self.run.unlock(self.holder)
        return close_all(self.run).events


@st.composite
def sound_histories(draw: st.DrawFn) -> Events:
    members = Members()
    for kind, size in draw(STEPS):
        members.step(kind, size)
    return members.finish()


# -- one defect each: from a sound history to the places where it can be put in --------------


def _where(events: Events, test: Callable[[dict[str, Any]], bool]) -> list[int]:
    return [place for place, event in enumerate(events) if test(event)]


def a_batch_repeated_in_its_epoch(events: Events, pick: Callable[[list[int]], int]) -> None:
    place = pick(_where(events, lambda e: e["type"] == "END" and e["done"] == len(e["offs"])))
    end = events[place]
    start = end | {"type": "START", "attempt": 1, "keys": []}
    del start["done"]
    events[place + 1 : place + 1] = [start, dict(end)]


def a_message_not_finished(events: Events, pick: Callable[[list[int]], int]) -> None:
    finished = [offset for e in events if e["type"] == "END" for offset in e["offs"][: e["done"]]]
    place = pick(
        _where(events, lambda e: e["type"] == "END" and e["done"] > 0
               and finished.count(e["offs"][e["done"] - 1]) == 1)
    )  # fmt: skip
    events[place]["done"] -= 1


def a_commit_that_goes_too_far(events: Events, pick: Callable[[list[int]], int]) -> None:
    commits = _where(events, lambda e: e["type"] == "COMMIT_SENT" and e["off"] < 60)
    if not commits:
        return a_message_not_finished(events, pick)
    offset = events[(place := pick(commits))]["off"]
    for event in events[place : place + 3]:
        event["off"] = offset + 1
    return None


def a_commit_that_goes_back(events: Events, pick: Callable[[list[int]], int]) -> None:
    place = pick(_where(events, lambda e: e["type"] == "COMMIT_ACK" and "client" not in e))
    again = [dict(event) for event in events[place - 2 : place + 1]]
    for event in again:
        event["off"] -= 1
        event["t"] = events[place]["t"]
    events[place + 1 : place + 1] = again


def a_lease_already_over(events: Events, pick: Callable[[list[int]], int]) -> None:
    place = pick(_where(events, lambda e: e["type"] == "START"))
    for event in events:
        if event["type"] == "LOCK_OK" and event["p"] == events[place]["p"]:
            event["lease_ms"] = 0


def a_grant_to_a_stranger(events: Events, pick: Callable[[list[int]], int]) -> None:
    place = pick(_where(events, lambda e: e["type"] == "LOCK_OK" and "client" in e))
    stranger = {"client": "stranger", "epoch": events[place]["epoch"] + 1}
    events.insert(place + 1, events[place] | stranger)


def an_unlock_without_an_acknowledged_commit(
    events: Events, pick: Callable[[list[int]], int]
) -> None:
    place = pick(_where(events, lambda e: e["type"] == "UNLOCK" and "client" not in e))
    client = events[place]["p"]
    done = [e["offs"][e["done"] - 1] for e in events
            if e["type"] == "END" and e["p"] == client and e["done"] > 0]  # fmt: skip
    if not done:
        return a_lease_already_over(events, pick)
    commits = ("COMMIT_SENT", "COMMIT_ACK")
    events[:] = [
        e for e in events
        if not (e["type"] in commits and client in (e["p"], e.get("client")))
    ]  # fmt: skip
    return None


def two_batches_in_the_wrong_order(events: Events, pick: Callable[[list[int]], int]) -> None:
    def full(e: dict[str, Any]) -> bool:
        return bool(e["type"] == "END" and e["done"] == len(e["offs"]))

    ends = _where(events, full)
    pairs = [
        (one, other)
        for one, other in itertools.pairwise(ends)
        if events[one]["p"] == events[other]["p"]
        and events[one]["offs"][-1] < events[other]["offs"][0]
        and full(events[one])
    ]
    one, other = pairs[pick(list(range(len(pairs))))]
    for event in events:
        if event["type"] in ("START", "END") and event["p"] == events[one]["p"]:
            event["swap"] = event["offs"]
    first, second = events[one]["offs"], events[other]["offs"]
    for event in events:
        if event.pop("swap", None) in (first, second) and event["type"] in ("START", "END"):
            event["offs"] = second if event["offs"] == first else first
            event["done"] = len(event["offs"]) if event["type"] == "END" else 0
            event["keys"] = []


DEFECTS: dict[str, tuple[Callable[[Events, Callable[[list[int]], int]], None], set[str]]] = {
    "repeat": (a_batch_repeated_in_its_epoch, {"I5"}),
    "unfinished": (a_message_not_finished, {"I1", "I3", "I4", "I9"}),
    "commit ahead": (a_commit_that_goes_too_far, {"I4", "I5"}),
    "commit back": (a_commit_that_goes_back, {"I8"}),
    "no lease": (a_lease_already_over, {"I7"}),
    "stranger": (a_grant_to_a_stranger, {"I6"}),
    "unlock first": (an_unlock_without_an_acknowledged_commit, {"I9", "I7"}),
    "swapped": (two_batches_in_the_wrong_order, {"I1", "I3", "I4", "I5"}),
}


@settings(deadline=None)
@given(sound_histories())
def test_a_sound_run_passes(events: Events) -> None:
    report = audit(events)
    assert report.ok, "\n".join(map(str, report.violations))
    assert report.delivered == report.committed == 60
    assert report.duplicates["hand-off without crash"] == 0
    assert report.duplicates["no reason"] == 0


@settings(deadline=None)
@given(sound_histories(), st.sampled_from(sorted(DEFECTS)), st.data())
def test_a_single_defect_in_a_sound_run_is_found(
    events: Events, name: str, data: st.DataObject
) -> None:
    defect, expected = DEFECTS[name]
    bad = copy.deepcopy(events)
    defect(bad, lambda places: data.draw(st.sampled_from(places)))
    found = {violation.invariant for violation in audit(bad).violations}
    assert found & expected, f"{name}: found {found or 'nothing'}"
