"""Any result that is written is read back equal; of a damaged one what fits is read, or it is refused."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from result_rows import JSON, RUNS, rows

from fl_app.results import RESULT, Attack, Membership, ResultError, Round, Run, load_run, write_json
from fl_app.results.run import SCHEMA
from fl_app.results.study import STUDY, Place, StudyResult, load_study

shared_folder = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

WHOLE = Run(
    status="finished",
    config={"choices": {"defense": "dgp"}, "seed": 0},
    rounds=[Round.begin(1), Round.begin(2)],
    attacks=[Attack(attack="ig", client=3, psnr=[10.0, None, 30.0], notes=["a"], own_score=2.5)],
).as_json()


def put(folder: Path, content: object) -> Path:
    (folder / RESULT).write_text(json.dumps(content))
    return folder


@given(run=RUNS)
@shared_folder
def test_any_run_that_is_written_is_read_back_equal(tmp_path, run):
    run.lies_in(tmp_path)
    write_json(tmp_path / RESULT, run.as_json())
    assert load_run(tmp_path) == run
    assert load_run(tmp_path, exact=True) == run


@given(study=rows(StudyResult))
@shared_folder
def test_any_study_that_is_written_is_read_back_equal(tmp_path, study):
    study.name, study.what = study.name or "a", study.what or "b"
    columns = len(study.table.columns)
    for line in study.table.rows:
        line.ours = [*line.ours, *[Place()] * columns][:columns]
        line.paper = [*line.paper, *[None] * columns][:columns]
    write_json(tmp_path / STUDY, study.as_json(), ascii_only=False)
    assert load_study(tmp_path / STUDY) == study.lies_in(tmp_path)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in ((*path, key), *places(inner, (*path, key)))]


@given(
    place=st.sampled_from(places(WHOLE)),
    value=JSON | st.just(10**400) | st.just(math.inf) | st.just(math.nan),
)
@shared_folder
def test_one_damaged_value_leaves_the_others_as_they_are(tmp_path, place, value):
    damaged = copy.deepcopy(WHOLE)
    node = damaged
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    try:
        run = load_run(put(tmp_path, damaged))
    except ResultError:
        assert place == ("schema",)
        return
    kept = load_run(put(tmp_path, WHOLE))
    for name in ("status", "config", "rounds", "attacks", "notes", "versions", "summary"):
        if name != place[0]:
            assert getattr(run, name) == getattr(kept, name), name


@given(content=st.dictionaries(st.sampled_from(sorted(Run.model_fields)), JSON))
@shared_folder
def test_any_object_is_read_as_a_run(tmp_path, content):
    run = load_run(put(tmp_path, content))
    assert Run.model_validate(run.as_json()).lies_in(tmp_path) == run


@given(data=st.data())
@shared_folder
def test_damaged_bytes_give_a_run_or_the_one_error(tmp_path, data):
    content = bytearray(json.dumps(WHOLE).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / RESULT).write_bytes(
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    try:
        complaint = f"{load_run(tmp_path).folder / RESULT}"
    except ResultError as error:
        complaint = str(error)
    assert str(tmp_path / RESULT) in complaint
    assert "\n" not in complaint


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff{}", b"[]", b"3", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"]
)
def test_a_file_that_is_no_object_is_refused_with_its_name(tmp_path, content):
    (tmp_path / RESULT).write_bytes(content)
    with pytest.raises(ResultError, match=RESULT):
        load_run(tmp_path)


def test_a_folder_without_a_result_is_refused_with_its_name(tmp_path):
    with pytest.raises(ResultError, match="nowhere"):
        load_run(tmp_path / "nowhere")


@pytest.mark.parametrize("exact", [True, False])
def test_a_later_version_is_refused(tmp_path, exact):
    with pytest.raises(ResultError, match=str(SCHEMA + 1)):
        load_run(put(tmp_path, WHOLE | {"schema": SCHEMA + 1}), exact=exact)


def test_a_file_without_a_version_opens(tmp_path):
    old = {key: value for key, value in WHOLE.items() if key != "schema"}
    assert load_run(put(tmp_path, old)).schema_version == SCHEMA


def test_a_score_that_does_not_fit_leaves_its_image_in_place(tmp_path):
    damaged = copy.deepcopy(WHOLE)
    damaged["attacks"][0]["psnr"] = [10.0, "x", 30.0]
    (attack,) = load_run(put(tmp_path, damaged)).attacks
    assert attack.psnr == [10.0, None, 30.0]
    assert attack.others == {"own_score": 2.5}


def test_a_round_without_a_number_has_that_of_its_place(tmp_path):
    damaged = copy.deepcopy(WHOLE)
    damaged["rounds"][1]["round"] = "second"
    assert [row.round for row in load_run(put(tmp_path, damaged)).rounds] == [1, 2]


def test_what_would_be_lost_by_writing_again_is_refused(tmp_path):
    damaged = WHOLE | {"notes": [3]}
    assert load_run(put(tmp_path, damaged)).notes == []
    with pytest.raises(ResultError, match="notes"):
        load_run(tmp_path, exact=True)


@pytest.mark.parametrize(
    ("epsilon", "delta", "promise"),
    [
        (1.0, 1e-5, (1.0, 1e-5)),
        (0.0, None, (0.0, 0.0)),
        (None, 1e-5, None),
        (-1.0, 1e-5, None),
        (float("inf"), 1e-5, None),
        (float("nan"), 1e-5, None),
        (1.0, 2.0, None),
    ],
)
def test_numbers_that_promise_nothing_are_no_promise(epsilon, delta, promise):
    assert Membership(viewpoint="server", epsilon=epsilon, delta=delta).promise == promise
