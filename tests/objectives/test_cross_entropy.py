"""Cross entropy over a vocabulary: values and gradients equal to torch's, for any size of a block."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from bertworks.objectives import cross_entropy
from bertworks.objectives.cross_entropy import (
    block_size,
    cross_entropy_sum,
    evaluate_cross_entropy,
    sample_tokens,
    token_losses,
)

NUM_POSITIONS, HIDDEN_SIZE, VOCAB_SIZE = 11, 16, 60
SCALE = 0.37
# Logits of a block -> blocks of 11, 4 (the last of 3) and 1 position; a block has at least one position.
BLOCKS = {"one block": 8 * 2**20, "blocks of four": 4 * VOCAB_SIZE + 7, "blocks of one": 5}


pytestmark = pytest.mark.usefixtures("one_thread")


def make_inputs(dtype: torch.dtype = torch.float64) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Vectors, table and bias, which require gradients, and targets, one of them twice."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((NUM_POSITIONS, HIDDEN_SIZE), (VOCAB_SIZE, HIDDEN_SIZE), (VOCAB_SIZE,))
    tensors = [torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True) for shape in shapes]
    targets = torch.randint(0, VOCAB_SIZE, (NUM_POSITIONS,), generator=generator)
    targets[3] = targets[7]
    return tensors, targets


def reference_loss(tensors: list[torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    vectors, table, bias = tensors
    return F.cross_entropy(vectors @ table.t() + bias, targets, reduction="sum")


@pytest.mark.parametrize("grad_output", [1.0, -2.5])
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_value_and_all_gradients_equal_torchs_times_the_scale(
    monkeypatch: pytest.MonkeyPatch, block: int, grad_output: float
):
    monkeypatch.setattr(cross_entropy, "_BLOCK", block)
    tensors, targets = make_inputs()
    expected = SCALE * reference_loss(tensors, targets)
    loss = cross_entropy_sum(*tensors, targets, SCALE)
    assert float((loss - expected).detach().abs()) < 1e-11
    grads = torch.autograd.grad(grad_output * loss, tensors)
    for ours, theirs in zip(grads, torch.autograd.grad(grad_output * expected, tensors), strict=True):
        assert float((ours - theirs).abs().max()) < 1e-12


def test_single_precision_agrees_to_six_digits():
    tensors, targets = make_inputs(torch.float32)
    ours = torch.autograd.grad(cross_entropy_sum(*tensors, targets, 1.0), tensors)
    for grad, expected in zip(ours, torch.autograd.grad(reference_loss(tensors, targets), tensors), strict=True):
        assert float((grad - expected).abs().max()) < 1e-5


def test_large_logits_do_not_overflow():
    vectors, table = torch.tensor([[1000.0]], requires_grad=True), torch.tensor([[1.0], [-1.0]])
    loss = cross_entropy_sum(vectors, table, torch.zeros(2), torch.tensor([1]), 1.0)
    assert loss.tolist() == 2000.0
    loss.backward()
    assert vectors.grad is not None
    assert vectors.grad.tolist() == [[2.0]]  # (1 - 0) * 1 + (0 - 1) * -1


def test_two_tokens_by_hand():
    """Logits (ln 3, 0): probabilities 3/4 and 1/4. The second is the target: loss ln 4, gradients 3/4 and -3/4."""
    vectors = torch.tensor([[1.0]], requires_grad=True)
    table = torch.tensor([[3.0], [1.0]]).log().requires_grad_()
    bias = torch.zeros(2, requires_grad=True)
    loss = cross_entropy_sum(vectors, table, bias, torch.tensor([1]), 1.0)
    loss.backward()
    assert torch.allclose(loss, torch.tensor(4.0).log())
    assert bias.grad is not None
    assert torch.allclose(bias.grad, torch.tensor([0.75, -0.75]))


def test_no_positions_give_no_loss_and_no_gradient():
    tensors, _ = make_inputs()
    loss = cross_entropy_sum(tensors[0][:0], tensors[1], tensors[2], torch.zeros(0, dtype=torch.long), SCALE)
    loss.backward()
    assert loss.tolist() == 0.0
    assert tensors[1].grad is not None
    assert not tensors[1].grad.any()


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_evaluation_gives_the_loss_and_the_number_of_correct_predictions(monkeypatch: pytest.MonkeyPatch, block: int):
    monkeypatch.setattr(cross_entropy, "_BLOCK", block)
    (vectors, table, bias), _ = make_inputs()
    best = (vectors @ table.t() + bias).argmax(-1)
    targets = torch.where(torch.arange(NUM_POSITIONS) < 4, best, (best + 1) % VOCAB_SIZE)  # the first four are correct
    total, num_correct = evaluate_cross_entropy(vectors, table, bias, targets)
    assert num_correct == 4
    assert abs(float(total) - float(reference_loss([vectors, table, bias], targets).detach())) < 1e-11
    assert not total.requires_grad


def test_a_block_has_eight_million_logits_or_at_least_one_position():
    assert block_size(30_522) == 274  # 8 * 2^20 / 30,522 = 274.8
    assert block_size(10**9) == 1


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_label_smoothing_equals_torchs(block: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cross_entropy, "_BLOCK", block)
    (tensors, targets), (copies, _) = make_inputs(), make_inputs()
    loss = cross_entropy_sum(*tensors, targets, SCALE, 0.1)
    vectors, table, bias = copies
    logits = vectors @ table.t() + bias
    expected = SCALE * F.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)
    assert torch.allclose(loss, expected)
    loss.backward()
    expected.backward()
    for one, other in zip(tensors, copies, strict=True):
        assert torch.allclose(one.grad, other.grad)


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_the_loss_of_each_position_equals_torchs(block: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cross_entropy, "_BLOCK", block)
    (vectors, table, bias), targets = make_inputs()
    expected = F.cross_entropy(vectors @ table.t() + bias, targets, reduction="none")
    assert torch.allclose(token_losses(vectors, table, bias, targets), expected)
    assert token_losses(vectors[:0], table, bias, targets[:0]).shape == (0,)


def test_a_sample_is_where_the_cumulated_probabilities_exceed_the_number():
    probs = torch.tensor([0.0, 0.5, 0.0, 0.25, 0.25, 0.0])  # cumulated: 0, 0.5, 0.5, 0.75, 1, 1
    numbers = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76, 0.9999999])
    vectors, table = torch.zeros(6, 2), torch.zeros(6, 2)
    assert sample_tokens(vectors, table, probs.log(), numbers).tolist() == [1, 1, 3, 3, 4, 4]


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_samples_of_evenly_spaced_numbers_have_the_probabilities_of_a_softmax(
    block: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cross_entropy, "_BLOCK", block)
    (vectors, table, bias), _ = make_inputs()
    count, position = 2_000, 4
    numbers = (torch.arange(count) + 0.5) / count
    samples = sample_tokens(vectors[position].expand(count, -1), table, bias, numbers)
    frequencies = torch.bincount(samples, minlength=VOCAB_SIZE) / count
    expected = torch.softmax(vectors[position] @ table.t() + bias, -1)
    assert float((frequencies - expected).abs().max()) <= 1 / count
    assert not samples.requires_grad
