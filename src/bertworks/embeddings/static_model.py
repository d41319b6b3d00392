"""Static word vectors as a model folder of the family "static": a table in, a folder that all commands accept out.

The vocabulary is the special tokens and then the words. Text is tokenized as in training: at spaces and punctuation,
and by jieba if there are Chinese words of several characters; it is cased if any word has upper-case letters. Special
tokens and words without a vector are zeros.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tokenizers import normalizers

from bertworks.embeddings.static import StaticVectors
from bertworks.encoders.config import config_to_dict
from bertworks.encoders.families import architecture_of
from bertworks.encoders.static import TABLE, StaticConfig
from bertworks.models.folder import write_folder
from bertworks.vocabulary.algorithms import KINDS, Inventory
from bertworks.vocabulary.characters import IDEOGRAPH
from bertworks.vocabulary.tokenizer import Tokenizer


def write_static_model(folder: Path, vectors: StaticVectors) -> None:
    """Write vectors as a model folder; their metadata is written to bertworks.json."""
    tokenizer = build_tokenizer(vectors)
    specials = sorted(tokenizer.specials.ids)
    assert specials == list(range(len(specials))), "special tokens come first"
    table = np.zeros((tokenizer.vocab_size, vectors.vector_size), dtype=np.float32)
    table[len(specials) :] = vectors.table
    config = StaticConfig(vocab_size=table.shape[0], hidden_size=table.shape[1])
    config_dict = config_to_dict(config, [architecture_of(config)])
    metadata = {**vectors.metadata, "words": len(vectors), "vector_size": vectors.vector_size}
    write_folder(folder, config_dict, {TABLE: torch.from_numpy(table)}, tokenizer, metadata)


def build_tokenizer(vectors: StaticVectors) -> Tokenizer:
    """Return a tokenizer whose tokens are these words."""
    has_chinese = any(len(word) > 1 and IDEOGRAPH.match(word) for word in vectors.words)
    is_cased = any(word != word.lower() for word in vectors.words)
    kind = KINDS["jieba-words" if has_chinese else "words"]
    backend = kind.build(Inventory(kind.specials.order + vectors.words), is_cased)
    # Unlike in BERT, lowering does not strip accents, as in training.
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=not has_chinese, strip_accents=False, lowercase=not is_cased
    )
    return Tokenizer.from_backend(backend)
