"""Floor 2: process groups, counted messages and collectives, link models and the shaped-link laboratory."""
