"""The core beside its peers: ns a message, by shape, order, size and depth.

| file | what |
|---|---|
| bench_process_queue.py and the like | one work, ours |
| bench_memory.py | bytes a buffered message, from the process's size |
| offset_work.py | what bench_offset_map and its Python peers all do |
| pull_bodies.py | the bodies that ours and Java's decoder read |
| figures.py | how a figure is taken and handed on |
| page.py | the targets' rows, section and picture of the report |
| __main__.py | runs ours and the peers in turn, writes bench/results/core.json |
"""
