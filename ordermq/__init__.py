"""Strictly ordered message consumption for Python at native speed."""

__version__ = "0.1.0"
