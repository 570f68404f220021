"""Floor 1: how a run is described. Presets with dotted overrides, every violation at once. No torch."""
