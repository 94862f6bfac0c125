"""Send a frame of pandas to a topic, and read it back in pieces, from where the last run stopped.

pip install 'ordermq[arrow]'
python examples/frames_of_a_topic.py

No group's offsets are read or changed: the offsets to go on from are in a file of the notebook's
own. A body that is no JSON is told by its place, and the rest is read.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]

from ordermq import Admin, JsonCodec, LitePullConsumer, Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.errors import DecodeError


def send(servers: str, readings: pd.DataFrame) -> None:
    with Producer("lab", name_servers=servers, codec=JsonCodec()) as producer:
        producer.send_many(
            (producer.message("readings", row), row["sensor"])
            for row in readings.to_dict("records")
        )


def read_on(servers: str, file: Path) -> Iterator[pd.DataFrame]:
    """Read what came since the last call, up to the ends of now, in frames that fit into memory."""
    offsets = json.loads(file.read_text()) if file.exists() else {}
    with (
        Admin(servers) as admin,
        LitePullConsumer(
            "notebook",
            name_servers=servers,
            codec=JsonCodec(),
            auto_commit=False,
            poll_batch_size=200,
        ) as consumer,
    ):
        ends = {queue: each.end for queue, each in admin.topic("readings").queues.items()}
        consumer.assign(list(ends))
        for queue, end in ends.items():
            consumer.seek(queue, min(end, offsets.get(str(queue), 0)))
        while any(consumer.position(queue) < end for queue, end in ends.items()):
            batch = consumer.poll("2s")
            if not batch:
                continue
            rows = []
            for message in batch:
                try:
                    rows.append(message.value())
                except DecodeError:
                    print(f"no reading: {bytes(message.body)!r}, offset {message.offset}")
            yield pd.DataFrame(rows)
            offsets[str(batch.message_queue)] = batch.next_offset
            file.write_text(json.dumps(offsets))  # only what was worked on


def main(folder: Path) -> None:
    readings = pd.DataFrame(
        {
            "sensor": [f"s-{n % 10}" for n in range(2_000)],
            "time": pd.Timestamp("2026-01-01", tz="UTC")
            + pd.to_timedelta([n // 10 for n in range(2_000)], unit="s"),
            "value": [20 + n * 7919 % 1000 / 100 for n in range(2_000)],
        }
    )
    with EmbeddedBroker() as broker:
        send(broker.name_servers, readings.head(1_500))
        frames = [*read_on(broker.name_servers, folder / "offsets.json")]
        print("rows on the first day:", sum(map(len, frames)))

        with Producer("lab", name_servers=broker.name_servers) as producer:
            producer.send(Message("readings", b"not JSON"), sharding_key="s-1")
        send(broker.name_servers, readings.tail(500))
        later = [*read_on(broker.name_servers, folder / "offsets.json")]
        print("on the second:", sum(map(len, later)))
    got = pd.concat(frames + later)
    got["time"] = pd.to_datetime(got["time"], format="ISO8601").astype(readings["time"].dtype)
    # The order of each sensor is that in which its readings were sent.
    same = [
        got[got["sensor"] == sensor].reset_index(drop=True).equals(sent.reset_index(drop=True))
        for sensor, sent in readings.groupby("sensor")
    ]
    print("the frame that was sent:", len(same), all(same))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
