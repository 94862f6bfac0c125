"""Group membership: subscriptions, rebalance, queue locks, revocation, admin requests."""
