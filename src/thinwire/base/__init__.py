"""Floor 0: errors a person can act on, addressed random streams, files that are whole or absent, units. No torch."""
