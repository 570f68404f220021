"""Attention over one block of keys at a time, exact when the blocks' results are merged, and its backward."""
