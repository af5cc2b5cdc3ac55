"""Differential privacy: records of releases, and accountants of their cost."""

from fl_app.privacy.accounting import Ledger, calibrate
from fl_app.privacy.client_account import ClientAccount
from fl_app.privacy.client_noise import ClientNoise
from fl_app.privacy.events import Release
from fl_app.privacy.mechanism import ClientLevel, no_noise
from fl_app.privacy.noise_grid import NoiseGrid
from fl_app.privacy.noise_shares import NoiseShares
from fl_app.privacy.record_level import RecordLevel
from fl_app.privacy.turn_account import TurnAccount
from fl_app.privacy.turns import TakeTurns

__all__ = [
    "ClientAccount",
    "ClientLevel",
    "ClientNoise",
    "Ledger",
    "NoiseGrid",
    "NoiseShares",
    "RecordLevel",
    "Release",
    "TakeTurns",
    "TurnAccount",
    "calibrate",
    "no_noise",
]
