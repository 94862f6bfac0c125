"""The core compared with its peers: ns per message, by shape, order, size and depth.

A `Work` (figures.py) is an operation to time: prepared, run, checked. Each bench_*.py makes the
works of one structure. They are timed in two ways: `python -m bench.core` runs ordermq and the
peers in turn, each in a process of its own; test_matrix.py gives every case of ordermq alone to
pytest-benchmark.

| file | what |
|---|---|
| bench_*.py, as bench_process_queue.py | the works of one structure of ordermq |
| call_cost.py | a listener call, and a pass of the loop that makes the calls |
| bench_memory.py | bytes per buffered message, from the size of the process |
| standing_queues.py | process queues of a constant depth, one class per shape |
| offset_work.py | the work of bench_offset_map and its Python peers |
| pull_bodies.py | the bodies that both decoders read |
| figures.py | takes a figure and prints it |
| __main__.py | runs ordermq and the peers in turn, writes bench/results/core.json |
| test_matrix.py, matrix.py | every case on both native cores: bench/results/core_matrix.json |
| targets.py | every comparison, its target, and the analysis of a miss |
| page.py, pictures.py | the core's sections of the report |
"""
