"""What travels instead of K and V: one interface, four final classes, each a baseline for the others."""
