"""Ordered stages: functions called in offset order on executors."""

from ordermq.spark.packages import require_packages

require_packages()  # an executor that unpickles something of a module here imports this first
