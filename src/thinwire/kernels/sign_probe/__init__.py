"""Sparse sign probes from a counter: never stored, the same bits in every implementation and on every machine."""
