"""Evidence documents: their data, their reading, what they are worth, and the statistics in them."""
