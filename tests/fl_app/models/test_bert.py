"""BERT: the same as torch's own layers, a place for each token, and derivatives that attacks can use."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fl_app.models import ModelSpec, bert_mlm, build_model
from fl_app.models.layers import linear_layer

TOKENS, LENGTH, WIDTH = 11, 9, 12
SMALL = {"layers": 2, "width": WIDTH, "heads": 3, "inner": 20}


def make(**settings) -> nn.Module:
    torch.manual_seed(0)
    model = bert_mlm(TOKENS, (LENGTH,), **(SMALL | settings)).double()
    with torch.no_grad():
        for parameter in model.parameters():  # far from zero, so that every part matters
            parameter.normal_(std=0.5)
    return model


def in_torch(layer: nn.Module) -> nn.Module:
    """Return torch's own encoder layer with the weights of ours."""
    theirs = nn.TransformerEncoderLayer(
        WIDTH, 3, 20, dropout=0.0, activation="gelu", batch_first=True, layer_norm_eps=1e-12
    ).double()
    projections = [layer.query, layer.key, layer.value]
    own = {
        "self_attn.in_proj_weight": torch.cat([part.weight for part in projections]),
        "self_attn.in_proj_bias": torch.cat([part.bias for part in projections]),
    }
    for name, part in {
        "self_attn.out_proj": layer.merge,
        "linear1": layer.widen,
        "linear2": layer.narrow,
        "norm1": layer.attention_norm,
        "norm2": layer.norm,
    }.items():
        own |= {f"{name}.weight": part.weight, f"{name}.bias": part.bias}
    theirs.load_state_dict(own)
    return theirs


def test_is_what_torchs_own_encoder_layers_make_of_it():
    model, ids = make(), torch.randint(TOKENS, (2, 7))
    width = (WIDTH,)
    states = model.tokens.weight[ids] + model.positions.weight[:7]
    states = F.layer_norm(states, width, model.norm.weight, model.norm.bias, 1e-12)
    for layer in model.layers:
        states = in_torch(layer)(states)
    states = F.gelu(model.transform(states))
    states = F.layer_norm(states, width, model.transform_norm.weight, model.transform_norm.bias, 1e-12)
    torch.testing.assert_close(model(ids), states @ model.output.weight.T + model.output.bias)


def test_embeddings_of_tokens_give_what_the_tokens_give():
    model, ids = make(), torch.randint(TOKENS, (2, 5))
    torch.testing.assert_close(model.from_embeddings(model.embed(ids)), model(ids))
    assert model.embed(ids).shape == model.place(model.embed(ids)).shape == (2, 5, WIDTH)


@pytest.mark.parametrize("tied", [False, True])
def test_tied_weights_are_one_parameter(tied):
    model = make(tied=tied)
    names = [name for name, _ in model.named_parameters()]
    assert ("output.weight" not in names) == tied
    assert linear_layer(model, who="test")[0] == "output"
    assert (model.output.weight is model.tokens.weight) == tied


def test_only_tokens_and_positions_that_occur_have_a_gradient():
    model, ids = make(), torch.tensor([[3, 7, 3, 1]])
    F.cross_entropy(model(ids)[0, 1:2], torch.tensor([5])).backward()
    assert model.tokens.weight.grad.any(dim=1).nonzero().flatten().tolist() == [1, 3, 7]
    assert model.positions.weight.grad.any(dim=1).tolist() == [True] * 4 + [False] * 5


def test_its_gradient_can_be_differentiated_once_more():
    model = make(layers=1)
    weights = [model.positions.weight, model.layers[0].query.weight, model.layers[0].widen.bias]

    def squared_gradient(embedded: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model.from_embeddings(embedded)[0], torch.tensor([1, 2]))
        return sum(g.square().sum() for g in torch.autograd.grad(loss, weights, create_graph=True))

    start = torch.randn(1, 2, WIDTH, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squared_gradient, (start,), rtol=1e-4)


def test_weights_are_drawn_as_in_the_paper():
    torch.manual_seed(0)
    model = bert_mlm(500, (64,), layers=1, width=64)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=0.05), name
        else:
            assert set(parameter.tolist()) == ({1.0} if name.endswith("norm.weight") else {0.0}), name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"in_shape": [3, 4, 4]}, r"in_shape must be one positive integer \(L,\), got \[3, 4, 4\]"),
        ({"heads": 5}, "width must be a multiple of heads=5, got 12"),
        ({"layers": 0}, "layers must be a positive integer, got 0"),
        ({"tied": 1}, "tied must be true or false, got 1"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    whole = {"num_classes": TOKENS, "in_shape": [LENGTH], **SMALL} | settings
    with pytest.raises(ValueError, match=message):
        build_model(ModelSpec("fl_app.models.bert_mlm", whole))


def test_a_sentence_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="at most 9 tokens, got 10"):
        make()(torch.zeros(1, 10, dtype=torch.long))
