"""Calling listeners: orderly, by key, and concurrently."""
