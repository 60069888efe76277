"""From photos to aligned faces: detectors, choice of face, alignment, the run over a whole set."""
