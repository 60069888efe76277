"""Finding what is wrong with a set of faces, as pure functions of embeddings and labels.

N images with embeddings of D numbers, C identities. Embeddings may be of any length but zero and
may be mapped from a file: they are read in blocks, and searched through an index.
"""
