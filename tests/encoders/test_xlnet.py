"""XLNet beside transformers': two streams over a permutation, memory, segments; who can see whom, by gradient."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from bertworks.encoders.encoded import EncoderState
from bertworks.encoders.families import ENCODERS, architecture_of
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.xlnet import (
    Xlnet,
    XlnetConfig,
    config_from_dict,
    config_from_preset,
    config_to_dict,
    tensor_names,
)
from bertworks.errors import InputError, SettingsError
from bertworks.models.tensor_names import load_into
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
CLOSE = 1e-5
SIZES = replace(
    config_from_preset("tiny", 70),
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=96,
    max_position_embeddings=40,
)


def drawn(module: torch.nn.Module) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.1, 0.3, generator=generator)
    return module.eval()


def pair_of(sizes: XlnetConfig = SIZES) -> tuple[Xlnet, Any]:
    """Ours and transformers' language model, with the same weights."""
    config = transformers.XLNetConfig(**config_to_dict(sizes, [architecture_of(sizes, "permutation")]))
    peer = drawn(transformers.XLNetLMHeadModel(config))
    ours = Xlnet(sizes).eval()
    load_into(ours, dict(peer.state_dict()), tensor_names(sizes))
    return ours, peer


def batch_with(lengths: tuple[int, ...], num_asked: int = 0, seed: int = 0) -> Batch:
    """Rows of random pieces in three segments; at `num_asked` places of each a piece is to be predicted."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.randint(5, 70, (len(lengths), width), generator=generator)
    segments = torch.randint(0, 3, ids.shape, generator=generator)
    batch = Batch(ids, segments, torch.tensor(lengths))
    if not num_asked:
        return batch
    permutation = torch.zeros_like(ids)
    places = []
    for row, length in enumerate(lengths):
        asked = torch.randperm(length - 1, generator=generator)[:num_asked] + 1  # the first is always told
        permutation[row, asked] = torch.arange(1, num_asked + 1)
        places += (row * width + asked.sort().values).tolist()
    return replace(batch, permutation=permutation, positions=torch.tensor(places))


def perm_mask_of(batch: Batch) -> torch.Tensor:
    """transformers' mask of a permutation, place by place: 1 where a place may not be read."""
    assert batch.permutation is not None
    told = batch.permutation.tolist()
    width = len(told[0])
    mask = torch.ones(len(told), width, width)
    for row, numbers in enumerate(told):
        for one, asked in enumerate(numbers):
            for other, read in enumerate(numbers):
                if read == 0 or 0 < read < asked:
                    mask[row, one, other] = 0
    return mask


def logits_of(ours: Xlnet, peer: Any, found: torch.Tensor) -> torch.Tensor:
    return (found @ ours.token_embeddings.weight.t() + peer.lm_loss.bias).detach()


@pytest.mark.parametrize("lengths", [(12, 12), (14, 9, 11)], ids=["full", "ragged"])
def test_the_second_stream_equals_that_of_transformers(lengths: tuple[int, ...]):
    ours, peer = pair_of()
    batch = batch_with(lengths, num_asked=4)
    rows, width = batch.input_ids.shape
    mapping = torch.nn.functional.one_hot(batch.positions.view(rows, 4) % width, width).float()
    real = (torch.arange(width) < batch.lengths[:, None]).float()
    with torch.no_grad():
        found = ours(batch, positions=batch.positions).gather(batch.positions)
        expected = peer(
            batch.input_ids,
            attention_mask=real,
            token_type_ids=batch.token_type_ids,
            perm_mask=perm_mask_of(batch),
            target_mapping=mapping,
        ).logits
    assert float((logits_of(ours, peer, found) - expected.flatten(0, 1)).abs().max()) < CLOSE


def test_rows_with_unlike_numbers_of_places_are_each_computed_alone():
    ours, _ = pair_of()
    both = batch_with((12, 12), num_asked=3)
    some = both.positions[[0, 2, 3, 4, 5]]  # the second place of the first row is not asked for
    with torch.no_grad():
        whole, part = ours(both, positions=both.positions), ours(both, positions=some)
    assert float((whole.last_hidden_state[[0, 2, 3, 4, 5]] - part.gather(some)).abs().max()) < CLOSE


def test_gradients_of_both_streams_equal_those_of_transformers():
    ours, peer = pair_of()
    batch = batch_with((12, 12), num_asked=4)
    mapping = torch.nn.functional.one_hot(batch.positions.view(2, 4) % 12, 12).float()
    ours(batch, positions=batch.positions).last_hidden_state.square().sum().backward()
    given = {"perm_mask": perm_mask_of(batch), "target_mapping": mapping, "token_type_ids": batch.token_type_ids}
    peer.transformer(batch.input_ids, **given).last_hidden_state.square().sum().backward()
    expected = dict(peer.named_parameters())
    for name, (theirs,) in tensor_names(SIZES).items():
        if theirs.startswith("transformer.pooler."):
            continue
        slope = ours.get_parameter(name).grad
        assert slope is not None, name
        scale = float(expected[theirs].grad.abs().max())
        assert float((slope - expected[theirs].grad).abs().max()) < 1e-4 * max(scale, 1e-2), name


@pytest.mark.parametrize("size", [0, 5, 16])
def test_what_is_remembered_equals_transformers_over_three_segments(size: int):
    ours, peer = pair_of(replace(SIZES, mem_len=size))
    state, mems = EncoderState(), None
    for number in range(3):
        batch = batch_with((8, 8), seed=number)
        with torch.no_grad():
            found = ours(batch, state)
            expected = peer(batch.input_ids, token_type_ids=batch.token_type_ids, mems=mems, use_mems=True)
        assert isinstance(found.state, EncoderState)
        state, mems = found.state, expected.mems
        logits = logits_of(ours, peer, found.to_padded())
        assert float((logits - expected.logits).abs().max()) < CLOSE
        assert state.length == 8 * (number + 1)
        for (mine, _), theirs in zip(state.layers, mems, strict=True):
            assert mine.shape[1] == theirs.shape[0]
            assert float((mine - theirs.transpose(0, 1)).abs().max()) < CLOSE


def test_a_permutation_behind_a_memory_equals_transformers():
    ours, peer = pair_of()
    before, batch = batch_with((6, 6), seed=3), batch_with((10, 10), num_asked=3)
    mapping = torch.nn.functional.one_hot(batch.positions.view(2, 3) % 10, 10).float()
    with torch.no_grad():
        state = ours(before, EncoderState()).state
        found = ours(batch, state, positions=batch.positions).gather(batch.positions)
        mems = peer(before.input_ids, token_type_ids=before.token_type_ids, use_mems=True).mems
        given = {"perm_mask": perm_mask_of(batch), "target_mapping": mapping, "token_type_ids": batch.token_type_ids}
        expected = peer(batch.input_ids, mems=mems, use_mems=True, **given).logits
    assert float((logits_of(ours, peer, found) - expected.flatten(0, 1)).abs().max()) < CLOSE


def test_a_memory_of_rows_of_unlike_length_is_that_of_each_row_alone():
    ours = drawn(Xlnet(SIZES)).double()
    before, batch = batch_with((9, 4), seed=1), batch_with((5, 7), seed=2)
    with torch.no_grad():
        together = ours(batch, ours(before, EncoderState()).state).to_padded()
        for row in range(2):
            first, second = int(before.lengths[row]), int(batch.lengths[row])
            alone = Batch(
                before.input_ids[row : row + 1, :first],
                before.token_type_ids[row : row + 1, :first],
                torch.tensor([first]),
            )
            next_one = Batch(
                batch.input_ids[row : row + 1, :second],
                batch.token_type_ids[row : row + 1, :second],
                torch.tensor([second]),
            )
            expected = ours(next_one, ours(alone, EncoderState()).state).to_padded()
            assert float((together[row, :second] - expected[0]).abs().max()) < 1e-10


def test_a_memory_of_other_rows_is_refused():
    ours = Xlnet(SIZES).eval()
    state = ours(batch_with((5, 5)), EncoderState()).state
    with pytest.raises(InputError, match="the memory is of 2 rows, but the batch has 3"):
        ours(batch_with((5, 5, 5)), state)


def test_no_place_sees_what_its_order_forbids_in_either_stream():
    ours = drawn(Xlnet(SIZES)).double()
    batch = batch_with((10,), num_asked=4)
    told = batch.permutation[0].tolist()
    layout, asking = ours._create_memory_layout(batch, EncoderState(), batch.positions)
    for depth in range(1, SIZES.num_hidden_layers + 1):
        model = (
            ours if depth == SIZES.num_hidden_layers else drawn(Xlnet(replace(SIZES, num_hidden_layers=depth))).double()
        )
        values = model.embed(batch, layout).detach().requires_grad_()
        found = model._forward_streams(values, layout, None, (EncoderState(), asking))
        # The second stream: what was told before, and never its own piece.
        for number, place in enumerate(batch.positions.tolist()):
            (slope,) = torch.autograd.grad(
                found[-1][asking.output_positions.order[number]].sum(), values, retain_graph=True
            )
            seen = {other for other in range(10) if float(slope[other].abs().max()) > 0}
            assert seen == {other for other in range(10) if told[other] < told[place]}
        # The first: the same and its own; those that are not asked see none of those that are.
        if depth == 1:
            continue
        for place in range(10):
            (slope,) = torch.autograd.grad(found[-2][place].sum(), values, retain_graph=True)
            seen = {other for other in range(10) if float(slope[other].abs().max()) > 0}
            assert seen == {other for other in range(10) if told[other] < max(told[place], 1)} | {place}


def test_a_change_of_a_forbidden_piece_changes_no_answer():
    ours = drawn(Xlnet(SIZES)).double()
    batch = batch_with((10,), num_asked=4)
    told = batch.permutation[0]
    with torch.no_grad():
        answers = ours(batch, positions=batch.positions).last_hidden_state
        for place in batch.positions.tolist():
            changed = batch.input_ids.clone()
            changed[0, place] = (changed[0, place] + 7) % 70
            after = ours(replace(batch, input_ids=changed), positions=batch.positions).last_hidden_state
            moved = (answers - after).abs().amax(1) > 0
            assert moved.tolist() == (told[batch.positions] > told[place]).tolist()


def test_dropping_follows_from_the_seeds_and_recomputing_changes_nothing():
    sizes = replace(SIZES, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    ours = drawn(Xlnet(sizes)).train()
    batch = batch_with((10, 9), num_asked=3)
    slopes = []
    for seed, recomputes in ((1, False), (1, True), (2, False)):
        ours.activation_checkpointing = recomputes
        ours.zero_grad()
        seeds = DropoutSeeds(torch.tensor(seed, dtype=torch.int32))
        ours(batch, seeds=seeds, positions=batch.positions).last_hidden_state.square().sum().backward()
        slopes.append(ours.mask_embedding.grad.clone())
    assert torch.equal(slopes[0], slopes[1])
    assert not torch.equal(slopes[0], slopes[2])


def test_a_rate_of_dropping_reaches_attention_too():
    ours = Xlnet(SIZES)
    ours.set_dropout(0.0)
    ours.train()
    batch = batch_with((10, 9))
    first, second = (
        ours(batch, seeds=DropoutSeeds(torch.tensor(seed, dtype=torch.int32))).last_hidden_state for seed in (1, 2)
    )
    assert torch.equal(first, second)


REFUSED = {
    "one way": ({"attn_type": "uni"}, "attn_type is 'uni'"),
    "clamped distances": ({"clamp_len": 400}, "clamp_len is 400"),
    "another summary": ({"summary_type": "mean"}, "summary_type is 'mean'"),
    "heads of another width": ({"d_head": 5}, "d_head is 5"),
    "a memory of no size": ({"mem_len": "long"}, "mem_len should be a whole number"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_settings_that_would_change_the_numbers_are_refused(change: dict[str, Any], message: str):
    with pytest.raises(SettingsError, match=message):
        config_from_dict({**config_to_dict(SIZES, ["XLNetModel"]), **change})


def test_the_config_of_the_release_is_read():
    told = transformers.XLNetConfig(mem_len=None).to_dict()
    sizes = config_from_dict(told)
    assert (sizes.hidden_size, sizes.num_hidden_layers, sizes.num_attention_heads, sizes.intermediate_size) == (
        1024,
        24,
        16,
        4096,
    )
    assert (sizes.mem_len, sizes.max_position_embeddings, sizes.vocab_size) == (0, 512, 32_000)


def test_answers_to_questions_have_the_simple_class_of_transformers():
    assert architecture_of(SIZES, "spans") == "XLNetForQuestionAnsweringSimple"
    assert hasattr(transformers, architecture_of(SIZES, "spans"))
    assert ENCODERS["xlnet"].heads["spans"]["score.weight"] == ("qa_outputs.weight",)
