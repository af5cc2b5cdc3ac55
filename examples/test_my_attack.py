import torch
from my_attack import divide_rows
from my_model import one_hidden_layer
from torch.nn import functional as F

from fl_app.types import Observation


def test_an_undefended_image_comes_back_exactly():
    torch.manual_seed(0)
    model, image = one_hidden_layer(4, (1, 8, 8), width=16), torch.rand(1, 1, 8, 8)
    loss = F.cross_entropy(model((image - 0.5) / 0.2), torch.tensor([2]))
    names = [name for name, _ in model.named_parameters()]
    update = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    seen = Observation(model, update, input_shape=(1, 8, 8), mean=(0.5,), std=(0.2,))
    torch.testing.assert_close(divide_rows()(seen).images, image, rtol=0, atol=1e-4)


def test_a_run_is_attacked_and_scored(run):
    result = run("attack=my_attack", "defense=none")
    (attack,) = [entry for entry in result["attacks"] if entry["update"] == "defended"]
    assert attack["attack"] == "my_attack"
    assert attack["psnr"][0] > 40
