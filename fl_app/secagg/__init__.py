"""Secure aggregation: the server learns the sum of the clients' vectors, but no single vector. No Flower.

A client calls `offer`, `share`, `mask`, (`endorse`) and `unmask`; the server drives a `SecureRound`.
"""

from fl_app.secagg.client import Step, check_job, endorse, mask, offer, share, terms_of, unmask
from fl_app.secagg.errors import ProtocolError, QuorumError, RoundFailed, SpoiledSum
from fl_app.secagg.fixed_point import FixedPoint, fit_fixed_point
from fl_app.secagg.graph import Assumptions, Neighbourhood, fit_neighbourhood, most_colluding
from fl_app.secagg.identities import Identity, create_identities, load_identity, load_pinned
from fl_app.secagg.job import Job, hash_config
from fl_app.secagg.revealed import Revealed
from fl_app.secagg.server import SecureRound, SecureSum
from fl_app.secagg.terms import Terms, check_quorum, smallest_threshold

__all__ = [
    "Assumptions",
    "FixedPoint",
    "Identity",
    "Job",
    "Neighbourhood",
    "ProtocolError",
    "QuorumError",
    "Revealed",
    "RoundFailed",
    "SecureRound",
    "SecureSum",
    "SpoiledSum",
    "Step",
    "Terms",
    "check_job",
    "check_quorum",
    "create_identities",
    "endorse",
    "fit_fixed_point",
    "fit_neighbourhood",
    "hash_config",
    "load_identity",
    "load_pinned",
    "mask",
    "most_colluding",
    "offer",
    "share",
    "smallest_threshold",
    "terms_of",
    "unmask",
]
