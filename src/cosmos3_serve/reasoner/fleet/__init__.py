"""The fleet: which replicas and gateways there are, in which state, and how a gateway sees them."""
