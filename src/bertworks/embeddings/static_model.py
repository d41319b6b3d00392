"""Word vectors as a model folder of the family "static": a table in, a folder out that every verb takes as a model.

Its vocabulary is the words behind the usual special pieces. Text is cut as it was for learning: at spaces and signs,
and by jieba if there are Chinese words of several characters; capital letters count only if some word has one. Special
pieces and words without a vector are zeros.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tokenizers import normalizers

from bertworks.embeddings.static import StaticVectors
from bertworks.encoders.families import architecture_of
from bertworks.encoders.static import TABLE, config_to_dict, static_config
from bertworks.models.folder import write_folder
from bertworks.vocabulary.algorithms import KINDS, Inventory
from bertworks.vocabulary.characters import IDEOGRAPH
from bertworks.vocabulary.tokenizer import Tokenizer


def write_static_model(folder: Path, vectors: StaticVectors) -> None:
    """Write vectors as a model; what they tell of themselves goes to bertworks.json."""
    tokenizer = build_tokenizer(vectors)
    specials = sorted(tokenizer.specials.ids)
    assert specials == list(range(len(specials))), "special pieces come first"
    table = np.zeros((tokenizer.vocab_size, vectors.vector_size), dtype=np.float32)
    table[len(specials) :] = vectors.table
    sizes = static_config(*table.shape)
    told = {**vectors.metadata, "words": len(vectors), "width": vectors.vector_size}
    write_folder(
        folder, config_to_dict(sizes, [architecture_of(sizes)]), {TABLE: torch.from_numpy(table)}, tokenizer, told
    )


def build_tokenizer(vectors: StaticVectors) -> Tokenizer:
    """Return what cuts text into these words."""
    has_chinese = any(len(word) > 1 and IDEOGRAPH.match(word) for word in vectors.words)
    is_cased = any(word != word.lower() for word in vectors.words)
    kind = KINDS["jieba-words" if has_chinese else "words"]
    backend = kind.build(Inventory(kind.specials.order + vectors.words), is_cased)
    # Unlike for BERT, an accent stays where letters become small: so words were cut when they were learned.
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=not has_chinese, strip_accents=False, lowercase=not is_cased
    )
    return Tokenizer.from_backend(backend)
