"""Loading models: a folder in, a Model with a report of loaded and missing tensors out."""

from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from family_models import randomize_weights
from small_models import TASKS, write_finetuned, write_sentence_model
from tokenizers import models, normalizers, pre_tokenizers

import bertworks
from bertworks.encoders.bert import HEADS, Bert, BertConfig, tensor_names
from bertworks.encoders.config import config_to_dict
from bertworks.errors import FolderError, InputError
from bertworks.inference.model import LoadedModel, load
from bertworks.models.folder import check_tied, read_folder, write_folder
from bertworks.models.tensor_names import combine_name_tables, to_hf_names
from bertworks.objectives.mlm import MlmModule
from bertworks.vocabulary.tokenizer import Tokenizer

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "i", "like", "soccer", ".", *"我喜欢足球。"]
CONFIG = BertConfig(
    vocab_size=len(TOKENS),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)
POOLER = ("bert.pooler.dense.weight", "bert.pooler.dense.bias")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return Tokenizer.load(tmp_path / "vocab.txt")


@pytest.fixture
def pretrained(tmp_path: Path, tokenizer: Tokenizer) -> tuple[Path, MlmModule]:
    """A model folder as `bertworks pretrain` writes it, and its module."""
    generator = torch.Generator().manual_seed(0)
    module = MlmModule(Bert(CONFIG, generator), generator)
    names = combine_name_tables({"encoder": tensor_names(CONFIG), "mlm_head": HEADS["mlm"], "pair_head": HEADS["nsp"]})
    folder = tmp_path / "pretrained"
    metadata = {"objective": "mlm-nsp"}
    tensors = to_hf_names(module.state_dict(), names)
    write_folder(folder, config_to_dict(CONFIG, ["BertForPreTraining"]), tensors, tokenizer, metadata)
    return folder, module


def transformers_folder(folder: Path, kind: type[transformers.PreTrainedModel]) -> Path:
    kind(transformers.BertConfig(**config_to_dict(CONFIG, [kind.__name__]))).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return folder


def test_a_pretrained_folder_is_loaded_completely(pretrained: tuple[Path, MlmModule]):
    folder, module = pretrained
    model = load(folder)
    assert isinstance(model, LoadedModel)
    assert model.folder == folder
    assert model.metadata["objective"] == "mlm-nsp"
    assert model.tokenizer.tokens == tuple(TOKENS)
    assert model.mlm_head is not None
    for loaded, expected in ((model.encoder, module.encoder), (model.mlm_head, module.mlm_head)):
        for name, tensor in expected.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name


def test_a_pretrained_folder_has_no_missing_tensors(pretrained: tuple[Path, MlmModule]):
    report = load(pretrained[0]).report
    heads = {name for names in HEADS["mlm"].values() for name in names}
    assert report.missing_keys == ()
    assert heads <= set(report.loaded_keys)
    assert sorted(report.unexpected_keys) == ["cls.seq_relationship.bias", "cls.seq_relationship.weight"]


def test_a_loaded_model_has_no_dropout(pretrained: tuple[Path, MlmModule]):
    model = load(str(pretrained[0]))
    assert model.mlm_head is not None
    assert not model.encoder.training
    assert not model.mlm_head.training
    assert model.fill_mask("我喜欢[MASK]球。") == model.fill_mask("我喜欢[MASK]球。")


def test_fill_mask_has_top_k_candidates_for_each_mask(pretrained: tuple[Path, MlmModule]):
    result = bertworks.load(pretrained[0]).fill_mask("I like [MASK] [MASK].", top_k=3)
    assert [len(candidates) for candidates in result.mask_candidates] == [3, 3]
    assert len(result.sequences) == 3


def test_a_masked_lm_of_transformers_misses_only_the_pooler(tmp_path: Path):
    model = load(transformers_folder(tmp_path / "masked", transformers.BertForMaskedLM))
    assert model.report.missing_keys == POOLER
    assert model.report.unexpected_keys == ()
    assert model.metadata == {}
    assert len(model.fill_mask("我喜欢[MASK]球。").sequences) == 5


def test_missing_tensors_are_initialized_with_a_fixed_seed(tmp_path: Path):
    folder = transformers_folder(tmp_path / "masked", transformers.BertForMaskedLM)
    first, second = load(folder).encoder.pooler, load(folder).encoder.pooler
    assert torch.equal(first.weight, second.weight)
    assert float(first.weight.detach().abs().max()) > 0


def test_fill_mask_of_an_encoder_without_a_head_is_refused(minilm: Path):
    model = load(minilm)
    assert model.mlm_head is None
    assert model.report.missing_keys == ()
    with pytest.raises(FolderError, match="has no masked-LM head") as caught:
        model.fill_mask("I like [MASK].")
    assert str(minilm) in str(caught.value)
    assert "choose a pretrained model" in str(caught.value)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"there is no folder .*nowhere; give one that exists"):
        load(tmp_path / "nowhere")


def test_a_folder_without_weights_is_named(tmp_path: Path):
    with pytest.raises(FolderError, match="has no weights"):
        load(tmp_path)


def test_a_file_is_no_model(tmp_path: Path, tokenizer: Tokenizer):
    assert tokenizer.vocab_size == len(TOKENS)
    with pytest.raises(InputError, match=r"vocab\.txt is a file; give the model's folder"):
        load(tmp_path / "vocab.txt")


def test_a_folder_whose_pooling_is_rewritten_is_loaded_with_the_new_pooling(tmp_path: Path):
    folder = write_sentence_model(tmp_path / "sentences")
    before = load(folder)
    mean = before.encode(["the cat sat"])
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    first = load(folder).encode(["the cat sat"])
    assert first.tolist() == before.encode(["the cat sat"], pooling="cls").tolist()
    assert first.tolist() != mean.tolist()
    assert before.encode(["the cat sat"]).tolist() == mean.tolist()


def test_an_unsupported_module_hinders_vectors_only(tmp_path: Path):
    folder = write_sentence_model(tmp_path / "sentences")
    (folder / "modules.json").write_text('[{"type": "models.SpladePooling", "path": "1_Pooling"}]')
    model = load(folder)
    assert model.fill_mask("the [MASK] sat").mask_candidates
    with pytest.raises(FolderError, match="module 'SpladePooling' is not supported"):
        model.encode(["the cat"])


def test_special_tokens_in_texts_are_recognized_on_request(pretrained: tuple[Path, MlmModule]):
    folder, _ = pretrained
    assert load(folder).tokenizer.encode("i [SEP] like").input_ids.count(3) == 1
    assert load(folder, split_special_tokens=False).tokenizer.encode("i [SEP] like").input_ids.count(3) == 2


# No token, <unk>, `a` at the end of a word, and an id that is none.
@pytest.mark.parametrize("pad_token_id", [None, 0, 6, -1])
def test_a_gpt_classifier_of_transformers_has_its_logits_without_special_tokens(
    pad_token_id: int | None, tmp_path: Path
):
    vocab = {token: index for index, token in enumerate(["<unk>", *"abcde", *(f"{c}</w>" for c in "abcde")])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    config = transformers.OpenAIGPTConfig(
        vocab_size=len(vocab),
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        num_labels=3,
        pad_token_id=pad_token_id,
    )
    theirs = randomize_weights(transformers.OpenAIGPTForSequenceClassification(config))
    theirs.save_pretrained(tmp_path)
    backend.save(str(tmp_path / "tokenizer.json"))
    texts = ["abc de", "a", "abc x", "bc a x a", "x", "x x", "bcde x b", "a a a"]
    pairs = [("ab", "cd"), ("b", "ca x a")]
    for engine in ("torch", "onnx", "openvino"):
        model = load(tmp_path, engine=engine)
        predictions = [*model.predict(texts), *model.predict(pairs)]
        for text, prediction in zip([*texts, *pairs], predictions, strict=True):
            input_ids = backend.encode(text).ids if isinstance(text, str) else backend.encode(*text).ids
            with torch.inference_mode():
                expected = theirs(torch.tensor([input_ids])).logits[0]
            assert prediction.logits.tolist() == pytest.approx(expected.tolist(), abs=1e-5), (engine, text)


def test_untied_output_embeddings_predict_as_transformers(tmp_path: Path):
    config = transformers.BertConfig(**config_to_dict(CONFIG, ["BertForMaskedLM"]), tie_word_embeddings=False)
    theirs = randomize_weights(transformers.BertForMaskedLM(config))
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    for engine in ("torch", "onnx"):
        model = load(tmp_path, engine=engine)
        encoding = model.tokenizer.encode("i [MASK] soccer", parse_masks=True)
        with torch.inference_mode():
            logits = theirs(torch.tensor([encoding.input_ids])).logits[0, 2].clone()
            logits[:5] = -torch.inf  # special tokens are never predicted
        best = TOKENS[int(logits.argmax())]
        (candidate,) = model.fill_mask("i [MASK] soccer", top_k=1).mask_candidates[0]
        assert candidate.token == best
        assert candidate.probability == pytest.approx(float(logits.softmax(-1).max()), abs=1e-4)
    with pytest.raises(FolderError, match="is not tied to the token embeddings, and such a masked LM cannot be"):
        check_tied(read_folder(tmp_path))


def test_a_single_text_is_not_read_character_by_character(tmp_path: Path):
    model = load(write_finetuned(tmp_path / "classify", TASKS["classify"]))
    for text in ("good!", {"text": "good!"}):
        with pytest.raises(InputError, match=r"a single text was given instead of several; put it into a list"):
            model.predict(text)
    assert len(model.predict(["good!"])) == 1


def test_a_part_of_speech_tagger_predicts_and_embeds(tmp_path: Path):
    config = transformers.BertConfig(
        **config_to_dict(CONFIG, ["BertForTokenClassification"]), id2label={0: "NOUN", 1: "VERB"}
    )
    theirs = randomize_weights(transformers.BertForTokenClassification(config))
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    model = load(tmp_path)
    (prediction,) = model.predict(["i like soccer"])
    with torch.inference_mode():
        logits = theirs(torch.tensor([model.tokenizer.encode("i like soccer").input_ids])).logits[0, 1:-1]
    assert prediction.tags == tuple(("NOUN", "VERB")[index] for index in logits.argmax(-1).tolist())
    assert model.encode(["i like soccer"]).shape == (1, 16)
