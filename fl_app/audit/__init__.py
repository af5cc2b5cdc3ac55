"""Audit of a Flower app that is not edited: its leak, its privacy claims, its exits."""

from fl_app.audit.options import AuditOptions
from fl_app.audit.session import audit_app

__all__ = ["AuditOptions", "audit_app"]
