import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from attacks.sequences.decoder_gradient import decoder_gradient

TOKENS, START = 40, 1


def literal(model, contexts, labels, pieces):
    """The gradient of one guess, by autograd on the loss as the paper writes it (equation 7)."""
    table = model.decoder.embedding.weight.detach()
    previous = torch.cat([table[START][None], labels[:-1] @ table[pieces]])
    logits = model.decode(previous[None], contexts[None])[0]
    everything = torch.zeros(len(labels), TOKENS, dtype=labels.dtype).index_copy(1, pieces, labels)
    loss = -(everything * logits.log_softmax(dim=1)).sum(dim=1).mean()
    names = [
        name for name, _ in model.named_parameters() if name.startswith(("decoder.gates", "decoder.show"))
    ]
    names += ["output.weight", "output.bias"]
    found = dict(
        zip(names, torch.autograd.grad(loss, [model.get_parameter(name) for name in names]), strict=True)
    )
    return {
        name: value[pieces] if name.startswith("output") else value.detach() for name, value in found.items()
    }


@settings(max_examples=15, deadline=None)
@given(tokens=st.lists(st.integers(2, TOKENS - 1), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_true_tokens_and_contexts_have_the_gradient_of_the_client(say, tokens, seed):
    whole, said = say(tokens, seed), say(tokens, seed, cut=True)
    pieces = torch.tensor(sorted(set(tokens)))
    labels = F.one_hot(torch.searchsorted(pieces, torch.tensor(tokens)), len(pieces)).double()
    found = decoder_gradient(said.obs.model, pieces, START)(said.contexts, labels[None])
    assert len(found) == 6
    for name, value in found.items():
        true = said.obs.update[name]
        torch.testing.assert_close(value[0], true[pieces] if name.startswith("output") else true)
        if not name.startswith("decoder.gates"):  # where the contexts come from is nothing to them
            torch.testing.assert_close(true, whole.obs.update[name])


def test_each_guess_has_the_gradient_that_the_loss_of_smooth_labels_has(say):
    model, pieces = say([5, 9, 2]).obs.model, torch.tensor([2, 5, 9, 30])
    contexts = torch.randn(3, 5, 12, dtype=torch.float64)
    labels = torch.rand(3, 5, 4, dtype=torch.float64) * 1.5  # no row has to have a sum of 1
    found = decoder_gradient(model, pieces, START)(contexts, labels)
    for guess in range(3):
        for name, value in literal(model, contexts[guess], labels[guess], pieces).items():
            torch.testing.assert_close(found[name][guess], value)


def test_it_can_be_differentiated_once_more(say):
    pieces = torch.tensor([2, 9, 30])
    gradient = decoder_gradient(say([9, 2]).obs.model, pieces, START)
    contexts = torch.randn(2, 2, 12, dtype=torch.float64, requires_grad=True)
    labels = torch.rand(2, 2, 3, dtype=torch.float64, requires_grad=True)
    slope = gradient(contexts, labels)
    weights = {name: torch.randn_like(value) for name, value in slope.items()}

    def number(contexts, labels):
        return sum((weights[name] * value).sum() for name, value in gradient(contexts, labels).items())

    assert torch.autograd.gradcheck(number, (contexts, labels), fast_mode=True)


def test_the_model_stays_as_it_was(say):
    model = say([5, 2]).obs.model
    gradient = decoder_gradient(model, torch.tensor([2, 5]), START)
    gradient(torch.zeros(1, 2, 12).double(), torch.rand(1, 2, 2).double())
    assert not any(module._forward_hooks for module in model.modules())
    assert all(value.requires_grad and value.grad is None for value in model.parameters())
