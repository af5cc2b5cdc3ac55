"""Every scheme of FL-TOP's Table 1 trains at the rate that the search on held-out images found."""

from __future__ import annotations

import re
from pathlib import Path

from fl_app.config.compose import study_of
from fl_app.experiments.studies import plan_cells, read_study

RESULTS = Path(__file__).parents[4] / "docs" / "results.md"


def found_rates():
    """Return the bold place of each row of the search."""
    (_, section) = RESULTS.read_text(encoding="utf-8").split('<a id="fltop_rates-cpu"></a>')
    table = [line for line in section.split("<a id=")[0].splitlines() if line.startswith("|")]
    rates = [float(rate) for rate in re.findall(r"lr ([\d.]+)", table[0])]
    rows = [[place.strip() for place in line.strip("|").split("|")] for line in table[2:]]
    bold = {name: [place.startswith("**") for place in places] for name, *places in rows}
    return {name: rates[marks.index(True)] for name, marks in bold.items() if any(marks) and name != "claim"}


def test_the_rates_of_the_table_are_those_that_the_search_found():
    found = found_rates()
    assert {scheme.split()[0] for scheme in found} == {"FL-BASIC", "FL-CS", "FL-TOP", "FL-STD"}
    cells = plan_cells(read_study("fltop_table1", study_of("fltop_table1")))
    used = {
        cell.at["scheme"]: float(override.removeprefix("lr="))
        for cell in cells
        for override in cell.overrides
        if override.startswith("lr=")
    }
    # what was not searched takes the rate of the next larger share
    assert used == {scheme: found[scheme.replace(" 5 %", " 10 %")] for scheme in used}
    assert used.keys() == {cell.at["scheme"] for cell in cells}
