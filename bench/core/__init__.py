"""The core beside its peers: ns a message, by shape, order, size and depth.

A `Work` (figures.py) is something to time: made ready, run, checked. Each bench_*.py makes
those of one structure. Two things time them: `python -m bench.core` takes turns with the
peers, a process each; test_matrix.py gives ours alone, every case, to pytest-benchmark.

| file | what |
|---|---|
| bench_process_queue.py and the like | the works of one structure, ours |
| bench_memory.py | bytes a buffered message, from the process's size |
| standing_queues.py | process queues of a standing depth, a class a shape |
| offset_work.py | what bench_offset_map and its Python peers all do |
| pull_bodies.py | the bodies that ours and Java's decoder read |
| figures.py | how a figure is taken and handed on |
| __main__.py | runs ours and the peers in turn, writes bench/results/core.json |
| test_matrix.py, matrix.py | every case on both native cores: bench/results/core_matrix.json |
| targets.py | every comparison, its target, and why it misses |
| page.py, pictures.py | the core's sections of the report |
"""
