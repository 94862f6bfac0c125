"""Metrics and traces: of the instruments here, `prometheus.py` makes a collector and
`opentelemetry.py` instruments; `tracing.py` has spans (docs/metrics.md).

Each needs a library that the base install does not have, so import the module you want.
"""
