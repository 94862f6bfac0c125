"""One assigned queue: its state, lease, buffer and statistics."""
