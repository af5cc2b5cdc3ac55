"""What every operation of the library promises, and what each of them computes."""

import itertools

import pytest
import torch

from fl_app.data import photos, pixels
from fl_app.defenses import operations
from fl_app.defenses.operations import LIBRARY, Operation, follow

GREY = operations.GREY


@pytest.fixture(scope="module")
def photographs() -> torch.Tensor:
    return pixels(photos(train_per_class=1, test_per_class=1).train.inputs, "cpu")


def test_the_library_has_fifty_entries():
    assert len(LIBRARY) == 50


@pytest.mark.parametrize("operation", LIBRARY, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (3, 1, 28, 28), (2, 3, 9, 14), (1, 1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_operation_keeps_shape_type_and_range_and_leaves_its_input_alone(operation, shape, dtype):
    images = torch.rand(shape, dtype=dtype)
    before = images.clone()
    changed = operation(images)
    assert (changed.shape, changed.dtype, changed.device) == (images.shape, dtype, images.device)
    assert torch.isfinite(changed).all()
    assert changed.min() >= 0
    assert changed.max() <= 1
    assert torch.equal(images, before)
    assert torch.equal(operation(images), changed)


@pytest.mark.parametrize("operation", LIBRARY, ids=str)
def test_images_of_a_batch_do_not_see_each_other(operation, photographs):
    alone = torch.cat([operation(image.unsqueeze(0)) for image in photographs])
    torch.testing.assert_close(operation(photographs), alone)


def test_the_entries_differ_from_each_other_and_from_doing_nothing(photographs):
    results = [photographs, *(operation(photographs) for operation in LIBRARY)]
    for one, other in itertools.combinations(results, 2):
        assert (one - other).abs().max() > 0.01


def test_the_entries_have_different_names():
    assert len({str(operation) for operation in LIBRARY}) == len(LIBRARY)
    assert str(Operation(operations.rotate, -30)) == "rotate -30"
    assert str(Operation(operations.invert)) == "invert"


@pytest.mark.parametrize(
    ("function", "magnitude"),
    [
        (operations.shear_x, 0),
        (operations.shear_y, 0),
        (operations.rotate, 0),
        (operations.translate_x, 0),
        (operations.translate_y, 0),
        (operations.brightness, 1),
        (operations.contrast, 1),
        (operations.colour, 1),
        (operations.sharpness, 1),
        (operations.posterize, 8),
        (operations.solarize, 1.1),
    ],
)
def test_the_neutral_magnitude_does_nothing(function, magnitude, photographs):
    torch.testing.assert_close(function(photographs, magnitude), photographs)


def row(*values: float) -> torch.Tensor:
    return torch.tensor(values).view(1, 1, 1, -1)


@pytest.mark.parametrize(
    ("operation", "before", "after"),
    [
        (Operation(operations.invert), (0.0, 0.2, 1.0), (1.0, 0.8, 0.0)),
        (Operation(operations.solarize, 0.5), (0.1, 0.5, 0.9), (0.1, 0.5, 0.1)),
        (Operation(operations.solarize, 0.75), (0.5, 0.75, 1.0), (0.5, 0.25, 0.0)),
        (Operation(operations.posterize, 2), (63 / 255, 200 / 255, 1.0), (0.0, 192 / 255, 192 / 255)),
        (Operation(operations.posterize, 4), (15 / 255, 16 / 255, 1.0), (0.0, 16 / 255, 240 / 255)),
        (Operation(operations.brightness, 0.5), (0.0, 0.4, 1.0), (0.0, 0.2, 0.5)),
        (Operation(operations.brightness, 1.8), (0.0, 0.5, 0.6), (0.0, 0.9, 1.0)),
        (Operation(operations.contrast, 0.5), (0.1, 0.4, 0.7), (0.25, 0.4, 0.55)),
        (Operation(operations.contrast, 2.0), (0.3, 0.4, 0.5), (0.2, 0.4, 0.6)),
        (Operation(operations.autocontrast), (0.2, 0.4, 0.6), (0.0, 0.5, 1.0)),
        (Operation(operations.autocontrast), (0.3, 0.3, 0.3), (0.3, 0.3, 0.3)),
        (Operation(operations.equalize), (0.1, 0.11, 0.9, 0.91, 0.92), (0.0, 0.25, 0.5, 0.75, 1.0)),
        (Operation(operations.equalize), (0.2, 0.6, 0.6, 0.8), (0.0, 2 / 3, 2 / 3, 1.0)),
        (Operation(operations.equalize), (0.3, 0.3), (0.3, 0.3)),
        (Operation(operations.translate_x, 0.25), (0.1, 0.2, 0.3, 0.4), (GREY, 0.1, 0.2, 0.3)),
        (Operation(operations.translate_x, -0.5), (0.1, 0.2, 0.3, 0.4), (0.3, 0.4, GREY, GREY)),
        (Operation(operations.translate_x, 3), (0.1, 0.2), (GREY, GREY)),
        (Operation(operations.colour, 0.0), (0.1, 0.9), (0.1, 0.9)),
    ],
    ids=str,
)
def test_a_row_that_was_worked_out_by_hand(operation, before, after):
    torch.testing.assert_close(operation(row(*before)), row(*after))


def test_translating_down_is_translating_right_of_the_turned_image(photographs):
    down = operations.translate_y(photographs, 0.25)
    assert torch.equal(down.mT, operations.translate_x(photographs.mT, 0.25))


def test_without_colour_an_image_has_its_luminance_in_every_channel():
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    torch.testing.assert_close(operations.colour(red, 0), torch.full((1, 3, 1, 1), 0.299))
    torch.testing.assert_close(operations.colour(red, 0.5).flatten(), torch.tensor([0.6495, 0.1495, 0.1495]))


def test_without_sharpness_a_point_is_spread_over_its_neighbours():
    point = torch.zeros(1, 1, 5, 5)
    point[..., 2, 2] = 1
    expected = torch.zeros(1, 1, 5, 5)
    expected[..., 1:4, 1:4] = 1 / 13
    expected[..., 2, 2] = 5 / 13
    torch.testing.assert_close(operations.sharpness(point, 0), expected)


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_turning_by_quarters_moves_pixels_as_they_are(quarters, photographs):
    turned = operations.rotate(photographs, 90 * quarters)
    torch.testing.assert_close(turned, torch.rot90(photographs, quarters, (-2, -1)), rtol=0, atol=1e-4)


def test_turning_back_restores_the_middle_of_a_smooth_image():
    y, x = torch.meshgrid(torch.linspace(0, 1, 21), torch.linspace(0, 1, 33), indexing="ij")
    smooth = (0.2 + 0.3 * x + 0.3 * y).expand(1, 1, 21, 33)
    back = operations.rotate(operations.rotate(smooth, 15), -15)
    torch.testing.assert_close(back[..., 8:13, 12:21], smooth[..., 8:13, 12:21], rtol=0, atol=1e-5)


def test_shearing_by_one_moves_every_row_by_its_distance_from_the_middle():
    image = torch.rand(1, 2, 5, 9)
    sheared = operations.shear_x(image, 1.0)
    for i in range(5):
        # row i fetches from i - 2 pixels further right, i.e. it moves to the left
        torch.testing.assert_close(
            sheared[:, :, i], operations.translate_x(image[:, :, i : i + 1], -(i - 2) / 9)[:, :, 0]
        )


def test_shearing_columns_is_shearing_rows_of_the_turned_image(photographs):
    torch.testing.assert_close(
        operations.shear_y(photographs, 0.3).mT, operations.shear_x(photographs.mT, 0.3)
    )


def test_a_policy_is_followed_in_its_order(photographs):
    policy = [47, 24, 13]
    expected = LIBRARY[13](LIBRARY[24](LIBRARY[47](photographs)))
    assert torch.equal(follow(policy, photographs), expected)
    assert not torch.equal(follow([24, 47, 13], photographs), expected)
    assert torch.equal(follow([], photographs), photographs)
