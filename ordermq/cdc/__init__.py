"""Changes of a database, read from its log by Canal or Debezium and applied elsewhere, in order
(docs/cdc.md)."""

from typing import TYPE_CHECKING

from ordermq.lazy_imports import lazy_names

if TYPE_CHECKING:
    from ordermq.cdc.canal import CanalCodec
    from ordermq.cdc.change import Change, Operation, Order
    from ordermq.cdc.debezium import DebeziumCodec

__all__ = ["CanalCodec", "Change", "DebeziumCodec", "Operation", "Order"]

_HOMES = {
    "canal": ("CanalCodec",),
    "change": ("Change", "Operation", "Order"),
    "debezium": ("DebeziumCodec",),
}

if not TYPE_CHECKING:  # to them, each name would be there, also a misspelt one
    __getattr__, __dir__ = lazy_names("ordermq.cdc", _HOMES)
