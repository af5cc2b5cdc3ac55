"""A node's own policy: limits on runs, an account of past answers, and a log of what left the node.

This package does not depend on our client: plain values describe a run, so the policy can guard any
Flower app on the node.
"""

from fl_app.policy.account import Account, RunAccount
from fl_app.policy.account_file import AccountFile
from fl_app.policy.files import load_policy
from fl_app.policy.journal import Journal, read_journal
from fl_app.policy.judge import check_ask, check_cohort, check_leaving, check_noise, check_plan, check_work
from fl_app.policy.plan import Ask, AuditAsk, Leaving, Noise, Part, RunPlan
from fl_app.policy.policy import DEFAULT, Policy
from fl_app.policy.refusal import Refusal
from fl_app.policy.words import in_words

__all__ = [
    "DEFAULT",
    "Account",
    "AccountFile",
    "Ask",
    "AuditAsk",
    "Journal",
    "Leaving",
    "Noise",
    "Part",
    "Policy",
    "Refusal",
    "RunAccount",
    "RunPlan",
    "check_ask",
    "check_cohort",
    "check_leaving",
    "check_noise",
    "check_plan",
    "check_work",
    "in_words",
    "load_policy",
    "read_journal",
]
