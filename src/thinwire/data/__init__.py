"""Floor 2: text becomes byte shards with document boundaries, and shards become windows. No torch."""
