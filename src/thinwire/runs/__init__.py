"""Floor 2: what a run leaves behind. Layout, checkpoints, checksummed logs, the loop. Knows no method."""
