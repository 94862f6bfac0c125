"""The C core's files and flags; setup.py and ext/cffi/build.py read this through runpy.

Paths count from the repository root.
"""

INCLUDE_DIR = "ext/core"
SOURCES = [
    "ext/core/offset_tree.c",
    "ext/core/offset_runs.c",
    "ext/core/offset_block.c",
    "ext/core/offset_map.c",
    "ext/core/batch_slots.c",
    "ext/core/process_queue.c",
    "ext/core/process_queue_put.c",
    "ext/core/process_queue_take.c",
    "ext/core/bit_tree.c",
    "ext/core/message_ring.c",
    "ext/core/key_lanes.c",
    "ext/core/lane_map.c",
    "ext/core/lane_flights.c",
    "ext/core/lock_ids.c",
    "ext/core/lock_table.c",
    "ext/core/crc32.c",
    "ext/core/message_properties.c",
    "ext/core/message_codec.c",
    "ext/core/message_fields.c",
    "ext/core/message_gather.c",
    "ext/core/message_writer.c",
    "ext/core/row_columns.c",
    "ext/core/frame_codec.c",
    "ext/core/check.c",
    "ext/core/check_offsets.c",
    "ext/core/check_lanes.c",
]
PUBLIC_HEADER = "ext/core/ordermq.h"
HEADERS = [
    PUBLIC_HEADER,
    "ext/core/batch_slots.h",
    "ext/core/bit_tree.h",
    "ext/core/bytes.h",
    "ext/core/check.h",
    "ext/core/crc32.h",
    "ext/core/key_hash.h",
    "ext/core/key_lanes.h",
    "ext/core/lane_map.h",
    "ext/core/lock_ids.h",
    "ext/core/lock_table.h",
    "ext/core/message_entry.h",
    "ext/core/message_layout.h",
    "ext/core/message_properties.h",
    "ext/core/message_ring.h",
    "ext/core/mutex.h",
    "ext/core/offset_block.h",
    "ext/core/offset_leaf.h",
    "ext/core/offset_map.h",
    "ext/core/offset_runs.h",
    "ext/core/offset_tree.h",
    "ext/core/prefetch.h",
    "ext/core/process_queue.h",
]
CYTHON_PARTS = [
    "ext/cython/libordermq.pxd",
    "ext/cython/arguments.pyx",
    "ext/cython/offset_map.pyx",
    "ext/cython/process_queue.pyx",
    "ext/cython/lane_map.pyx",
    "ext/cython/lock_table.pyx",
    "ext/cython/message_codec.pyx",
    "ext/cython/message_writer.pyx",
    "ext/cython/java_hash.pyx",
    "ext/cython/row_columns.pyx",
    "ext/cython/frame_codec.pyx",
]
COMPILE_ARGS = ["-O3", "-std=c11", "-pthread"]
LINK_ARGS = ["-pthread"]
