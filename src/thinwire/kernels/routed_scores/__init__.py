"""Experts at work: log-probabilities of given windows under chosen experts, and one byte at a time for generation."""
