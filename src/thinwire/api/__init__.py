"""Floor 6: the verbs as functions on plain objects, whichever method a run is of. What ``import thinwire`` offers."""
