"""Benchmarks of the Spark bridge, compared with what Spark alone does with the same rows.

| file | measures |
|---|---|
| rows.py | nothing: the rows, made in memory; a sink that counts them |
| sources.py | the source, from memory and from brokers, compared with ready record batches |
| stages.py | ordered stages and column functions, compared with mapInArrow and the like |
| keyed.py | stages by key, compared with an explicit shuffle and sort |
| sinks.py | the sink with a sender that discards, compared with an Arrow writer that counts |
| __main__.py | runs these, alternated in one process (session.py, turns.py) |
| growth.py | the same by queues, keys and batch sizes |
| queues.py, read_process.py | 4 to 1,000 queues: CPU time compared with an earlier version; idle |
| link.py | one queue over a link with a delay |
| driver.py | the driver half of a stream per micro-batch |
| state.py | stages with state |
| kafka.py | Kafka's connector and ordermq, alternated |
| kafka_latency.py, latency_process.py | micro-batches of both: from a send to its row |
| memory.py | millions of messages through one query: memory by rows read (processes.py) |
| page.py, pictures.py | tables and pictures |
"""
