"""Layouts of a tokenizer.json: the inputs of transformers, or a refusal."""

import json
from pathlib import Path

import pytest
import tokenizers
import transformers
from tokenizers import processors

from bertworks.errors import InputError
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.layouts import read_layout
from bertworks.vocabulary.special_tokens import BERT, ROBERTA, XLNET
from bertworks.vocabulary.tokenizer import Tokenizer

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "<s>", "</s>"]
IDS = [(token, TOKENS.index(token)) for token in ("[CLS]", "[SEP]", "<s>", "</s>")]


def template(single: str, pair: str) -> processors.PostProcessor:
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=IDS)


def write(folder: Path, processor: processors.PostProcessor | None) -> Path:
    """Write the tokenizer of a class that takes everything from tokenizer.json."""
    state = json.loads(wordpiece_backend(TOKENS, cased=False).to_str())
    backend = tokenizers.Tokenizer.from_str(json.dumps({**state, "post_processor": None}))
    if processor is not None:
        backend.post_processor = processor
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    peer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, **names, mask_token="[MASK]", model_input_names=inputs
    )
    peer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "processor",
    [
        template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
        template("[CLS] $A", "[CLS] $A [SEP] $B:1"),
        template("$A [SEP]", "$A [SEP] $B:1 [SEP]:1"),
        template("$A", "$A $B:1"),
        template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:0 [SEP]:0"),
        template("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B:1 [SEP]:1"),
        template("$A [SEP] [CLS]:2", "$A [SEP] $B:1 [SEP]:1 [CLS]:2"),
        template("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
        template("$A [CLS]", "$A $B:1 [CLS]"),
        processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
        processors.RobertaProcessing(("</s>", 8), ("<s>", 7)),
        processors.Sequence([processors.ByteLevel(), template("<s> $A </s>", "<s> $A </s> $B:1 </s>:1")]),
        processors.ByteLevel(),
        None,
    ],
)
def test_inputs_are_those_of_transformers(tmp_path: Path, processor: processors.PostProcessor | None):
    folder = write(tmp_path, processor)
    peer, tokenizer = transformers.AutoTokenizer.from_pretrained(folder), Tokenizer.load(folder)
    for texts in (("a",), ("a b", "b"), ("a", "b a b")):
        expected, encoding = peer(*texts), tokenizer.encode(*texts)
        assert list(encoding.input_ids) == expected["input_ids"]
        assert list(encoding.token_type_ids) == expected["token_type_ids"]


@pytest.mark.parametrize(
    "processor",
    [
        template("[CLS] <s> $A [SEP]", "[CLS] <s> $A [SEP] $B:1 [SEP]:1"),  # two tokens before the text
        template("[CLS] $A </s>", "[CLS] $A [SEP] $B:1 </s>:1"),
        template("$A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),  # [CLS] in pairs alone
        template("[CLS]:1 $A [SEP]", "[CLS]:1 $A [SEP] $B:1 [SEP]:1"),
        template("[CLS] $A [SEP]", "[CLS] $B [SEP] $B:1 $A [SEP]"),
        processors.Sequence([processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))] * 2),
    ],
)
def test_layouts_that_cannot_be_built_are_refused(tmp_path: Path, processor: processors.PostProcessor):
    with pytest.raises(InputError, match=r"tokenizer\.json: its post-processor .* is not supported"):
        Tokenizer.load(write(tmp_path, processor))


def test_the_templates_of_the_families_are_found():
    state = json.loads(template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1").__getstate__())
    layout = read_layout(state)
    assert layout is not None
    assert (layout.template, layout.names) == (BERT, {"cls_token": "[CLS]", "sep_token": "[SEP]"})
    xlnet = read_layout(json.loads(template("$A </s> <s>:2", "$A </s> $B:1 </s>:1 <s>:2").__getstate__()))
    assert xlnet is not None
    assert (xlnet.template, xlnet.names) == (XLNET, {"cls_token": "<s>", "sep_token": "</s>"})
    roberta = read_layout(json.loads(template("<s> $A </s>", "<s> $A </s> </s> $B </s>").__getstate__()))
    assert roberta is not None
    assert roberta.template == ROBERTA
    assert read_layout(None) is None
