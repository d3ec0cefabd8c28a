"""The runtime, against diffusers' own forward on tiny models."""
