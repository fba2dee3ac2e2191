"""Lives of a broker process: which part it plays in its set, who decides that, and what a life has to know of it."""
