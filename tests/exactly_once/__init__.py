"""Counting every message once, while everything around it is killed; `ci/exactly_once.sh`."""
