"""SUPPORT2: what is used, what is left out, and that test rows teach nothing."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from patients import HEADER, patient, write_patients

from fl_app.data import DataUnavailable
from fl_app.data.hospital import CATEGORIES, LEFT_OUT, fit_encoding, support2

CONF = Path(__file__).parents[3] / "conf" / "data" / "support2.yaml"


def test_classes_are_split_alike_and_by_the_seed(tmp_path):
    root = write_patients(tmp_path, [patient(i) for i in range(400)])
    one, same, other = (support2(root, seed=seed) for seed in (1, 1, 2))
    assert (len(one.train), len(one.test)) == (320, 80)
    assert int(one.train.labels.sum()) == 80
    assert int(one.test.labels.sum()) == 20
    assert torch.equal(one.test.inputs, same.test.inputs)
    assert not torch.equal(one.test.inputs, other.test.inputs)


def test_no_column_that_is_left_out_can_be_told_from_the_inputs(tmp_path):
    rows = [patient(i) for i in range(40)]
    before = support2(write_patients(tmp_path, rows))
    after = support2(write_patients(tmp_path, [row | dict.fromkeys(LEFT_OUT, "999") for row in rows]))
    assert torch.equal(before.train.inputs, after.train.inputs)
    assert before.feature_names[:2] == ("age", "alb")
    used = {name.split("=")[0] for name in before.feature_names}
    assert used == {"age", "alb", *CATEGORIES}


def test_test_rows_teach_nothing(tmp_path):
    """Whatever stands in the test rows, the training rows are encoded alike."""
    rows = [patient(i) for i in range(100)]
    base = support2(write_patients(tmp_path, rows))
    # ages rise from row to row, so their ranks are the rows' numbers
    ranks = torch.cat([base.train.inputs[:, 0], base.test.inputs[:, 0]]).argsort().argsort()
    tested = set(ranks[len(base.train) :].tolist())
    assert len(tested) == 20
    wild = {"age": "1e6", "alb": "", "race": "martian"}
    changed = support2(write_patients(tmp_path, [r | wild if i in tested else r for i, r in enumerate(rows)]))
    assert torch.equal(changed.train.inputs, base.train.inputs)
    assert changed.feature_names == base.feature_names
    assert (changed.test.inputs[:, 0] > 1000).all()
    assert len(changed.test.inputs[:, changed.feature_names.index("alb")].unique()) == 1
    race = [i for i, name in enumerate(changed.feature_names) if name.startswith("race=")]
    assert not changed.test.inputs[:, race].any()


def test_training_numbers_have_mean_0_and_deviation_1(tmp_path):
    train = support2(write_patients(tmp_path, [patient(i) for i in range(100)])).train.inputs[:, :2].double()
    torch.testing.assert_close(train.mean(0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(train.std(0, correction=0), torch.ones(2, dtype=torch.float64))


def test_missing_numbers_are_the_median_and_missing_categories_a_column():
    rows = [patient(i) for i in range(5)]
    rows[0] |= {"age": "", "race": "NA"}
    encoding = fit_encoding(rows)
    values = dict(zip(encoding.names, encoding.encode(rows).T.tolist(), strict=True))
    ages = np.array([42.5, 41, 42, 43, 44])
    np.testing.assert_allclose(values["age"], (ages - ages.mean()) / ages.std(), rtol=1e-5, atol=1e-6)
    assert values["race=missing"] == [1, 0, 0, 0, 0]
    assert values["race=white"] == [0, 1, 1, 1, 1]
    assert values["income=missing"] == [1] * 5


def test_a_column_that_never_changes_is_zero_and_not_infinite():
    rows = [patient(i, age=50) for i in range(5)]
    encoding = fit_encoding(rows)
    assert encoding.encode(rows)[:, 0].tolist() == [0.0] * 5


def test_files_that_are_not_there_or_not_it_say_what_is_wrong(tmp_path):
    with pytest.raises(DataUnavailable, match=r"support2: cannot read .*support2\.csv: .*set data\.root"):
        support2(tmp_path)
    with pytest.raises(ValueError, match=r"must have the columns of SUPPORT2, but lacks .*race"):
        support2(write_patients(tmp_path, [patient(0)], [name for name in HEADER if name != "race"]))
    with pytest.raises(ValueError, match="age must be a number, got 'old'"):
        support2(write_patients(tmp_path, [patient(i, age="old") for i in range(9)]))
    with pytest.raises(ValueError, match="no training row has a value of alb"):
        support2(write_patients(tmp_path, [patient(i, alb="") for i in range(9)]))
    with pytest.raises(ValueError, match="hospdead must be 0 or 1, got '2'"):
        support2(write_patients(tmp_path, [patient(i, hospdead=2) for i in range(9)]))
    with pytest.raises(ValueError, match=r"test_fraction must be in \(0, 1\), got 1"):
        support2(tmp_path, test_fraction=1)


def test_the_configs_keys_are_the_arguments_and_its_values_their_defaults(monkeypatch):
    settings = OmegaConf.to_container(OmegaConf.load(CONF), resolve=False)
    assert settings.pop("_target_") == "fl_app.data.support2"
    parameters = inspect.signature(support2).parameters
    assert set(settings) == set(parameters)
    assert all(settings[n] == p.default for n, p in parameters.items() if p.default is not p.empty)
    monkeypatch.delenv("FL_APP_DATA", raising=False)
    assert OmegaConf.load(CONF).root == "data"


def test_the_real_patients(shared_data):
    if not (shared_data / "support2.csv").is_file():
        pytest.skip("support2.csv is not among the shared data")
    table = support2(shared_data)
    assert len(table.train) + len(table.test) == 9105
    assert int(table.train.labels.sum() + table.test.labels.sum()) == 2360
    assert table.in_shape == (53,) == (table.train.inputs.shape[1],)
    assert torch.isfinite(table.train.inputs).all()
    assert torch.isfinite(table.test.inputs).all()
    # severity is known to go with death, and nothing comes near to giving it away
    from fl_app.training.ranking import auroc

    areas = {
        name: max(area := auroc(column, table.test.labels), 1 - area)
        for name, column in zip(table.feature_names, table.test.inputs.T, strict=True)
    }
    assert areas["aps"] > 0.7
    assert max(areas.values()) < 0.85
