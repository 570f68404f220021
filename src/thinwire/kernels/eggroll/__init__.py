"""EGGROLL: rank-one perturbations of a six-layer GRU over a large population, and its sign update (appendix D.1)."""
