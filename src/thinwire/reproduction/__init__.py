"""Floor 5: every figure and table of a paper as an item: what it runs, what it found, the paper's value, a verdict."""
