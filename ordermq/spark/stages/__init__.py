"""Ordered stages: functions called in offset order on executors."""
