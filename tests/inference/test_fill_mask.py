"""Fill-mask against transformers and brute force on the same weights, and against probabilities set by hand."""

import itertools
from pathlib import Path

import pytest
import torch
import transformers

from bertworks import load
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.errors import InputError
from bertworks.inference.fill_mask import FillMaskResult, MaskFiller
from bertworks.inference.model import LoadedModel
from bertworks.objectives.heads import MlmHead
from bertworks.vocabulary.tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENS = [*SPECIALS, "i", "like", "play", "##ing", "##s", "soccer", ".", *"今天气很好我们去公园玩吧，。"]
NUM_ORDINARY = len(TOKENS) - len(SPECIALS)
WEATHER = "今天天气[MASK][MASK]，我们去公园玩吧。"
CLOSE = 1e-5
HfModel = transformers.BertForMaskedLM


def write_vocabulary(folder: Path, tokens: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return folder / "vocab.txt"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, HfModel]:
    """A small random model as bertworks loads it, and the same in transformers."""
    torch.manual_seed(0)
    hf_model = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=len(TOKENS),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=32,
            initializer_range=0.5,  # far from uniform, so that an error shows
        )
    ).eval()
    torch.nn.init.normal_(hf_model.cls.predictions.bias)
    folder = tmp_path_factory.mktemp("masked")
    hf_model.save_pretrained(folder)
    write_vocabulary(folder, TOKENS)
    return load(folder), hf_model


@torch.no_grad()
def probabilities(hf_model: HfModel, input_ids: list[int]) -> torch.Tensor:
    """Probabilities by transformers at each position, renormalized without special tokens."""
    probs = hf_model(torch.tensor([input_ids])).logits[0].double().softmax(-1)
    probs[:, : len(SPECIALS)] = 0.0
    return probs / probs.sum(-1, keepdim=True)


def mask_positions(input_ids: list[int]) -> list[int]:
    return [position for position, token_id in enumerate(input_ids) if token_id == TOKENS.index("[MASK]")]


def fixed_filler(folder: Path, weights: dict[str, int]) -> MaskFiller:
    """A filler that ignores the text: the probability of a token is its weight divided by the sum of all weights."""
    tokens = [*SPECIALS, *weights]
    tokenizer = Tokenizer.load(write_vocabulary(folder, tokens))
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=16,
    )
    head = MlmHead(config)
    with torch.no_grad():
        head.norm.weight.zero_()  # the transform is then 0, and the logits are the bias
        head.bias.copy_(torch.tensor([100.0] * len(SPECIALS) + [float(weight) for weight in weights.values()]))
        head.bias[len(SPECIALS) :].log_()
    return MaskFiller(Bert(config, torch.Generator().manual_seed(0)).eval(), head, tokenizer)


def texts_with_probabilities(result: FillMaskResult) -> list[tuple[str, float]]:
    return [(sequence.text, sequence.probability) for sequence in result.sequences]


@pytest.mark.parametrize("text", ["I like play[MASK] soccer.", "[MASK]", WEATHER, "I [MASK] soccer [MASK] [MASK]"])
def test_candidates_have_the_probabilities_of_transformers(models: tuple[LoadedModel, HfModel], text: str):
    model, hf_model = models
    input_ids = list(model.tokenizer.encode(text, parse_masks=True).input_ids)
    result = model.fill_mask(text, top_k=7)
    assert result.text == text
    assert len(result.mask_candidates) == text.count("[MASK]")
    for candidates, position in zip(result.mask_candidates, mask_positions(input_ids), strict=True):
        expected = probabilities(hf_model, input_ids)[position].topk(7)
        assert [candidate.token for candidate in candidates] == [TOKENS[index] for index in expected.indices]
        assert [candidate.probability for candidate in candidates] == pytest.approx(expected.values.tolist(), abs=CLOSE)


def test_candidates_equal_the_fill_mask_pipeline_of_transformers_without_special_tokens(
    models: tuple[LoadedModel, HfModel],
):
    model, hf_model = models
    hf_tokenizer = transformers.BertTokenizer.from_pretrained(model.folder)
    fill_mask = transformers.pipeline("fill-mask", model=hf_model, tokenizer=hf_tokenizer, device="cpu")
    text = "我们去[MASK]园玩。"
    rows = [row for row in fill_mask(text, top_k=len(TOKENS)) if row["token_str"] not in SPECIALS]
    total = sum(row["score"] for row in rows)
    candidates = model.fill_mask(text, top_k=4).mask_candidates[0]
    assert [candidate.token for candidate in candidates] == [row["token_str"] for row in rows[:4]]
    assert [candidate.probability for candidate in candidates] == pytest.approx(
        [row["score"] / total for row in rows[:4]], abs=CLOSE
    )


def test_sequences_equal_brute_force_if_the_beam_holds_the_vocabulary(models: tuple[LoadedModel, HfModel]):
    model, hf_model = models
    input_ids = list(model.tokenizer.encode(WEATHER, parse_masks=True).input_ids)
    first, second = mask_positions(input_ids)
    joint: dict[tuple[str, str], float] = {}
    ordinary = range(len(SPECIALS), len(TOKENS))
    first_probs = probabilities(hf_model, input_ids)[first]
    for one in ordinary:
        second_probs = probabilities(hf_model, [*input_ids[:first], one, *input_ids[first + 1 :]])[second]
        for other in ordinary:
            joint[TOKENS[one], TOKENS[other]] = float(first_probs[one] * second_probs[other])
    assert sum(joint.values()) == pytest.approx(1.0)
    best = sorted(joint, key=joint.__getitem__, reverse=True)[: len(TOKENS)]
    sequences = model.fill_mask(WEATHER, top_k=len(TOKENS)).sequences
    assert [sequence.tokens for sequence in sequences] == best
    assert [sequence.probability for sequence in sequences] == pytest.approx([joint[one] for one in best], abs=CLOSE)


def test_every_token_except_special_ones_is_a_candidate_once(models: tuple[LoadedModel, HfModel]):
    result = models[0].fill_mask(WEATHER, top_k=10 * len(TOKENS))
    for candidates in result.mask_candidates:
        assert sorted(candidate.token for candidate in candidates) == sorted(TOKENS[len(SPECIALS) :])
        assert sum(candidate.probability for candidate in candidates) == pytest.approx(1.0)
    all_pairs = set(itertools.product(TOKENS[len(SPECIALS) :], repeat=2))
    assert len(all_pairs) == NUM_ORDINARY**2
    assert all(sequence.probability > 0 and sequence.tokens in all_pairs for sequence in result.sequences)
    assert len({sequence.tokens for sequence in result.sequences}) == len(result.sequences) == 10 * len(TOKENS)


def test_the_best_sequence_does_not_depend_on_top_k(models: tuple[LoadedModel, HfModel]):
    many = models[0].fill_mask(WEATHER, top_k=10).sequences
    assert models[0].fill_mask(WEATHER, top_k=1).sequences == many[:1]


def test_probabilities_worked_out_by_hand(tmp_path: Path):
    """Weights 5, 3 and 2 are probabilities 0.5, 0.3 and 0.2; two masks multiply. Special tokens have none."""
    result = fixed_filler(tmp_path / "three", {"好": 5, "很": 3, "坏": 2}).fill_mask("[MASK][MASK]。", top_k=4)
    for candidates in result.mask_candidates:
        assert [candidate.token for candidate in candidates] == ["好", "很", "坏"]
        assert [candidate.probability for candidate in candidates] == pytest.approx([0.5, 0.3, 0.2])
    assert result.sequences[0].text == "好好。"
    assert [sequence.probability for sequence in result.sequences] == pytest.approx([0.25, 0.15, 0.15, 0.10])
    assert {sequence.text for sequence in result.sequences[1:3]} == {"好很。", "很好。"}


def test_one_mask_has_the_same_candidates_and_sequences(tmp_path: Path):
    result = fixed_filler(tmp_path / "two", {"cats": 3, "dogs": 1}).fill_mask("I like [MASK], too.")
    assert texts_with_probabilities(result) == [
        ("I like cats, too.", pytest.approx(0.75)),
        ("I like dogs, too.", pytest.approx(0.25)),
    ]
    assert [(candidate.token, candidate.probability) for candidate in result.mask_candidates[0]] == [
        ("cats", pytest.approx(0.75)),
        ("dogs", pytest.approx(0.25)),
    ]


def test_padding_rows_of_the_embedding_table_are_no_candidates(tmp_path: Path):
    """Many models pad their table to a round size; the padding must have no probability."""
    folder = tmp_path / "padded"
    filler = fixed_filler(folder, {"a": 3, "b": 1, "c": 4, "d": 4})
    tokenizer = Tokenizer.load(write_vocabulary(folder, [*SPECIALS, "a", "b"]))
    result = MaskFiller(filler.encoder, filler.head, tokenizer).fill_mask("[MASK]", top_k=9)
    assert texts_with_probabilities(result) == [("a", pytest.approx(0.75)), ("b", pytest.approx(0.25))]


@pytest.mark.parametrize(
    ("text", "token", "expected"),
    [
        ("He play[MASK] well.", "##ing", "He playing well."),
        ("He play [MASK] well.", "##ing", "He playing well."),
        ("He [MASK]  well.", "sings", "He sings  well."),
        ("[MASK] well", "##ing", "ing well"),
        ("今天天气[MASK]！", "好", "今天天气好！"),
        (" “[MASK]”\n", "sings", " “sings”\n"),
        ("a[MASK]", "sings", "asings"),  # no space is inserted after text without one
    ],
)
def test_a_mask_is_replaced_in_place(tmp_path: Path, text: str, token: str, expected: str):
    assert fixed_filler(tmp_path / "one", {token: 1}).fill_mask(text).sequences[0].text == expected


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"play": 1, "##ing": 1}, {"play play.", "playing.", "ing play.", "inging."}),
        ({"很": 1, "好": 1}, {"很很.", "很好.", "好很.", "好好."}),
        ({"好": 1, "ok": 1}, {"好好.", "好ok.", "ok好.", "ok ok."}),
    ],
)
def test_adjacent_masks_are_spaced_as_words(tmp_path: Path, weights: dict[str, int], expected: set[str]):
    result = fixed_filler(tmp_path / "adjacent", weights).fill_mask("[MASK][MASK].")
    assert {sequence.text for sequence in result.sequences} == expected


def test_a_text_without_a_mask_is_refused(models: tuple[LoadedModel, HfModel]):
    with pytest.raises(InputError, match=r"the text has no mask token; write \[MASK\] where"):
        models[0].fill_mask("我们去公园玩吧。")


def test_a_text_longer_than_the_model_reads_is_refused(models: tuple[LoadedModel, HfModel]):
    # 29 + [MASK], [CLS] and [SEP] just fit
    assert len(models[0].fill_mask("天" * 29 + "[MASK]", top_k=1).sequences) == 1
    with pytest.raises(InputError, match="the text has 33 tokens, but the model reads at most 32; shorten it"):
        models[0].fill_mask("天" * 30 + "[MASK]")


def test_top_k_of_zero_is_refused(models: tuple[LoadedModel, HfModel]):
    with pytest.raises(InputError, match="top_k is 0; it must be at least 1"):
        models[0].fill_mask(WEATHER, top_k=0)


def test_a_lower_case_mask_is_no_mask(models: tuple[LoadedModel, HfModel]):
    with pytest.raises(InputError, match="no mask token"):
        models[0].fill_mask("I like [mask].")
