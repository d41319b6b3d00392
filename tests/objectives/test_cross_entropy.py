"""Cross entropy over a vocabulary: the value and every gradient against torch's own, whatever the size of a block."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from bertworks.objectives import cross_entropy as scoring
from bertworks.objectives.cross_entropy import block_size, cross_entropy_sum, evaluate_cross_entropy, token_losses

NUM_PLACES, WIDTH, VOCABULARY = 11, 16, 60
SCALE = 0.37
# Scores in one block -> blocks of 11, 4 (the last of 3) and 1 place; less than one row of scores still takes one.
BLOCKS = {"one block": 8 * 2**20, "blocks of four": 4 * VOCABULARY + 7, "a place a block": 5}


pytestmark = pytest.mark.usefixtures("one_thread")


def inputs(dtype: torch.dtype = torch.float64) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Vectors, table and bias, which want gradients, and targets, one of them several times."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((NUM_PLACES, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    drawn = [torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True) for shape in shapes]
    targets = torch.randint(0, VOCABULARY, (NUM_PLACES,), generator=generator)
    targets[3] = targets[7]
    return drawn, targets


def reference(parts: list[torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    vectors, table, bias = parts
    return F.cross_entropy(vectors @ table.t() + bias, targets, reduction="sum")


@pytest.mark.parametrize("slope", [1.0, -2.5])
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_value_and_all_gradients_equal_torchs_times_the_scale(
    monkeypatch: pytest.MonkeyPatch, block: int, slope: float
):
    monkeypatch.setattr(scoring, "_BLOCK", block)
    parts, targets = inputs()
    expected = SCALE * reference(parts, targets)
    found = cross_entropy_sum(*parts, targets, SCALE)
    assert float((found - expected).detach().abs()) < 1e-11
    slopes = torch.autograd.grad(slope * found, parts)
    for ours, theirs in zip(slopes, torch.autograd.grad(slope * expected, parts), strict=True):
        assert float((ours - theirs).abs().max()) < 1e-12


def test_single_precision_agrees_to_six_digits():
    parts, targets = inputs(torch.float32)
    ours = torch.autograd.grad(cross_entropy_sum(*parts, targets, 1.0), parts)
    for found, expected in zip(ours, torch.autograd.grad(reference(parts, targets), parts), strict=True):
        assert float((found - expected).abs().max()) < 1e-5


def test_scores_far_apart_do_not_overflow():
    vectors, table = torch.tensor([[1000.0]], requires_grad=True), torch.tensor([[1.0], [-1.0]])
    loss = cross_entropy_sum(vectors, table, torch.zeros(2), torch.tensor([1]), 1.0)
    assert loss.tolist() == 2000.0
    loss.backward()
    assert vectors.grad is not None
    assert vectors.grad.tolist() == [[2.0]]  # (1 - 0) * 1 + (0 - 1) * -1


def test_two_pieces_by_hand():
    """Scores (ln 3, 0): shares 3/4 and 1/4. The second is asked for: the loss is ln 4, the slopes 3/4 and -3/4."""
    vectors = torch.tensor([[1.0]], requires_grad=True)
    table = torch.tensor([[3.0], [1.0]]).log().requires_grad_()
    bias = torch.zeros(2, requires_grad=True)
    loss = cross_entropy_sum(vectors, table, bias, torch.tensor([1]), 1.0)
    loss.backward()
    assert torch.allclose(loss, torch.tensor(4.0).log())
    assert bias.grad is not None
    assert torch.allclose(bias.grad, torch.tensor([0.75, -0.75]))


def test_no_places_give_no_loss_and_no_slope():
    parts, _ = inputs()
    loss = cross_entropy_sum(parts[0][:0], parts[1], parts[2], torch.zeros(0, dtype=torch.long), SCALE)
    loss.backward()
    assert loss.tolist() == 0.0
    assert parts[1].grad is not None
    assert not parts[1].grad.any()


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_counting_gives_the_summed_loss_and_the_number_of_highest_scores(monkeypatch: pytest.MonkeyPatch, block: int):
    monkeypatch.setattr(scoring, "_BLOCK", block)
    (vectors, table, bias), _ = inputs()
    best = (vectors @ table.t() + bias).argmax(-1)
    wanted = torch.where(torch.arange(NUM_PLACES) < 4, best, (best + 1) % VOCABULARY)  # the first four are right
    total, num_right = evaluate_cross_entropy(vectors, table, bias, wanted)
    assert num_right == 4
    assert abs(float(total) - float(reference([vectors, table, bias], wanted).detach())) < 1e-11
    assert not total.requires_grad


def test_a_block_holds_eight_million_scores_or_at_least_one_place():
    assert block_size(30_522) == 274  # 8 * 2^20 / 30,522 = 274.8
    assert block_size(10**9) == 1


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_smoothed_targets_have_the_value_and_the_gradients_of_torch(block: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scoring, "_BLOCK", block)
    (parts, targets), (twins, _) = inputs(), inputs()
    found = cross_entropy_sum(*parts, targets, SCALE, 0.1)
    vectors, table, bias = twins
    scores = vectors @ table.t() + bias
    expected = SCALE * F.cross_entropy(scores, targets, reduction="sum", label_smoothing=0.1)
    assert torch.allclose(found, expected)
    found.backward()
    expected.backward()
    for one, other in zip(parts, twins, strict=True):
        assert torch.allclose(one.grad, other.grad)


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_the_loss_of_each_place_is_torch_s(block: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scoring, "_BLOCK", block)
    (vectors, table, bias), targets = inputs()
    expected = F.cross_entropy(vectors @ table.t() + bias, targets, reduction="none")
    assert torch.allclose(token_losses(vectors, table, bias, targets), expected)
    assert token_losses(vectors[:0], table, bias, targets[:0]).shape == (0,)
