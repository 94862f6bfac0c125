"""The format `ordermq`, where Spark looks for it.

Spark imports every package named `pyspark_*` at its first look-up of a format. So this one stays
light: it imports the rest only when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    from ordermq.spark.versions import FORMAT, require

    require(FORMAT)  # says what to do: PySpark is missing, or older than the format
    raise

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

    Spark makes it in a process of its own, asks it for the schema, and pickles it to wherever it
    needs a reader. So `reader` sees what `schema` has stored.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        from ordermq.spark.frozen_imports import freeze_imports

        super().__init__(options)
        self.snapshot: Snapshot | None = None
        freeze_imports()  # of a write, a process makes nothing else

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "ordermq"

    def schema(self) -> str:
        """Return the columns that the options select, and take the snapshot of a batch read."""
        from ordermq.spark.packages import require_packages
        from ordermq.spark.shown_errors import text_first

        with text_first():
            require_packages()  # here, because Spark asks for this first
            from ordermq.spark.frozen_imports import freeze_imports
            from ordermq.spark.options import SourceOptions
            from ordermq.spark.schema import spark_ddl
            from ordermq.spark.source.batch import try_snapshot

            options = SourceOptions.of(self.options)
        # Here and not in `reader`: Spark asks for the schema once per DataFrame, but makes a
        # reader per action, and all actions must read the same messages.
        self.snapshot = try_snapshot(options)
        freeze_imports()
        return spark_ddl(
            options.columns,
            is_ordered=options.is_ordered,
            is_split=options.min_partitions is not None,
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from ordermq.spark.options import SourceOptions
        from ordermq.spark.schema import check_given
        from ordermq.spark.shown_errors import text_first
        from ordermq.spark.source.readers import batch_reader

        with text_first():
            options = SourceOptions.of(self.options)
            check_given(schema.names, options)
            return batch_reader(options, self.snapshot)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream; it opens nothing before Spark's first call."""
        from ordermq.spark.options import SourceOptions
        from ordermq.spark.schema import check_given
        from ordermq.spark.source.readers import stream_reader

        # With its traceback: PySpark fails once more after an error here, and would show only that.
        options = SourceOptions.of(self.options)
        check_given(schema.names, options)
        return stream_reader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query."""
        from ordermq.spark.shown_errors import text_first

        with text_first():
            from ordermq.spark.sink.writer import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream; Spark makes one per micro-batch."""
        from ordermq.spark.shown_errors import text_first

        with text_first():
            from ordermq.spark.sink.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)
