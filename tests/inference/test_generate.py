"""Going on with a text: what may be drawn, by hand; cached and uncached scores; next words of every kind of model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bertworks.cli.generate import app as generate
from bertworks.cli.next import app as following
from bertworks.encoders.families import ENCODERS, architecture_of
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.inference.generate import GenerationConfig, TextGenerator
from bertworks.inference.model import load
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import to_hf_names
from bertworks.objectives.causal import next_token_logits
from bertworks.objectives.heads import MlmHead
from bertworks.sampling.batch import collate_sequences
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TOKENIZER = Tokenizer.from_backend(
    wordpiece_backend([*SPECIALS, "play", "##ing", "sing", "the", "song", "."], cased=False)
)
POSITIONS = 12


def continuer(tilt: float = 0.0) -> TextGenerator:
    """A GPT of random weights; `tilt` raises what it thinks of the end of a text."""
    usual = ENCODERS["openai-gpt"].config_from_preset("tiny", TOKENIZER.vocab_size)
    sizes = replace(
        usual, hidden_size=16, num_attention_heads=2, intermediate_size=64, max_position_embeddings=POSITIONS
    )
    encoder = ENCODERS["openai-gpt"].build(sizes, None)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(0.0, 0.4, generator=generator)
        if tilt:
            encoder.layers[-1].norm.bias.copy_(encoder.token_embeddings.weight[TOKENIZER.specials.sep] * tilt)
    return TextGenerator(encoder, TOKENIZER)


def log(*shares: float) -> torch.Tensor:
    return torch.tensor(shares).log()


@pytest.mark.parametrize(
    ("drawing", "expected"),
    [
        (GenerationConfig(), [0, 1, 0, 0]),
        (GenerationConfig(top_k=0), [0.2, 0.5, 0.3, 0]),
        (GenerationConfig(top_k=2), [0, 5 / 8, 3 / 8, 0]),
        (GenerationConfig(top_k=0, top_p=0.5), [0, 1, 0, 0]),
        (GenerationConfig(top_k=0, top_p=0.6), [0, 5 / 8, 3 / 8, 0]),
        (GenerationConfig(top_k=0, temperature=0.5), [4 / 38, 25 / 38, 9 / 38, 0]),  # squares
        (GenerationConfig(top_k=0, top_p=0.6, temperature=0.5), [0, 1, 0, 0]),  # 25 of 38 are enough
    ],
)
def test_what_may_be_drawn_worked_out_by_hand(drawing: GenerationConfig, expected: list[float]):
    assert drawing.probabilities(log(0.2, 0.5, 0.3, 0.0)).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    "settings", [{"max_pieces": 0}, {"top_k": -1}, {"nucleus": 0.0}, {"nucleus": 1.1}, {"temperature": 0.0}]
)
def test_impossible_drawings_are_refused(settings: dict[str, float]):
    with pytest.raises(SettingsError):
        GenerationConfig(**settings)  # type: ignore[arg-type]


def test_greedy_pieces_are_those_of_whole_rows_read_again_at_every_step():
    own = continuer()
    found = own.generate("the song", GenerationConfig(max_new_tokens=6))
    ids = [TOKENIZER.specials.cls, *TOKENIZER.tokenize("the song").input_ids.tolist()]
    banned = [one for one in TOKENIZER.specials.ids if one != TOKENIZER.specials.sep]
    for piece, chance in zip(found.pieces, found.probabilities, strict=True):
        row = Encoding(tuple(ids), (), (), (), (0,) * len(ids))
        with torch.no_grad():
            scores = next_token_logits(own.encoder, collate_sequences([row], 0))[0]
        scores[banned] = float("-inf")
        best = int(scores.argmax())
        assert TOKENIZER.tokens[best] == piece
        assert chance == pytest.approx(float(torch.softmax(scores, -1)[best]), abs=1e-5)
        ids.append(best)
    assert len(found.pieces) == 6 or found.finish_reason == "end"


def test_the_same_seed_gives_the_same_text_and_others_give_others():
    own = continuer()
    texts = [
        own.generate("the", GenerationConfig(top_k=0, seed=seed, temperature=3.0)).text for seed in (0, 0, 1, 2, 3)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 2
    assert all(text.startswith("the") for text in texts)
    assert not any(special in text for text in texts for special in SPECIALS)


def test_a_text_ends_at_its_end_or_with_the_last_position():
    assert continuer(tilt=50.0).generate("the song").finish_reason == "end"
    full = continuer(tilt=-50.0).generate("the song", GenerationConfig(max_new_tokens=100))
    assert full.finish_reason == "positions"
    assert len(full.pieces) == POSITIONS + 1 - 3  # [CLS] the song, and what follows the last place is told too
    with pytest.raises(InputError, match="the text has 14 pieces and the model reads 12; shorten it"):
        continuer().generate("the " * 13)


def test_a_next_word_is_a_beginning_with_what_likely_continues_it():
    own = continuer()
    words = own.next_words("the song", top_k=4)
    assert [one.probability for one in words] == sorted((one.probability for one in words), reverse=True)
    for one in words:
        assert not one.pieces[0].startswith("##")
        assert all(piece.startswith("##") for piece in one.pieces[1:])
        assert one.word == "".join(piece.removeprefix("##") for piece in one.pieces)
    assert len({one.pieces[0] for one in words}) == 4


def folder_of(path: Path, family: str) -> Path:
    sizes = replace(
        ENCODERS[family].config_from_preset("tiny", TOKENIZER.vocab_size),
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
    )
    encoder = ENCODERS[family].build(sizes, torch.Generator().manual_seed(0))
    config = ENCODERS[family].config_to_dict(sizes, [architecture_of(sizes)])
    names = ENCODERS[family].tensor_names(sizes)
    tensors = to_hf_names(encoder.state_dict(), names)
    if family == "bert":
        tensors |= to_hf_names(MlmHead(sizes).state_dict(), ENCODERS[family].heads["masked"])
    write_folder(path, config, tensors, TOKENIZER, {})
    return path


def test_a_model_that_fills_blanks_tells_words_on_both_sides(tmp_path: Path):
    model = load(folder_of(tmp_path / "bert", "bert"))
    for backward in (False, True):
        words = model.next_words("the song", top_k=3, backward=backward)
        blank = "[MASK] the song" if backward else "the song [MASK]"
        filled = [one for one in model.fill_mask(blank, top_k=9).mask_candidates[0] if not one.token.startswith("##")][
            :3
        ]
        assert [(one.word, one.probability) for one in words] == [(one.token, one.probability) for one in filled]
    with pytest.raises(FolderError, match="cannot go on with a text: it reads both ways"):
        model.generate("the song")


def test_a_left_to_right_model_goes_on_and_does_not_tell_what_stood_before(tmp_path: Path):
    model = load(folder_of(tmp_path / "gpt", "openai-gpt"))
    assert model.generate("the song", GenerationConfig(max_new_tokens=2)).text.startswith("the song")
    assert len(model.next_words("the song", top_k=2)) == 2
    with pytest.raises(FolderError, match="cannot tell what stood before"):
        model.next_words("the song", backward=True)


def test_the_verbs_say_what_the_model_does(tmp_path: Path):
    folder = folder_of(tmp_path / "gpt", "openai-gpt")
    model = load(folder)
    said = CliRunner().invoke(generate, [str(folder), "the song", "--pieces", "3"]).output
    assert said == model.generate("the song", GenerationConfig(max_new_tokens=3)).text + "\n"
    said = CliRunner().invoke(following, [str(folder), "the song", "--top", "2"]).output
    assert [line.split()[-1] for line in said.splitlines()] == [one.word for one in model.next_words("the song", 2)]
