"""Whether a store holds what it promises: invariants, rot, files that went away."""
