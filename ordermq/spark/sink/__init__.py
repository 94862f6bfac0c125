"""The Spark sink: rows sent in order."""
