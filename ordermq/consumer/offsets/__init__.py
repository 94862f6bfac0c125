"""Consumer offsets: at the brokers, and in a local file."""
