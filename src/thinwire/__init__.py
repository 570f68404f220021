"""Thinwire pretrains language models where the wire is thin: across machines that share little bandwidth, or none."""

__version__ = "0.1.0"
