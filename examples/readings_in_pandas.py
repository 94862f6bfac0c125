"""Look at a topic with pandas, as in a notebook: all that is there now. It commits nothing.

pip install 'ordermq[arrow]'
python examples/readings_in_pandas.py

The group and its start are stored, and no offset after it. Each block would be a cell. Batches
become frames by column; what is in the bodies, by their JSON.
"""

from __future__ import annotations

import pandas as pd  # type: ignore[import-untyped]

from ordermq import Admin, JsonCodec, LitePullConsumer, Producer
from ordermq.broker import EmbeddedBroker

# Or the name servers of your cluster.
broker = EmbeddedBroker().start()
servers = broker.name_servers

with Producer("lab", name_servers=servers, codec=JsonCodec()) as producer:
    for number in range(300):
        sensor = f"s-{number % 3}"
        reading = {"sensor": sensor, "celsius": 20 + number % 7}
        producer.send(producer.message("readings", reading), sharding_key=sensor)

with Admin(servers) as admin:
    print(admin.topic("readings"))
    count = admin.topic("readings").messages

consumer = LitePullConsumer(
    "notebook",
    name_servers=servers,
    codec=JsonCodec(),
    consume_from_where="first_offset",
    auto_commit=False,  # the next look begins at the first message again
    poll_batch_size=1_000,
)
consumer.subscribe("readings")
frames: list[pd.DataFrame] = []
rows = 0
with consumer:
    while rows < count:
        batch = consumer.poll("2s")
        if batch:
            frame = batch.to_pandas()
            frames.append(frame.join(pd.DataFrame([message.value() for message in batch])))
            rows += len(batch)

readings = pd.concat(frames, ignore_index=True)
print(readings.groupby("sensor")["celsius"].agg(["count", "mean"]).round(2))
# The order of a sensor is that of its queue.
print(readings.groupby("sensor")["offset"].apply(lambda each: each.is_monotonic_increasing).all())

broker.close()
