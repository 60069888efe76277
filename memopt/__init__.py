"""Memory core: counts, plans and rematerialises the tensors of a training step."""
