"""Evaluation of embeddings: verification of listed pairs, all-against-all, search, baselines."""

from facetrain.evaluation.identification import IdentityResult, evaluate_identities
from facetrain.evaluation.metrics import OperatingPoint, RateReport, Roc, ScoreReport
from facetrain.evaluation.search import SEARCH_BACKENDS, SearchIndex, build_index
from facetrain.evaluation.verification import VerificationResult, verify

__all__ = [
    "SEARCH_BACKENDS",
    "IdentityResult",
    "OperatingPoint",
    "RateReport",
    "Roc",
    "ScoreReport",
    "SearchIndex",
    "VerificationResult",
    "build_index",
    "evaluate_identities",
    "verify",
]
