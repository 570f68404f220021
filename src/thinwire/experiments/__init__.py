"""Floor 4: presets, one function per row or curve of a paper. Settings only; never imports torch."""
