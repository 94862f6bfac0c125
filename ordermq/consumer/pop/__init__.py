"""Popping: batches that a broker leases to a member, instead of queues that it owns."""
