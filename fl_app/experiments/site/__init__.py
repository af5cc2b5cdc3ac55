"""Static site of all reports: experiments beside the papers' numbers, claims, galleries, the frontier."""

from fl_app.experiments.site.build import build_site
from fl_app.experiments.site.results_text import write_results

__all__ = ["build_site", "write_results"]
