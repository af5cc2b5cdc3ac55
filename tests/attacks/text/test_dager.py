"""DAGER: sentences token for token, from whole layers and from adapters, and refusal beyond its premises."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.text.dager import dager
from fl_app.models import bert_mlm
from fl_app.transforms import add_gaussian, keep_topk
from fl_app.types import Observation, RoundContext

VOCABULARY, WIDTH, MASK = 60, 32, 4


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_B = nn.Parameter(0.1 * torch.randn(base.out_features, rank))

    def forward(self, states: Tensor) -> Tensor:
        return self.base(states) + states @ self.lora_A.t() @ self.lora_B.t()


def model_of(*, layers: int = 2, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return bert_mlm(VOCABULARY, (12,), layers=layers, width=WIDTH, heads=2, inner=48)


def observe(model: nn.Module, ids: Tensor, asked: Tensor, **known) -> Observation:
    loss = F.cross_entropy(model(ids).flatten(0, 1), asked.flatten(), ignore_index=-2)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    update = {
        n: torch.zeros_like(p) if g is None else g
        for (n, p), g in zip(trained.items(), gradients, strict=True)
    }
    return Observation(model, update, training=True, **known)


def sentence(length: int, masked: list[int], seed: int) -> tuple[Tensor, Tensor, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(5, VOCABULARY, (1, length), generator=generator)
    labels = torch.full_like(whole, -2)
    labels[0, masked] = whole[0, masked]
    ids = whole.clone()
    ids[0, masked] = MASK
    return ids, labels, whole[0].tolist()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("length", "masked"), [(1, [0]), (5, [1]), (9, [2, 5]), (12, [0, 4, 11])])
def test_every_token_is_read_with_nothing_granted(length, masked, seed):
    ids, labels, whole = sentence(length, masked, seed)
    result = dager()(observe(model_of(seed=seed), ids, labels))
    assert list(result.tokens) == whole
    assert result.rule == "span"


def test_granted_targets_stand_where_the_masks_are():
    ids, labels, whole = sentence(7, [3], 1)
    result = dager(spell=lambda tokens: " ".join(map(str, tokens)))(
        observe(model_of(), ids, labels, labels=labels)
    )
    assert list(result.tokens) == whole
    assert result.text == " ".join(map(str, whole))


@pytest.mark.parametrize("rank", [10, 16])
def test_adapters_alone_give_the_text_away(rank):
    model = model_of().requires_grad_(False)
    for layer in model.layers:
        layer.query, layer.value = Adapted(layer.query, rank), Adapted(layer.value, rank)
    ids, labels, _ = sentence(9, [2], 3)
    obs = observe(model, ids, labels)
    assert all("lora" in name for name in obs.update)
    result = dager()(obs)
    assert list(result.tokens) == ids[0].tolist(), "the masked token is in no adapter"
    assert any("left as masks" in note for note in result.notes)


def test_an_adapter_of_lower_rank_than_tokens_is_refused():
    model = model_of().requires_grad_(False)
    for layer in model.layers:
        layer.query = Adapted(layer.query, 4)
    ids, labels, _ = sentence(9, [2], 3)
    with pytest.raises(ValueError, match="full rank 4"):
        dager()(observe(model, ids, labels))


def test_several_sentences_are_told_apart_by_the_second_layer():
    first, second = sentence(4, [1], 5), sentence(4, [2], 6)
    obs = observe(
        model_of(), torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]]), batch_size=2
    )
    assert sorted(dager().sentences(obs)) == sorted([first[0][0].tolist(), second[0][0].tolist()])
    with pytest.raises(ValueError, match="one sentence at a time"):
        dager()(obs)


@pytest.mark.parametrize("defense", [keep_topk(0.1), add_gaussian(1e-4)], ids=["pruned", "noisy"])
def test_a_defended_update_is_refused(defense):
    ids, labels, _ = sentence(7, [3], 1)
    obs = observe(model_of(), ids, labels)
    update, _ = defense.apply(obs.update, defense.init(obs.update), RoundContext(1, 0, torch.Generator()))
    with pytest.raises(ValueError, match="dager"):
        dager()(replace(obs, update=update))


def test_local_steps_and_other_models_are_refused():
    ids, labels, _ = sentence(7, [3], 1)
    obs = observe(model_of(), ids, labels)
    with pytest.raises(ValueError, match="3 steps"):
        dager()(replace(obs, local_steps=3, lr=0.1))
    with pytest.raises(ValueError, match="got none"):
        dager()(replace(obs, update={"output.bias": obs.update["output.bias"]}))
    with pytest.raises(ValueError, match="language model"):
        dager()(replace(obs, model=nn.Linear(2, 2)))
