"""The Spark bridge beside what Spark alone does with the same rows (spark.md, C).

| file | what is measured |
|---|---|
| rows.py | the rows, made in memory; a sink that counts them |
| sources.py | the source, from memory and from the embedded broker, beside batches that are there |
| stages.py | ordered stages and column functions beside mapInArrow and its like |
| keyed.py | stages by key beside shuffle and sort by hand |
| sinks.py | the sink, into a sender that throws away, beside an Arrow writer that counts |
| __main__.py | runs them in turns in one process, of session.py and turns.py |
| growth.py | the same by queues, keys and batch sizes |
| memory.py | millions of messages through one query: memory by rows read, see processes.py |
| page.py, pictures.py | the tables and pictures |
"""
