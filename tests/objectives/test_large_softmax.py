"""Softmaxes over a large vocabulary: exact without gradients; the sampled estimate by hand and on mean."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from bertworks.encoders.elmo import SOFTMAX_KINDS
from bertworks.objectives.large_softmax import SOFTMAXES, AdaptiveSoftmax, Softmax, TableSoftmax, inclusion_probs

pytestmark = pytest.mark.usefixtures("one_thread")
HIDDEN_SIZE, VOCAB_SIZE = 8, 200
TARGETS = torch.tensor([0, 1, 5, 40, 199, 5])


def make_vectors(seed: int = 0) -> torch.Tensor:
    return torch.randn(len(TARGETS), HIDDEN_SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def make_head(softmax_kind: str) -> Softmax:
    return SOFTMAXES[softmax_kind](HIDDEN_SIZE, VOCAB_SIZE, torch.Generator().manual_seed(1)).double()


def seed_of(number: int) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.int32)


def make_sampled_head(num_samples: int) -> TableSoftmax:
    head = TableSoftmax(HIDDEN_SIZE, VOCAB_SIZE, torch.Generator().manual_seed(1), num_samples).double()
    with torch.no_grad():
        head.bias.copy_(-torch.arange(1.0, VOCAB_SIZE + 1).log())  # rare words are improbable
    return head


def test_every_softmax_kind_has_a_head():
    assert set(SOFTMAXES) == set(SOFTMAX_KINDS)


@pytest.mark.parametrize("softmax_kind", SOFTMAX_KINDS)
def test_without_gradients_the_loss_is_exact_and_correct_predictions_are_counted(softmax_kind: str):
    head, vectors = make_head(softmax_kind), make_vectors()
    with torch.no_grad():
        log_probs = head.log_prob(vectors)
        value, part = head.compute_loss(vectors, TARGETS, 0.5, seed_of(3))
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(len(TARGETS), dtype=torch.double))
    torch.testing.assert_close(part.total, F.nll_loss(log_probs, TARGETS, reduction="sum"))
    torch.testing.assert_close(value, 0.5 * part.total)
    assert (part.count, part.correct) == (6, int((log_probs.argmax(1) == TARGETS).sum()))


def test_an_adaptive_softmax_has_three_clusters_with_smaller_vectors_for_rarer_words():
    for vocab_size, cutoffs in ((40, [10, 20]), (8_000, [2_000, 4_000]), (60_000, [2_000, 10_000])):
        head = AdaptiveSoftmax(32, vocab_size)
        assert head.cutoffs == [*cutoffs, vocab_size]
        assert [cluster[0].out_features for cluster in head.tail] == [16, 8]


def test_a_full_softmax_has_the_plain_cross_entropy():
    head, vectors = make_head("full"), make_vectors()
    assert isinstance(head, TableSoftmax)
    value, _ = head.compute_loss(vectors, TARGETS, 1.0, seed_of(3))
    expected = F.cross_entropy(vectors @ head.weight.t() + head.bias, TARGETS, reduction="sum")
    torch.testing.assert_close(value, expected)
    grads = torch.autograd.grad(value, [head.weight, head.bias])
    for one, other in zip(grads, torch.autograd.grad(expected, [head.weight, head.bias]), strict=True):
        torch.testing.assert_close(one, other)


def test_the_inclusion_probability_falls_with_the_rank_and_is_at_most_one():
    # c (1 + 1/2 + 1/3 + 1/4) = 2 gives c = 24/25.
    np.testing.assert_allclose(inclusion_probs(4, 2), [0.96, 0.48, 0.32, 0.24], atol=1e-9)
    # 1 for the first, and c (1/2 + 1/3 + 1/4) = 2 gives c = 24/13 for the others.
    np.testing.assert_allclose(inclusion_probs(4, 3), [1.0, 12 / 13, 8 / 13, 6 / 13], atol=1e-9)
    assert inclusion_probs(50, 50).tolist() == [1.0] * 50
    many = inclusion_probs(50_000, 2_048)
    assert abs(many.sum() - 2_048) < 1e-6
    assert (np.diff(many) <= 0).all()
    assert (many == 1.0).sum() > 300


def test_the_estimated_sum_over_all_words_is_unbiased_over_all_samples():
    """Every subset of four words has the product of its inclusion probabilities: the mean is exact, not sampled."""
    head = TableSoftmax(HIDDEN_SIZE, 4, torch.Generator().manual_seed(1), 2).double()
    vectors, targets = make_vectors()[:4], torch.arange(4)
    logits = (vectors @ head.weight.t() + head.bias).detach()
    target_logits = logits.gather(1, targets[:, None])[:, 0]
    mean = torch.zeros(4, dtype=torch.double)
    for is_sampled in product([False, True], repeat=4):
        probability = np.where(is_sampled, head.sampling_probs, 1 - head.sampling_probs).prod()
        for position in range(4):
            loss = head.sampled_cross_entropy(
                vectors[position : position + 1], targets[position : position + 1], np.flatnonzero(is_sampled)
            )
            mean[position] += probability * torch.exp(loss.detach() + target_logits[position])
    torch.testing.assert_close(mean, logits.exp().sum(1))


def test_the_seed_determines_the_sample_and_words_have_their_inclusion_probabilities():
    head, vectors = make_sampled_head(40), make_vectors()
    first, again, other = (head.compute_loss(vectors, TARGETS, 1.0, seed_of(seed))[0].item() for seed in (7, 7, 8))
    assert first == again != other
    hits = np.zeros(VOCAB_SIZE)
    num_samples = 1_000
    for seed in range(num_samples):
        value, _ = head.compute_loss(vectors[:1], TARGETS[:1], 1.0, seed_of(seed))
        (gradient,) = torch.autograd.grad(value, head.bias)
        hits += (gradient != 0).numpy()
    expected = head.sampling_probs.copy()
    expected[TARGETS[0]] = 1.0  # the target is always included
    deviation = np.sqrt(expected * (1 - expected) / num_samples)
    assert (np.abs(hits / num_samples - expected) <= 5 * deviation + 1e-12).all()


def test_gradients_approach_those_of_the_full_softmax_with_more_words():
    vectors = make_vectors()
    errors = {}
    for num_samples in (20, 80):
        head = make_sampled_head(num_samples)
        exact = F.cross_entropy(vectors @ head.weight.t() + head.bias, TARGETS, reduction="sum")
        (exact_gradient,) = torch.autograd.grad(exact, head.bias)
        gradient, losses = torch.zeros_like(exact_gradient), []
        for seed in range(600):
            value, part = head.compute_loss(vectors, TARGETS, 1.0, seed_of(seed))
            gradient += torch.autograd.grad(value, head.bias)[0] / 600
            losses.append(part.total.item())
        errors[num_samples] = float((gradient - exact_gradient).norm() / exact_gradient.norm())
        assert math.isclose(np.mean(losses), exact.item(), rel_tol=0.02)
    assert errors[80] < 0.02
    assert errors[80] < errors[20] < 0.1


def test_training_with_samples_learns_the_true_distribution():
    """Words with frequencies proportional to 1 / rank and constant inputs: the head learns the frequencies."""
    true = 1 / np.arange(1, 51)
    true /= true.sum()
    head = TableSoftmax(2, 50, torch.Generator().manual_seed(0), num_samples=25).double()
    optimizer = torch.optim.Adam(head.parameters(), 0.05)
    generator = np.random.default_rng(0)
    zeros = torch.zeros(512, 2, dtype=torch.double)
    for step in range(400):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * (1 - step / 400)
        targets = torch.from_numpy(generator.choice(50, 512, p=true))
        optimizer.zero_grad()
        head.compute_loss(zeros, targets, 1 / 512, seed_of(step))[0].backward()
        optimizer.step()
    with torch.no_grad():
        learned = head.log_prob(zeros[:1])[0].exp().numpy()
    assert float((true * np.log(true / learned)).sum()) < 0.01
