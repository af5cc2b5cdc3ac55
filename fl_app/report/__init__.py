"""Tables, plots and self-contained pages, from run folders alone, so that they can be redone any time."""

from fl_app.report.charts.layer_chart import save_layers
from fl_app.report.charts.plots import plot_partition
from fl_app.report.charts.tiles import save_images
from fl_app.report.data.comparison import ComparisonRow, Spread, comparison_rows, comparison_table
from fl_app.report.data.frontier import LEAKAGES
from fl_app.report.data.runs import BASELINE, find_runs
from fl_app.report.pages.comparison_page import compare_runs
from fl_app.report.pages.frontier_section import write_frontier
from fl_app.report.pages.notebook import notebook_view
from fl_app.report.pages.run_page import write_report
from fl_app.report.pages.summary import summary_lines

__all__ = [
    "BASELINE",
    "LEAKAGES",
    "ComparisonRow",
    "Spread",
    "compare_runs",
    "comparison_rows",
    "comparison_table",
    "find_runs",
    "notebook_view",
    "plot_partition",
    "save_images",
    "save_layers",
    "summary_lines",
    "write_frontier",
    "write_report",
]
