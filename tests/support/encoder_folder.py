"""A model folder of an encoder with random weights: its config and tokenizer in, the folder out."""

from __future__ import annotations

from pathlib import Path

import torch

from bertworks.encoders.bert import Bert, BertConfig, tensor_names
from bertworks.encoders.config import config_to_dict
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import to_hf_names
from bertworks.vocabulary.tokenizer import Tokenizer


def write_random_bert(folder: Path, config: BertConfig, tokenizer: Tokenizer, seed: int = 0) -> Path:
    """Write a BERT without heads, in place of a pretrained one, and return its folder."""
    encoder = Bert(config, torch.Generator().manual_seed(seed))
    tensors = to_hf_names(encoder.state_dict(), tensor_names(config))
    write_folder(folder, config_to_dict(config, ["BertModel"]), tensors, tokenizer, {})
    return folder
