"""Why BERT hides pieces, shown by gradients: who reads both sides of a place finds its piece there, unless it is gone.

T places, D width.
"""

import pytest
import torch
from torch import nn

from bertworks.encoders.bert import Bert, BertConfig
from bertworks.encoders.encoded import BatchLayout, SequenceGroup
from bertworks.encoders.layers import Attention
from bertworks.encoders.linear import apply_linear
from bertworks.sampling.batch import Batch

WIDTH, NUM_PLACES = 8, 5
MASK, FIRST = 1, 2  # ids of [MASK] and of the first ordinary piece
PLACE = 2  # the place whose piece is to be predicted, counted from 0


def hiding_self(num_places: int) -> BatchLayout:
    """One row in which every place reads all the others, but not itself."""
    own = torch.eye(num_places, dtype=torch.bool)
    mask = torch.zeros(1, 1, num_places, num_places).masked_fill_(own, float("-inf"))
    lengths = torch.tensor([num_places])
    return BatchLayout((SequenceGroup(0, 1, num_places, mask),), torch.tensor([0]), lengths, None, (1, num_places))


class Readers(nn.Module):
    """Attention upon attention, without residuals. Each asks from its position alone, or also from what it has read.

    Values and keys come from the layer below. A question made from the piece would let it in by the back door: what
    place t takes from the others would depend on what stands at t.
    """

    def __init__(self, depth: int, num_places: int, ask_from_position: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(depth)
        self.positions = nn.Parameter(torch.randn(num_places, WIDTH, generator=generator))
        self.layers = nn.ModuleList(Attention(WIDTH, 2, 0.0) for _ in range(depth))
        self.layout = hiding_self(num_places)
        self.ask_from_position = ask_from_position
        for parameter in self.layers.parameters():
            nn.init.normal_(parameter, 0.0, 0.3, generator=generator)  # small: no place takes all attention

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            mixed = apply_linear(values + self.positions, layer.query_key_value)  # (T, 3D)
            asked = self.positions if self.ask_from_position else values + self.positions
            queries = apply_linear(asked, layer.query_key_value)[:, :WIDTH]
            mixed = torch.cat([queries, mixed[:, WIDTH:]], 1)
            values = apply_linear(layer._attend(mixed, self.layout.groups[0], None), layer.out)
        return values


def slopes(readers: Readers, num_places: int, place: int) -> torch.Tensor:
    """How far each output value at `place` moves with each input value of every place: (D, T, D)."""
    pieces = torch.randn(num_places, WIDTH, generator=torch.Generator().manual_seed(0))
    found = torch.autograd.functional.jacobian(lambda values: readers(values)[place], pieces)
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("place", range(NUM_PLACES))
def test_one_layer_that_hides_each_place_from_itself_cannot_see_it(place: int):
    found = slopes(Readers(1, NUM_PLACES), NUM_PLACES, place)
    assert torch.equal(found[:, place], torch.zeros(WIDTH, WIDTH))
    for other in set(range(NUM_PLACES)) - {place}:
        assert float(found[:, other].abs().max()) > 1e-2


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("place", range(NUM_PLACES))
def test_two_layers_or_more_see_it_through_a_neighbour(depth: int, place: int):
    found = slopes(Readers(depth, NUM_PLACES), NUM_PLACES, place)
    assert float(found[:, place].abs().max()) > 1e-2


def test_with_two_places_the_second_layer_sees_nothing_but_itself():
    """Each place reads only the other, with weight 1: two steps lead back. The slope is out @ value @ out @ value."""
    readers = Readers(2, 2)
    found = slopes(readers, 2, 0)
    expected = torch.eye(WIDTH)
    for layer in readers.layers:
        expected = layer.out.weight @ layer.query_key_value.weight[2 * WIDTH :] @ expected
    assert torch.allclose(found[:, 0], expected, atol=1e-5)
    assert float(expected.detach().abs().max()) > 0.1
    assert torch.equal(found[:, 1], torch.zeros(WIDTH, WIDTH))


def test_a_question_made_from_the_piece_lets_one_layer_see_it():
    found = slopes(Readers(1, NUM_PLACES, ask_from_position=False), NUM_PLACES, PLACE)
    assert float(found[:, PLACE].abs().max()) > 1e-2


def table_slopes(depth: int, ids: list[int], reads: str = "bidirectional") -> torch.Tensor:
    """How far the last layer of a real BERT at PLACE moves with the embedding of each piece of the vocabulary: (V,)."""
    sizes = BertConfig(FIRST + NUM_PLACES, WIDTH, depth, 2, 16, NUM_PLACES, initializer_range=0.5)
    bert = Bert(sizes, torch.Generator().manual_seed(depth)).eval()
    row = torch.tensor([ids])
    vector = bert(Batch(row, torch.zeros_like(row), torch.tensor([len(ids)]), reads)).gather(torch.tensor([PLACE]))
    vector[0, 0].backward()
    assert bert.token_embeddings.weight.grad is not None
    return bert.token_embeddings.weight.grad.abs().amax(1)


PIECES = [FIRST + place for place in range(NUM_PLACES)]  # every place has a piece of its own
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 6])


@DEPTHS
def test_bert_sees_a_piece_that_is_not_hidden_at_any_depth(depth: int):
    found = table_slopes(depth, PIECES)
    assert all(found[piece] > 1e-3 for piece in PIECES)


@DEPTHS
def test_bert_cannot_see_a_piece_behind_a_mask_at_any_depth_and_still_reads_both_sides(depth: int):
    found = table_slopes(depth, [MASK if place == PLACE else piece for place, piece in enumerate(PIECES)])
    assert float(found[PIECES[PLACE]]) == 0.0
    for place in set(range(NUM_PLACES)) - {PLACE}:
        assert found[PIECES[place]] > 1e-3


@DEPTHS
def test_reading_left_only_hides_what_comes_next_at_any_depth_and_all_that_follows_it(depth: int):
    """The other way out: PLACE predicts the piece after it. Nothing right of it is read, hidden or not."""
    found = table_slopes(depth, PIECES, "causal")
    assert torch.equal(found[PIECES[PLACE + 1 :]], torch.zeros(NUM_PLACES - PLACE - 1))
    assert all(found[piece] > 1e-3 for piece in PIECES[: PLACE + 1])
