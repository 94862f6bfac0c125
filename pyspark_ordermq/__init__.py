"""Spark imports every package named `pyspark_*` at its first look-up, and finds the format here.

So this stays light: what the format is made of is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from ordermq.spark.source.batch import Snapshot


class DefaultSource(DataSource):
    """The format `ordermq`; see docs/spark.md.

    Spark makes it in a process of its own, asks it for the schema, and takes it as a pickle to
    wherever a reader is wanted: what `schema` has learnt reaches `reader`.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.snapshot: Snapshot | None = None

    @classmethod
    def name(cls) -> str:
        """What `format(...)` is called with."""
        return "ordermq"

    def schema(self) -> str:
        """The columns the options ask for; what a batch read takes is decided here."""
        from ordermq.spark.options import SourceOptions
        from ordermq.spark.schema import spark_ddl
        from ordermq.spark.source.batch import try_snapshot

        options = SourceOptions.of(self.options)
        self.snapshot = try_snapshot(options)
        return spark_ddl(options.columns, is_ordered=options.is_ordered)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        from ordermq.spark.options import SourceOptions
        from ordermq.spark.source.batch import batch_reader

        return batch_reader(SourceOptions.of(self.options), self.snapshot)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream; nothing is opened before Spark's first call on the driver."""
        from ordermq.spark.options import SourceOptions
        from ordermq.spark.source.stream import StreamReader

        return StreamReader(SourceOptions.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from ordermq.spark.sink.writer import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A streaming write; Spark makes one for each micro-batch."""
        from ordermq.spark.sink.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)
