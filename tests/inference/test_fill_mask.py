"""Filled blanks against transformers and brute force on the same weights, and against probabilities set by hand."""

import itertools
from pathlib import Path

import pytest
import torch
import transformers

from bertworks import load
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.errors import InputError
from bertworks.inference.fill_mask import FillMaskResult, MaskFiller
from bertworks.inference.model import Model
from bertworks.objectives.heads import MlmHead
from bertworks.vocabulary.tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIALS, "i", "like", "play", "##ing", "##s", "soccer", ".", *"今天气很好我们去公园玩吧，。"]
NUM_ORDINARY = len(PIECES) - len(SPECIALS)
WEATHER = "今天天气[MASK][MASK]，我们去公园玩吧。"
CLOSE = 1e-5
Theirs = transformers.BertForMaskedLM


def write_vocabulary(folder: Path, pieces: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return folder / "vocab.txt"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Theirs]:
    """A small random model as bertworks loads it, and as transformers has it."""
    torch.manual_seed(0)
    theirs = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=len(PIECES),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=32,
            initializer_range=0.5,  # far from uniform, so that a mistake shows
        )
    ).eval()
    torch.nn.init.normal_(theirs.cls.predictions.bias)
    folder = tmp_path_factory.mktemp("masked")
    theirs.save_pretrained(folder)
    write_vocabulary(folder, PIECES)
    return load(folder), theirs


@torch.no_grad()
def probabilities(theirs: Theirs, ids: list[int]) -> torch.Tensor:
    """What transformers gives each piece at each place, the special pieces left out and the rest adding up to one."""
    whole = theirs(torch.tensor([ids])).logits[0].double().softmax(-1)
    whole[:, : len(SPECIALS)] = 0.0
    return whole / whole.sum(-1, keepdim=True)


def mask_places(ids: list[int]) -> list[int]:
    return [place for place, number in enumerate(ids) if number == PIECES.index("[MASK]")]


def fixed_filler(folder: Path, weights: dict[str, int]) -> MaskFiller:
    """A filler whose answer does not depend on the text: each piece is as likely as its share of all weights."""
    pieces = [*SPECIALS, *weights]
    tokenizer = Tokenizer.load(write_vocabulary(folder, pieces))
    sizes = BertConfig(
        len(pieces),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=16,
    )
    head = MlmHead(sizes)
    with torch.no_grad():
        head.norm.weight.zero_()  # the transform is then 0, and the logits are the bias
        head.bias.copy_(torch.tensor([100.0] * len(SPECIALS) + [float(one) for one in weights.values()]))
        head.bias[len(SPECIALS) :].log_()
    return MaskFiller(Bert(sizes, torch.Generator().manual_seed(0)).eval(), head, tokenizer)


def told(found: FillMaskResult) -> list[tuple[str, float]]:
    return [(filling.text, filling.probability) for filling in found.sequences]


@pytest.mark.parametrize("text", ["I like play[MASK] soccer.", "[MASK]", WEATHER, "I [MASK] soccer [MASK] [MASK]"])
def test_candidates_have_the_probabilities_of_transformers(pair: tuple[Model, Theirs], text: str):
    ours, theirs = pair
    ids = list(ours.tokenizer.encode(text, parse_masks=True).input_ids)
    found = ours.fill_mask(text, top_k=7)
    assert found.text == text
    assert len(found.mask_candidates) == text.count("[MASK]")
    for candidates, place in zip(found.mask_candidates, mask_places(ids), strict=True):
        expected = probabilities(theirs, ids)[place].topk(7)
        assert [one.token for one in candidates] == [PIECES[number] for number in expected.indices]
        assert [one.probability for one in candidates] == pytest.approx(expected.values.tolist(), abs=CLOSE)


def test_the_fill_mask_pipeline_of_transformers_agrees_when_special_pieces_are_left_out(pair: tuple[Model, Theirs]):
    ours, theirs = pair
    peer = transformers.BertTokenizer.from_pretrained(ours.folder)
    fill_mask = transformers.pipeline("fill-mask", model=theirs, tokenizer=peer, device="cpu")
    text = "我们去[MASK]园玩。"
    rows = [row for row in fill_mask(text, top_k=len(PIECES)) if row["token_str"] not in SPECIALS]
    total = sum(row["score"] for row in rows)
    found = ours.fill_mask(text, top_k=4).mask_candidates[0]
    assert [one.token for one in found] == [row["token_str"] for row in rows[:4]]
    assert [one.probability for one in found] == pytest.approx([row["score"] / total for row in rows[:4]], abs=CLOSE)


def test_joint_fillings_equal_brute_force_when_the_beam_holds_the_vocabulary(pair: tuple[Model, Theirs]):
    ours, theirs = pair
    ids = list(ours.tokenizer.encode(WEATHER, parse_masks=True).input_ids)
    first, second = mask_places(ids)
    chances: dict[tuple[str, str], float] = {}
    ordinary = range(len(SPECIALS), len(PIECES))
    firsts = probabilities(theirs, ids)[first]
    for one in ordinary:
        given = probabilities(theirs, [*ids[:first], one, *ids[first + 1 :]])[second]
        for other in ordinary:
            chances[PIECES[one], PIECES[other]] = float(firsts[one] * given[other])
    assert sum(chances.values()) == pytest.approx(1.0)
    best = sorted(chances, key=chances.__getitem__, reverse=True)[: len(PIECES)]
    found = ours.fill_mask(WEATHER, top_k=len(PIECES)).sequences
    assert [filling.tokens for filling in found] == best
    assert [filling.probability for filling in found] == pytest.approx([chances[one] for one in best], abs=CLOSE)


def test_every_piece_but_the_special_ones_is_offered_once(pair: tuple[Model, Theirs]):
    found = pair[0].fill_mask(WEATHER, top_k=10 * len(PIECES))
    for candidates in found.mask_candidates:
        assert sorted(one.token for one in candidates) == sorted(PIECES[len(SPECIALS) :])
        assert sum(one.probability for one in candidates) == pytest.approx(1.0)
    every = set(itertools.product(PIECES[len(SPECIALS) :], repeat=2))
    assert len(every) == NUM_ORDINARY**2
    assert all(filling.probability > 0 and filling.tokens in every for filling in found.sequences)
    assert len({filling.tokens for filling in found.sequences}) == len(found.sequences) == 10 * len(PIECES)


def test_the_best_filling_does_not_depend_on_how_many_are_asked_for(pair: tuple[Model, Theirs]):
    many = pair[0].fill_mask(WEATHER, top_k=10).sequences
    assert pair[0].fill_mask(WEATHER, top_k=1).sequences == many[:1]


def test_probabilities_worked_out_by_hand(tmp_path: Path):
    """Weights 5, 3 and 2 are shares of 0.5, 0.3 and 0.2; two blanks multiply. Special pieces count for nothing."""
    found = fixed_filler(tmp_path / "three", {"好": 5, "很": 3, "坏": 2}).fill("[MASK][MASK]。", top_k=4)
    for candidates in found.blanks:
        assert [one.token for one in candidates] == ["好", "很", "坏"]
        assert [one.probability for one in candidates] == pytest.approx([0.5, 0.3, 0.2])
    assert found.sequences[0].text == "好好。"
    assert [filling.probability for filling in found.sequences] == pytest.approx([0.25, 0.15, 0.15, 0.10])
    assert {filling.text for filling in found.sequences[1:3]} == {"好很。", "很好。"}


def test_one_blank_has_the_same_candidates_and_fillings(tmp_path: Path):
    found = fixed_filler(tmp_path / "two", {"cats": 3, "dogs": 1}).fill_mask("I like [MASK], too.")
    assert told(found) == [("I like cats, too.", pytest.approx(0.75)), ("I like dogs, too.", pytest.approx(0.25))]
    assert [(one.token, one.probability) for one in found.blanks[0]] == [
        ("cats", pytest.approx(0.75)),
        ("dogs", pytest.approx(0.25)),
    ]


def test_a_table_longer_than_the_vocabulary_offers_only_pieces_that_exist(tmp_path: Path):
    """Many models pad their table to a round size; a row without a piece must neither be offered nor take a share."""
    folder = tmp_path / "padded"
    filler = fixed_filler(folder, {"a": 3, "b": 1, "c": 4, "d": 4})
    shorter = Tokenizer.load(write_vocabulary(folder, [*SPECIALS, "a", "b"]))
    found = MaskFiller(filler.encoder, filler.head, shorter).fill_mask("[MASK]", top_k=9)
    assert told(found) == [("a", pytest.approx(0.75)), ("b", pytest.approx(0.25))]


@pytest.mark.parametrize(
    ("text", "piece", "written"),
    [
        ("He play[MASK] well.", "##ing", "He playing well."),
        ("He play [MASK] well.", "##ing", "He playing well."),
        ("He [MASK]  well.", "sings", "He sings  well."),
        ("[MASK] well", "##ing", "ing well"),
        ("今天天气[MASK]！", "好", "今天天气好！"),
        (" “[MASK]”\n", "sings", " “sings”\n"),
        ("a[MASK]", "sings", "asings"),  # what the user wrote without a space stays so
    ],
)
def test_a_blank_is_replaced_where_it_stood(tmp_path: Path, text: str, piece: str, written: str):
    assert fixed_filler(tmp_path / "one", {piece: 1}).fill_mask(text).sequences[0].text == written


@pytest.mark.parametrize(
    ("weights", "written"),
    [
        ({"play": 1, "##ing": 1}, {"play play.", "playing.", "ing play.", "inging."}),
        ({"很": 1, "好": 1}, {"很很.", "很好.", "好很.", "好好."}),
        ({"好": 1, "ok": 1}, {"好好.", "好ok.", "ok好.", "ok ok."}),
    ],
)
def test_blanks_that_touch_read_as_their_pieces_do(tmp_path: Path, weights: dict[str, int], written: set[str]):
    found = fixed_filler(tmp_path / "touching", weights).fill_mask("[MASK][MASK].")
    assert {filling.text for filling in found.sequences} == written


def test_a_text_without_a_blank_is_refused_with_how_to_write_one(pair: tuple[Model, Theirs]):
    with pytest.raises(InputError, match=r"no blank in the text; write \[MASK\] where"):
        pair[0].fill_mask("我们去公园玩吧。")


def test_a_text_longer_than_the_model_reads_is_refused_with_both_lengths(pair: tuple[Model, Theirs]):
    assert (
        len(pair[0].fill_mask("天" * 29 + "[MASK]", top_k=1).fillings) == 1
    )  # 29 + [MASK], [CLS] and [SEP]: just fits
    with pytest.raises(InputError, match="the text has 33 pieces and the model reads 32; shorten it"):
        pair[0].fill_mask("天" * 30 + "[MASK]")


def test_asking_for_no_candidate_is_refused(pair: tuple[Model, Theirs]):
    with pytest.raises(InputError, match="top is 0; ask for at least one"):
        pair[0].fill_mask(WEATHER, top_k=0)


def test_a_small_mask_word_in_the_text_is_no_blank(pair: tuple[Model, Theirs]):
    with pytest.raises(InputError, match="no blank"):
        pair[0].fill_mask("I like [mask].")
