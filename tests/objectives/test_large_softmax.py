"""Heads over a large vocabulary: exact where nothing is learned; what sampling estimates, by hand and on average."""

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
WIDTH, VOCABULARY = 8, 200
TARGETS = torch.tensor([0, 1, 5, 40, 199, 5])


def vectors_of(seed: int = 0) -> torch.Tensor:
    return torch.randn(len(TARGETS), WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def built(scoring: str) -> Softmax:
    return SOFTMAXES[scoring](WIDTH, VOCABULARY, torch.Generator().manual_seed(1)).double()


def seed_of(number: int) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.int32)


def sampling(num_samples: int) -> TableSoftmax:
    head = TableSoftmax(WIDTH, VOCABULARY, torch.Generator().manual_seed(1), num_samples).double()
    with torch.no_grad():
        head.bias.copy_(-torch.arange(1.0, VOCABULARY + 1).log())  # rare words are unlikely, as in life
    return head


def test_every_scoring_that_a_recipe_may_name_has_a_head():
    assert set(SOFTMAXES) == set(SOFTMAX_KINDS)


@pytest.mark.parametrize("scoring", SOFTMAX_KINDS)
def test_where_nothing_is_learned_the_loss_is_exact_and_the_right_ones_are_counted(scoring: str):
    head, vectors = built(scoring), vectors_of()
    with torch.no_grad():
        likely = head.log_prob(vectors)
        value, part = head.compute_loss(vectors, TARGETS, 0.5, seed_of(3))
    torch.testing.assert_close(likely.exp().sum(1), torch.ones(len(TARGETS), dtype=torch.double))
    torch.testing.assert_close(part.total, F.nll_loss(likely, TARGETS, reduction="sum"))
    torch.testing.assert_close(value, 0.5 * part.total)
    assert (part.count, part.correct) == (6, int((likely.argmax(1) == TARGETS).sum()))


def test_an_adaptive_softmax_has_three_bands_the_rarer_the_shorter():
    for vocabulary, cutoffs in ((40, [10, 20]), (8_000, [2_000, 4_000]), (60_000, [2_000, 10_000])):
        head = AdaptiveSoftmax(32, vocabulary)
        assert head.cutoffs == [*cutoffs, vocabulary]
        assert [part[0].out_features for part in head.tail] == [16, 8]


def test_a_full_softmax_learns_by_the_plain_cross_entropy():
    head, vectors = built("full"), vectors_of()
    assert isinstance(head, TableSoftmax)
    value, _ = head.compute_loss(vectors, TARGETS, 1.0, seed_of(3))
    expected = F.cross_entropy(vectors @ head.weight.t() + head.bias, TARGETS, reduction="sum")
    torch.testing.assert_close(value, expected)
    found = torch.autograd.grad(value, [head.weight, head.bias])
    for one, other in zip(found, torch.autograd.grad(expected, [head.weight, head.bias]), strict=True):
        torch.testing.assert_close(one, other)


def test_the_chance_of_a_word_falls_with_its_rank_and_is_at_most_one():
    # c (1 + 1/2 + 1/3 + 1/4) = 2 gives c = 24/25.
    np.testing.assert_allclose(inclusion_probs(4, 2), [0.96, 0.48, 0.32, 0.24], atol=1e-9)
    # 1 for the first, and c (1/2 + 1/3 + 1/4) = 2 gives c = 24/13 for the others.
    np.testing.assert_allclose(inclusion_probs(4, 3), [1.0, 12 / 13, 8 / 13, 6 / 13], atol=1e-9)
    assert inclusion_probs(50, 50).tolist() == [1.0] * 50
    many = inclusion_probs(50_000, 2_048)
    assert abs(many.sum() - 2_048) < 1e-6
    assert (np.diff(many) <= 0).all()
    assert (many == 1.0).sum() > 300


def test_the_sum_over_all_words_is_right_on_average_over_everything_that_can_be_drawn():
    """Of four words every subset is drawn with the product of its chances: the average is worked out, not sampled."""
    head = TableSoftmax(WIDTH, 4, torch.Generator().manual_seed(1), 2).double()
    vectors, targets = vectors_of()[:4], torch.arange(4)
    scores = (vectors @ head.weight.t() + head.bias).detach()
    own = scores.gather(1, targets[:, None])[:, 0]
    average = torch.zeros(4, dtype=torch.double)
    for drawn in product([False, True], repeat=4):
        chance = np.where(drawn, head.sampling_probs, 1 - head.sampling_probs).prod()
        for place in range(4):
            loss = head.sampled_cross_entropy(
                vectors[place : place + 1], targets[place : place + 1], np.flatnonzero(drawn)
            )
            average[place] += chance * torch.exp(loss.detach() + own[place])
    torch.testing.assert_close(average, scores.exp().sum(1))


def test_a_seed_decides_what_is_drawn_and_words_are_drawn_as_often_as_they_should_be():
    head, vectors = sampling(40), vectors_of()
    first, again, other = (head.compute_loss(vectors, TARGETS, 1.0, seed_of(seed))[0].item() for seed in (7, 7, 8))
    assert first == again != other
    hits = np.zeros(VOCABULARY)
    num_draws = 1_000
    for seed in range(num_draws):
        value, _ = head.compute_loss(vectors[:1], TARGETS[:1], 1.0, seed_of(seed))
        (slope,) = torch.autograd.grad(value, head.bias)
        hits += (slope != 0).numpy()
    expected = head.sampling_probs.copy()
    expected[TARGETS[0]] = 1.0  # the word itself is always there
    spread = np.sqrt(expected * (1 - expected) / num_draws)
    assert (np.abs(hits / num_draws - expected) <= 5 * spread + 1e-12).all()


def test_the_slopes_are_those_of_the_full_softmax_on_average_and_nearer_with_more_words():
    vectors = vectors_of()
    away = {}
    for num_samples in (20, 80):
        head = sampling(num_samples)
        exact = F.cross_entropy(vectors @ head.weight.t() + head.bias, TARGETS, reduction="sum")
        (wanted,) = torch.autograd.grad(exact, head.bias)
        slopes, losses = torch.zeros_like(wanted), []
        for seed in range(600):
            value, part = head.compute_loss(vectors, TARGETS, 1.0, seed_of(seed))
            slopes += torch.autograd.grad(value, head.bias)[0] / 600
            losses.append(part.total.item())
        away[num_samples] = float((slopes - wanted).norm() / wanted.norm())
        assert math.isclose(np.mean(losses), exact.item(), rel_tol=0.02)
    assert away[80] < 0.02
    assert away[80] < away[20] < 0.1


def test_learning_by_samples_finds_the_true_distribution():
    """Words drawn in proportion to 1 / rank, told from nothing: what is learned is how frequent they are."""
    true = 1 / np.arange(1, 51)
    true /= true.sum()
    head = TableSoftmax(2, 50, torch.Generator().manual_seed(0), num_samples=25).double()
    optimizer = torch.optim.Adam(head.parameters(), 0.05)
    draws = np.random.default_rng(0)
    nothing = torch.zeros(512, 2, dtype=torch.double)
    for step in range(400):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * (1 - step / 400)
        targets = torch.from_numpy(draws.choice(50, 512, p=true))
        optimizer.zero_grad()
        head.compute_loss(nothing, targets, 1 / 512, seed_of(step))[0].backward()
        optimizer.step()
    with torch.no_grad():
        learned = head.log_prob(nothing[:1])[0].exp().numpy()
    assert float((true * np.log(true / learned)).sum()) < 0.01
