"""Training data: texts, images, pairs of sentences, and the order of batches."""
