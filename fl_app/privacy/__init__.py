"""What was released, and what it costs."""

from fl_app.privacy.accounting import Ledger, calibrate
from fl_app.privacy.events import Release

__all__ = ["Ledger", "Release", "calibrate"]
