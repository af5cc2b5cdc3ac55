"""The exported schema and the tables of the documentation are those of the types."""

from __future__ import annotations

import json

import jsonschema
import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from result_rows import RUNS, rows

from fl_app.results import Attack, Round, Run, json_text
from fl_app.results.schema import PAGE, SCHEMA_FILE, result_schema, with_tables


def test_the_schema_in_the_documentation_is_that_of_the_types(repository):
    assert json.loads((repository / "docs" / SCHEMA_FILE).read_text()) == result_schema()


def test_the_tables_in_the_documentation_are_those_of_the_types(repository):
    page = (repository / "docs" / PAGE).read_text()
    assert with_tables(page) == page
    for key in (*Round.model_fields, *Run.model_fields.keys() - {"schema_version"}):
        assert f"| `{key}` |" in page


@given(run=RUNS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_run_that_is_written_keeps_to_the_schema(run):
    jsonschema.Draft202012Validator(result_schema()).validate(json.loads(json_text(run.as_json())))


def test_a_misspelt_key_of_a_round_does_not_keep_to_the_schema():
    content = Run(rounds=[Round.begin(1)]).as_json()
    content["rounds"][0]["acuracy"] = 0.5
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(result_schema()).validate(content)


@pytest.mark.parametrize("kind", [Round, Attack])
def test_rows_are_flat_and_make_a_table(kind):
    @given(row=rows(kind))
    @settings(max_examples=30, deadline=None)
    def holds(row):
        flat = row.as_row()
        assert not any(isinstance(value, list | dict) for value in flat.values())
        assert len(pandas.DataFrame([flat])) == 1

    holds()


def test_a_flat_attack_has_the_mean_over_the_images_that_were_found():
    row = Attack(attack="ig", psnr=[10.0, None, 30.0], labels={"f1": 0.5}, granted={"lr": 0.1}).as_row()
    assert (row["attack"], row["psnr"], row["ssim"]) == ("ig", 20.0, None)
    assert (row["labels.f1"], row["granted.lr"]) == (0.5, 0.1)
