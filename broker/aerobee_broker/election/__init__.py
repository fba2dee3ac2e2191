"""Who of a set is its master: a register that all members agree on, and the rules by which a seat is taken and left."""
