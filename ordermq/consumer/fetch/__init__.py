"""Fetching messages: the pull loop of one queue, and single pulls."""
