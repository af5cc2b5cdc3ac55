"""One client of a federation: its answers, its memory between rounds, and its checks.

`app` makes a Flower ClientApp from the user's training function.
"""

from fl_app.client.library import app
from fl_app.client.own_training import OwnFunction
from fl_app.client.secure import SecureSettings

__all__ = ["OwnFunction", "SecureSettings", "app"]
