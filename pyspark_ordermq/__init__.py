"""Spark imports every package named `pyspark_*` at its first look-up, and finds the format here.

So this stays light: what the format is made of is imported when it is used.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """The format `ordermq`; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` is called with."""
        return "ordermq"

    def schema(self) -> str:
        """The columns the options ask for."""
        from ordermq.spark.options import SourceOptions
        from ordermq.spark.schema import spark_ddl

        options = SourceOptions.of(self.options)
        return spark_ddl(options.columns, is_ordered=options.is_ordered)
