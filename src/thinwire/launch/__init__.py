"""Floor 2: who runs where. Local processes that speak JSON lines; knows no method."""
