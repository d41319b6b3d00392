"""llama.cpp, a peer of `inference.py`: a working folder in, functions from texts to MiniLM's vectors in q8_0 out.

q8_0 stores weights as blocks of 32 int8 values with a scale; activations are quantized alike when a matmul needs them.
The package compiles for minutes and needs a C++ compiler, so it is the extra `llama`, and is measured if installed.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertworks.disk import read_json
from inference_batches import Floats, Settings
from minilm import minilm

# Tokens of a batch that are computed at once. A text needs to fit.
BATCH_TOKENS = (512, 1_024, 2_048)
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORD_START = "\u2581"


def llama_cpp(work: Path) -> Settings:
    """Yield the settings of llama.cpp in q8_0; none if it is not installed."""
    if importlib.util.find_spec("llama_cpp") is None or importlib.util.find_spec("gguf") is None:
        return
    import torch

    package, path, num_cores = importlib.import_module("llama_cpp"), work / "q8_0.gguf", torch.get_num_threads()
    write_gguf(path)
    for num_tokens in BATCH_TOKENS:
        model = package.Llama(
            str(path), embedding=True, n_ctx=num_tokens, n_batch=num_tokens, n_ubatch=num_tokens,
            n_threads=num_cores, n_threads_batch=num_cores, verbose=False,
        )  # fmt: skip

        def encode(texts: Sequence[str], model: Any = model) -> Floats:
            order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
            vectors = np.empty((len(texts), model.n_embd()), dtype=np.float32)
            vectors[order] = model.embed([texts[index] for index in order], normalize=True)
            return vectors

        yield f"{num_tokens:,} tokens", encode


def write_gguf(path: Path) -> None:
    """Write MiniLM in llama.cpp's format: matrices of linear layers and tokens in q8_0, all else in fp32."""
    gguf: Any = importlib.import_module("gguf")
    from safetensors.numpy import load_file

    config: dict[str, Any] = read_json(minilm() / "config.json", "a model")
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    _add_vocabulary(writer, gguf)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    for name, tensor in load_file(minilm() / "model.safetensors").items():
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:  # the pooler and the numbers of positions, which mean pooling does not need
            continue
        is_matrix = tensor.ndim == 2 and not target.startswith(("position_embd", "token_types"))
        kind = gguf.GGMLQuantizationType.Q8_0 if is_matrix else gguf.GGMLQuantizationType.F32
        writer.add_tensor(target, gguf.quants.quantize(tensor.astype(np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: Any, gguf: Any) -> None:
    """Add the tokens; there a word's first token is marked, and not the others as in vocab.txt."""
    tokens = (minilm() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_type_count(2)
    writer.add_token_list(
        [token if token in SPECIAL_TOKENS else token.removeprefix("##") if token.startswith("##")
         else WORD_START + token for token in tokens]
    )  # fmt: skip
    kinds = {True: gguf.TokenType.CONTROL, False: gguf.TokenType.NORMAL}
    writer.add_token_types([kinds[token in SPECIAL_TOKENS] for token in tokens])
    for name, add in zip(
        SPECIAL_TOKENS,
        (writer.add_pad_token_id, writer.add_unk_token_id, writer.add_bos_token_id, writer.add_sep_token_id,
         writer.add_mask_token_id),
        strict=True,
    ):  # fmt: skip
        add(tokens.index(name))
