"""Training data: texts, images, pairs of sentences, and the order in which they come."""
