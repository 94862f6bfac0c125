"""Bridges to other frameworks: FastStream, and kombu with Celery; each needs an extra."""
