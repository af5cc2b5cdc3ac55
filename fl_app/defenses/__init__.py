"""Defenses that change training itself, and the combination of several defenses."""

from fl_app.defenses.ats import ats
from fl_app.defenses.ats_search import Found, Scored, judge_with, search_policies
from fl_app.defenses.defense import Defense, protect
from fl_app.defenses.dp_sgd import dp_sgd, with_records
from fl_app.defenses.few_numbers import fl_basic, fl_cs, fl_std, fl_top
from fl_app.defenses.operations import LIBRARY
from fl_app.defenses.precode import precode
from fl_app.defenses.pruning import adgp, dgp, graddrop, outpost, topk
from fl_app.defenses.soteria import soteria

__all__ = [
    "LIBRARY",
    "Defense",
    "Found",
    "Scored",
    "adgp",
    "ats",
    "dgp",
    "dp_sgd",
    "fl_basic",
    "fl_cs",
    "fl_std",
    "fl_top",
    "graddrop",
    "judge_with",
    "outpost",
    "precode",
    "protect",
    "search_policies",
    "soteria",
    "topk",
    "with_records",
]
