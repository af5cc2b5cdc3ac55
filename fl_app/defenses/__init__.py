"""Defenses that change training itself, and the combination of several defenses."""

from fl_app.defenses.ats import ats
from fl_app.defenses.ats_search import Found, Scored, judge_with, search_policies
from fl_app.defenses.censor import censor
from fl_app.defenses.common_signs import common_signs
from fl_app.defenses.concealed import concealed
from fl_app.defenses.defense import Defense, protect
from fl_app.defenses.dp_sgd import dp_sgd, with_records
from fl_app.defenses.few_numbers import fl_basic, fl_cs, fl_std, fl_top
from fl_app.defenses.forgetful import forgetful
from fl_app.defenses.held_back import accumulate, warm_start
from fl_app.defenses.low_rank import low_rank
from fl_app.defenses.noisy_support import noisy_support
from fl_app.defenses.operations import LIBRARY
from fl_app.defenses.precode import precode
from fl_app.defenses.pruning import adgp, dgp, graddrop, outpost, topk
from fl_app.defenses.secure_signs import secure_signs
from fl_app.defenses.soteria import soteria

__all__ = [
    "LIBRARY",
    "Defense",
    "Found",
    "Scored",
    "accumulate",
    "adgp",
    "ats",
    "censor",
    "common_signs",
    "concealed",
    "dgp",
    "dp_sgd",
    "fl_basic",
    "fl_cs",
    "fl_std",
    "fl_top",
    "forgetful",
    "graddrop",
    "judge_with",
    "low_rank",
    "noisy_support",
    "outpost",
    "precode",
    "protect",
    "search_policies",
    "secure_signs",
    "soteria",
    "topk",
    "warm_start",
    "with_records",
]
