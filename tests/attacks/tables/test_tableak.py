"""TabLeak: rows come back with their categories, and certainty says where searches agree."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks.score import score
from attacks.tables import tableak
from attacks.tables.columns import Columns
from fl_app.types import Truth

NAMES = ("age", "sex=f", "sex=m", "weight", "blood=0", "blood=A", "blood=B", "blood=AB")


def rows(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    made = torch.zeros(count, len(NAMES)).double()
    made[:, [0, 3]] = torch.randn(count, 2, generator=generator).double()
    made[torch.arange(count), 1 + torch.randint(2, (count,), generator=generator)] = 1
    made[torch.arange(count), 4 + torch.randint(4, (count,), generator=generator)] = 1
    return made


def seen(observe, count: int):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 60), nn.ReLU(), nn.Linear(60, 30), nn.ReLU(), nn.Linear(30, 3)
    ).double()
    labels = torch.arange(count) % 3
    return replace(observe(model, rows(count), labels), features=NAMES), Truth(rows(count), labels)


def test_columns_are_read_from_the_names_of_entries():
    columns = Columns.of(NAMES)
    assert columns.numbers == (0, 3)
    assert columns.categories == (("sex", (1, 2)), ("blood", (4, 5, 6, 7)))
    raw = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    relaxed = columns.relaxed(raw)
    assert torch.equal(relaxed[..., [0, 3]], raw[..., [0, 3]])
    torch.testing.assert_close(relaxed[..., 1:3], raw[..., 1:3].softmax(-1))
    torch.testing.assert_close(relaxed[..., 4:], raw[..., 4:].softmax(-1))
    settled = columns.settled(relaxed)
    assert set(settled[..., [1, 2, 4, 5, 6, 7]].unique().tolist()) == {0.0, 1.0}
    assert torch.equal(settled[..., 4:].argmax(-1), raw[..., 4:].argmax(-1))


@pytest.mark.parametrize("count", [1, 3])
def test_rows_come_back(observe, count):
    obs, truth = seen(observe, count)
    result = tableak(steps=250, restarts=4)(obs)
    scores = score(result, truth)
    assert scores["row_categories"] == 1.0
    assert scores["row_numbers"] == 1.0
    assert result.certainty.shape == (count, 4)
    assert result.certainty.max() <= 1


def test_unknown_columns_and_other_shapes_are_refused(observe):
    obs, _ = seen(observe, 1)
    with pytest.raises(ValueError, match="features"):
        tableak()(replace(obs, features=None))
    with pytest.raises(ValueError, match="8 entries"):
        tableak()(replace(obs, input_shape=(3, 2, 2)))
    with pytest.raises(ValueError, match="restarts"):
        tableak(restarts=0)
