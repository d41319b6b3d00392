"""A learned sum of layers: it begins as their mean, and learns weights and a scale."""

import torch

from bertworks.embeddings.weighted_layers import WeightedLayers


def test_weighted_layers_are_initialized_to_the_mean():
    layers = (torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 8.0]]))
    torch.testing.assert_close(WeightedLayers(2)(layers), torch.tensor([[2.0, 5.0]]))


def test_the_weighted_sum_is_gamma_times_softmax_weights():
    weighted = WeightedLayers(2)
    with torch.no_grad():
        weighted.weights.copy_(torch.tensor([1.0, 3.0]).log())  # a quarter and three quarters
        weighted.gamma.fill_(2.0)
    layers = (torch.tensor([[4.0]]), torch.tensor([[8.0]]))
    torch.testing.assert_close(weighted(layers), torch.tensor([[14.0]]))  # 2 * (1 + 6)


def test_weights_and_gamma_get_gradients():
    weighted = WeightedLayers(2)
    weighted((torch.tensor([[4.0]]), torch.tensor([[8.0]]))).sum().backward()
    torch.testing.assert_close(weighted.weights.grad, torch.tensor([-1.0, 1.0]))  # half of 4 - 6 and of 8 - 6
    torch.testing.assert_close(weighted.gamma.grad, torch.tensor(6.0))
