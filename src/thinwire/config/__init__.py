"""Floor 1: how a run is described. Frozen dataclasses, presets with dotted overrides, every violation at once. No torch."""
