"""The Spark source: batch and stream reads of message queues."""

from ordermq.spark.packages import require_packages

require_packages()  # an executor that unpickles something of a module here imports this first
