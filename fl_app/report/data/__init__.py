"""Values of a report: records of runs, scores, comparisons and their number formats."""
