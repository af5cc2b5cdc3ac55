"""A node's policy around any Flower app: replies are read, defended and rebuilt outside of the app."""

from fl_app.enforcement.enforcer import AppIdentity, AppReply, Enforcer, guard_app

__all__ = ["AppIdentity", "AppReply", "Enforcer", "guard_app"]
