"""Studies: a table or figure of a paper as cells to run, a table to fill, and claims to judge."""

from fl_app.experiments.studies.plan import check_selectors, check_settings, plan_cells
from fl_app.experiments.studies.running import StudyEnd, StudyOrder, run_study
from fl_app.experiments.studies.study_file import DEFAULT_SCALE, read_study, scales_of
from fl_app.experiments.studies.table import table_for_terminal

__all__ = [
    "DEFAULT_SCALE",
    "StudyEnd",
    "StudyOrder",
    "check_selectors",
    "check_settings",
    "plan_cells",
    "read_study",
    "run_study",
    "scales_of",
    "table_for_terminal",
]
