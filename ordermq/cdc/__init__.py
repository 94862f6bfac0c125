"""Changes of a database, read from its log by Canal or Debezium and applied elsewhere, in order
(docs/cdc.md)."""

from typing import TYPE_CHECKING

from ordermq.lazy_imports import lazy_names

if TYPE_CHECKING:
    from ordermq.cdc.apply import ApplyChanges, TableStatistics
    from ordermq.cdc.canal import CanalCodec
    from ordermq.cdc.change import Change, Operation, Order
    from ordermq.cdc.debezium import DebeziumCodec
    from ordermq.cdc.metrics import ChangeMetrics
    from ordermq.cdc.postgresql import PostgreSqlReader

__all__ = [
    "ApplyChanges",
    "CanalCodec",
    "Change",
    "ChangeMetrics",
    "DebeziumCodec",
    "Operation",
    "Order",
    "PostgreSqlReader",
    "TableStatistics",
]

_HOMES = {
    "apply": ("ApplyChanges", "TableStatistics"),
    "canal": ("CanalCodec",),
    "change": ("Change", "Operation", "Order"),
    "debezium": ("DebeziumCodec",),
    "metrics": ("ChangeMetrics",),
    "postgresql": ("PostgreSqlReader",),
}

if not TYPE_CHECKING:  # to them, each name would be there, also a misspelt one
    __getattr__, __dir__ = lazy_names("ordermq.cdc", _HOMES)
