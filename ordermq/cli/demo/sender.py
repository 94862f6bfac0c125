"""The producer process of the demo: sends every flight, by time of departure.

Run as `python -m ordermq.cli.demo.sender`; it prints its progress as JSON lines.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator, Sequence

import click

from ordermq import json_text
from ordermq.cli.demo.flights import TOPIC, Flight, flights_file, read_flights
from ordermq.model.message import Message
from ordermq.producer.producer import Producer

QUEUES = 8
IN_FLIGHT = 2_048
_TICK = 256  # messages sent between two checks of the clock


def main() -> None:
    """Send all flights; print {"total"}, {"sent"} ..., {"sent", "seconds"}."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name-servers", required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    flights = read_flights(flights_file(), given.limit)
    _report(total=len(flights))
    started = time.monotonic()
    # Many retries: while the broker restarts, later flights must wait behind earlier ones.
    with Producer(
        "airports",
        name_servers=given.name_servers,
        retry_times=60,
        default_topic_queue_nums=QUEUES,
        send_timeout_ms=2_000,
    ) as producer:
        sent = 0
        events = _paced(flights, given.seconds)
        for _ in producer.send_stream(events, max_in_flight=IN_FLIGHT):
            sent += 1
            if sent % 1_000 == 0:
                _report(sent=sent)
    _report(sent=sent, seconds=time.monotonic() - started)


def _paced(flights: Sequence[Flight], seconds: float) -> Iterator[tuple[Message, str]]:
    rate = len(flights) / seconds
    started = time.monotonic()
    for number, flight in enumerate(flights):
        if number % _TICK == 0:
            # From the start, so that the sender catches up after the restart of the broker.
            ahead = number / rate - (time.monotonic() - started)
            if ahead > 0:
                time.sleep(ahead)
        yield Message(TOPIC, json_text.dumps(flight._asdict()), tags=flight.carrier), flight.key


def _report(**facts: float) -> None:
    click.echo(json_text.dumps(facts).decode())


if __name__ == "__main__":
    main()
