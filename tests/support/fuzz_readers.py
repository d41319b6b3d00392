"""Every reader of files that users hand over: how a valid folder is built, which files are mutated, what reads it.

`READERS` is the table; a new reader is one line in it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from exported_models import pretrained
from numbered_corpus import SPECIALS
from safetensors.torch import save_file
from small_models import TASKS as SMALL_TASKS
from small_models import TOKENS, write_finetuned, write_sentence_model, write_tokenizer

from bertworks.commands.compare.recipe import read_compare_recipe
from bertworks.commands.finetune.recipe import read_finetune_recipe
from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.pretrain.recipe import read_pretrain_recipe
from bertworks.corpus.corpus import Corpus
from bertworks.embeddings.static import StaticVectors
from bertworks.embeddings.static_files import read_vectors, write_vectors
from bertworks.encoders.families import ENCODERS, architecture_of
from bertworks.exporters.export import ExportRequest, export
from bertworks.inference.model import load
from bertworks.models.folder import load_encoder, read_folder, write_folder
from bertworks.models.tensor_names import to_hf_names
from bertworks.records import METRICS, SAMPLES, History, Records, read_records
from bertworks.reports.pretrain_run import read_pretrain_run
from bertworks.serving.bundle import BundleRequest, bundle, read_bundle
from bertworks.serving.run_records import RunMonitor, Tail
from bertworks.settings import recipe_path
from bertworks.tasks.registry import TASKS
from bertworks.text.document import Counts
from bertworks.text.sources import ReadSettings, TextSource, blocks, read
from bertworks.training.checkpoint import read_checkpoint, save_checkpoint
from bertworks.training.loop import TrainState
from bertworks.training.memory import num_parameters
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train

TEXT = "The cat sat on the mat. It was a good film, and John lives in Paris.\n\nWho sat on the mat? 我喜欢看电影。\n"
TF1 = Path(__file__).parents[1] / "models" / "fixtures" / "tf1" / "release"
SENTENCEPIECE = Path(__file__).parents[1] / "vocabulary" / "fixtures" / "sentencepiece" / "bpe.model"


@dataclass(frozen=True)
class Reader:
    """How to test a reader: `files` maps the files to mutate to the kinds of mutations, "json", "lines" (of JSON),
    "toml" and "bytes". A name may be a pattern."""

    build: Callable[[Path], Any]
    files: Mapping[str, tuple[str, ...]]
    read: Callable[[Path], Any]
    num_examples: int = 90


JSON = ("json", "bytes")
BYTES = ("bytes",)


# ---------------------------------------------------------------- models


def _remove_hashes(folder: Path) -> None:
    """Remove the hashes of files, if there are any, so that mutations reach what lies behind them."""
    for path in folder.rglob("bertworks.json"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in content.items() if k not in ("files", "content_sha256")}))


def _family_folder(folder: Path, model_type: str) -> None:
    family = ENCODERS[model_type]
    sizes = {"hidden_size": 16, "max_length": 16}
    if model_type == "elmo":
        sizes |= {"num_hidden_layers": 1, "intermediate_size": 32, "filters": ((1, 8), (2, 8))}  # type: ignore[dict-item]
    elif model_type == "awd-lstm":
        sizes |= {"num_hidden_layers": 1, "intermediate_size": 32}
    elif model_type != "static":
        sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    config = family.config_from_preset("tiny", len(TOKENS)).resized(**sizes)
    tokenizer = write_tokenizer(folder / "vocabulary")
    encoder = family.build(config, torch.Generator().manual_seed(0))
    tensors = to_hf_names(encoder.state_dict(), family.tensor_names(config))
    write_folder(folder, family.config_to_dict(config, [architecture_of(config)]), tensors, tokenizer, {})
    _remove_hashes(folder)


def _bin_folder(folder: Path) -> None:
    _family_folder(folder, "bert")
    model = read_folder(folder)
    torch.save({name: model.tensors[name].clone() for name in model.tensors}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _index_folder(folder: Path) -> None:
    _family_folder(folder, "bert")
    shard = "model-00001-of-00001.safetensors"
    index = {"weight_map": dict.fromkeys(read_folder(folder).tensors, shard)}
    (folder / "model.safetensors").rename(folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _task_folder(folder: Path, name: str) -> None:
    write_finetuned(folder, SMALL_TASKS[name])
    _remove_hashes(folder)


def _read_encoder(folder: Path) -> None:
    model = read_folder(folder)
    load_encoder(model)
    assert model.tokenizer.vocab_size


def _predict(folder: Path) -> None:
    model = load(folder, precision="fp32")
    if model.predictor is not None:
        example = {
            "choose": {"prompt": "it was", "choices": ["good", "bad"]},
            "answer": {"question": "who sat", "context": "the cat sat on the mat ."},
        }
        model.predict([example.get(model.predictor.module.task.name, "the film was good .")])


def _encode(folder: Path) -> None:
    load(folder, precision="fp32").encode(["the film was good ."])


def _onnx_folder(folder: Path) -> None:
    export(ExportRequest(model=str(pretrained(folder / "original")), target="onnx", output=folder / "onnx"))
    _remove_hashes(folder)


def _tokenizer_folder(folder: Path, kind: str, vocab_size: int) -> None:
    backend = train(TEXT.splitlines() * 3, VocabularySettings(kind=kind, vocab_size=vocab_size))
    Tokenizer.from_backend(backend).save(folder)


def _vocab_folder(folder: Path) -> None:
    write_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "cls_token": "[CLS]"}))


def _tokenize(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    tokenizer.encode(TEXT, parse_masks=True)
    tokenizer.encode_sentences(TEXT.splitlines())


def _merges_folder(folder: Path) -> None:
    """Write what came before tokenizer.json: vocab.json with merges.txt, and the files that name further tokens."""
    folder.mkdir(parents=True)
    backend = train(TEXT.splitlines() * 3, VocabularySettings(kind="byte-bpe", vocab_size=280))
    backend.model.save(str(folder))
    added = {"<e1>": backend.get_vocab_size()}
    (folder / "added_tokens.json").write_text(json.dumps(added))
    special = {"bos_token": "[CLS]", "mask_token": {"content": "[MASK]", "lstrip": True, "rstrip": False}}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    decoder = {str(number): {"content": token, "special": False} for token, number in added.items()}
    config = {"tokenizer_class": "RobertaTokenizer", "cls_token": "[CLS]", "added_tokens_decoder": decoder}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _sentencepiece_folder(folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copy(SENTENCEPIECE, folder / "spiece.model")
    (folder / "config.json").write_text(json.dumps({"model_type": "albert"}))


def _adapter_folder(folder: Path) -> None:
    base = write_finetuned(folder / "base", SMALL_TASKS["classify"])
    generator, size = torch.Generator().manual_seed(0), read_folder(base).encoder_config.hidden_size
    module, shapes = "bert.encoder.layer.0.attention.self.query", {"A": (2, size), "B": (size, 2)}
    tensors = {
        f"base_model.model.{module}.lora_{part}.weight": torch.randn(shape, generator=generator)
        for part, shape in shapes.items()
    }
    (folder / "adapter").mkdir()
    save_file(tensors, folder / "adapter" / "adapter_model.safetensors")
    patterns = {"rank_pattern": {"value": 4}, "alpha_pattern": {r"self\.query": 3}}
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 2, "lora_alpha": 4, "use_dora": False}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps({**settings, **patterns}))


def _read_adapter(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:  # no name of a base model is looked up in the network
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        _read_encoder(folder / "adapter")


def _dense_folder(folder: Path) -> None:
    write_sentence_model(folder)
    size = read_folder(folder).encoder_config.hidden_size
    names = ("Dense", "LayerNorm")
    modules = json.loads((folder / "modules.json").read_text())
    modules += [{"path": f"{index}_{name}", "type": f"models.{name}"} for index, name in enumerate(names, 3)]
    (folder / "modules.json").write_text(json.dumps(modules))
    tensors = {
        "3_Dense": {"linear.weight": torch.ones(4, size), "linear.bias": torch.ones(4)},
        "4_LayerNorm": {"norm.weight": torch.ones(4), "norm.bias": torch.ones(4)},
    }
    for name, values in tensors.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({"activation_function": "torch.nn.Tanh"}))
        save_file(values, folder / name / "model.safetensors")
    prompts = {"prompts": {"query": "who "}, "default_prompt_name": "query", "truncate_dim": 3}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))


# ---------------------------------------------------------------- recipes, corpora, records


def _copy_recipe(folder: Path, name: str, kind: str) -> None:
    path = recipe_path(name, kind)
    shutil.copytree(path.parent, folder)
    shutil.copy(path, folder / "recipe.toml")


def _read_pretrain_recipe(folder: Path) -> None:
    recipe = read_pretrain_recipe(folder / "recipe.toml", {})
    num_parameters(recipe.model.config(1_000))
    recipe.resolve_phases()


def _read_finetune_recipe(folder: Path) -> None:
    recipe = read_finetune_recipe(folder / "recipe.toml", {})
    if recipe.model is not None:
        num_parameters(recipe.model.config(1_000))


def _read_compare_recipe(folder: Path) -> None:
    recipe = read_compare_recipe(str(folder / "recipe.toml"))
    for member in recipe.pretrained_members:
        recipe.pretrain_recipe(member, 0)


def _corpus_folder(folder: Path) -> None:
    folder.mkdir(parents=True)
    words = [f"w{number}" for number in range(40)]
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *words, "."]) + "\n")
    documents = [" ".join(words[start : start + 8]) + ". " + " ".join(words[:6]) + "." for start in range(30)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    sources = (TextSource(str(folder / "text.txt")),)
    prepare(PrepareRequest(sources=sources, vocabulary=folder / "vocab.txt", output=folder / "corpus"), workers=1)


def _read_corpus(folder: Path) -> None:
    corpus = Corpus.open(folder / "corpus")
    split = corpus.split("train")
    split.position_at(split.length / 2)


def _run_folder(folder: Path) -> None:
    folder.mkdir(parents=True)
    step = {"kind": "step", "phase": "128", "losses": {"mlm": 2.0, "nsp": 0.5}, "learning_rate": 1e-3, "seconds": 1.5}
    steps = [{**step, "step": number, "num_tokens": 100 * number, "grad_norm": 1.0} for number in range(1, 4)]
    held_out = {"kind": "held_out", "step": 3, "phase": "128", "losses": {"mlm": 2.1}, "perplexity": 8.0}
    score = {"kind": "score", "step": 3, "split": "dev", "metrics": {"accuracy": 0.5}}
    lines = [*steps, {**held_out, "accuracy": 0.4, "pair_accuracy": None}, score]
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    sample = {"kind": "sample", "step": 3, "text": "the [MASK]", "predictions": [[["cat", 0.5], ["dog", 0.2]]]}
    (folder / SAMPLES).write_text(json.dumps(sample) + "\n")
    (folder / "run.json").write_text(json.dumps({"started": "2026-01-01T00:00:00", "corpus_tokens": 10}))
    shutil.copy(recipe_path("mini"), folder / "recipe.toml")


def _read_run(folder: Path) -> None:
    History.read(folder)
    read_pretrain_run(folder)
    RunMonitor("run", folder, Tail(path=folder / METRICS)).to_dict(0)
    for record in read_records(folder):
        assert record.step >= 0


def _resume_records(folder: Path) -> None:
    Records.open(folder, 2).close()


def _checkpoint_folder(folder: Path) -> None:
    tensors = {"weight": torch.zeros(2, 3)}
    path = save_checkpoint(folder, tensors, {"weight/first": torch.zeros(2, 3)}, TrainState(step=7), "digest")
    path.rename(folder / "checkpoint")


def _read_checkpoint(folder: Path) -> None:
    read_checkpoint(folder / "checkpoint")


# ---------------------------------------------------------------- labelled files, texts, vectors, bundles


LABELLED: dict[str, tuple[str, str]] = {
    "train.tsv": ("classify", "text\tlabel\nthe film was good\tgood\nthe film was bad\tbad\n"),
    "train.csv": ("regress", 'text,label\n"the film, it was good",4.5\nthe film was bad,1\n'),
    "train.jsonl": (
        "classify",
        '{"text": "the film was good", "label": "good", "id": 1}\n{"text": "bad", "label": ["bad", "dull"]}\n',
    ),
    "pairs.jsonl": ("classify", '{"sentence1": "it was good", "sentence2": "it was bad", "label": 0}\n'),
    "choices.csv": ("choose", "sent1,ending0,ending1,label\nit was,good,bad,1\n"),
    "choices.jsonl": ("choose", '{"prompt": "it was", "choices": ["good", "bad"], "label": 0}\n'),
    "squad.json": (
        "answer",
        '{"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "the cat sat on the mat", "qas": '
        '[{"id": "1", "question": "who sat", "answers": [{"text": "the cat", "answer_start": 0}]}]}]}]}',
    ),
    "questions.jsonl": ("answer", '{"question": "who sat", "context": "the cat sat", "answers": ["the cat"]}\n'),
    "train.conll": ("tag", "John B-PER\nlives O\nin O\nParis B-LOC\n\nthe O\ncat O\n"),
    "spans.jsonl": (
        "tag",
        '{"text": "John lives in Paris", "spans": [{"start": 0, "end": 4, "label": "PER"}]}\n'
        '{"tokens": ["John", "sat"], "tags": ["B-PER", "O"]}\n',
    ),
    "translations.tsv": ("translate", "source\ttarget\nthe cat\t猫\n"),
}


def _labelled_folder(folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    (folder / name).write_text(LABELLED[name][1], encoding="utf-8")


def _read_labelled(folder: Path, name: str) -> None:
    list(TASKS[LABELLED[name][0]].read(folder / name, {}, Counts()))


def _compressed(data: bytes) -> dict[str, bytes]:
    """Return files of all formats; the same bytes every time, so that a selection of mutations is the same, too."""
    archive, tar_file = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("a.txt", "b.txt"):
            file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    with tarfile.open(fileobj=tar_file, mode="w") as tar:
        info = tarfile.TarInfo("a.txt")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return {
        "text.txt": data,
        "text.md": b"# Title\n\n" + data + b"\n| a | b |\n|---|---|\n| 1 | 2 |\n",
        "text.txt.gz": gzip.compress(data, mtime=0),
        "text.txt.bz2": bz2.compress(data),
        "text.txt.xz": lzma.compress(data),
        "text.txt.zst": zstandard.ZstdCompressor().compress(data),
        "text.zip": archive.getvalue(),
        "text.tgz": gzip.compress(tar_file.getvalue(), mtime=0),
        "text.csv": b'id,text\n1,"the cat, it sat"\n2,the film was good\n',
        "text.tsv": b"id\ttext\n1\tthe cat sat\n2\tthe film was good\n",
        "text.jsonl": b'{"text": "the cat sat on the mat"}\n{"text": "the film was good", "id": 2}\n',
        "wiki.xml": b"<mediawiki>\n  <page>\n    <title>Cat</title>\n    <ns>0</ns>\n    <revision>\n      "
        b"<text>The '''cat''' sat on the [[mat|rug]]. {{cite|x}} It was a good cat, and it lived in Paris.</text>\n"
        b"    </revision>\n  </page>\n</mediawiki>\n",
        "text.parquet": _parquet(),
    }


def _parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": ["the cat sat", "the film was good"], "id": [1, 2]}), buffer)
    return buffer.getvalue()


TEXTS = _compressed(TEXT.encode() * 4)


def _text_folder(folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    (folder / name).write_bytes(TEXTS[name])


def _read_text(folder: Path, name: str) -> None:
    counts = Counts()
    for block in blocks([TextSource(str(folder / name))], ReadSettings()):
        for _ in read(block, counts):
            pass


def _vectors_folder(folder: Path) -> None:
    folder.mkdir(parents=True)
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    vectors = StaticVectors(("cat", "dog", "film"), table, {"counts": {}})
    for name, kind in (("word2vec.txt", "word2vec"), ("word2vec.bin", "word2vec-binary"), ("glove.txt", "glove")):
        write_vectors(folder / name, vectors, kind)
    write_vectors(folder / "folder", vectors, "folder")
    _remove_hashes(folder)


def _read_vectors(folder: Path) -> None:
    for name in ("word2vec.txt", "word2vec.bin", "glove.txt", "folder"):
        read_vectors(folder / name)


def _bundle_folder(folder: Path) -> None:
    model = write_finetuned(folder / "run" / "model", SMALL_TASKS["classify"])
    bundle(BundleRequest(runs=(f"films={model}",), output=folder / "bundle"))


MODEL_FILES = {
    "config.json": JSON,
    "bertworks.json": JSON,
    "tokenizer.json": JSON,
    "tokenizer_config.json": JSON,
    "model.safetensors": BYTES,
}
VECTOR_FILES = {
    **dict.fromkeys(("word2vec.txt", "word2vec.bin", "glove.txt", "folder/model.safetensors"), BYTES),
    **dict.fromkeys(("folder/config.json", "folder/tokenizer.json", "folder/bertworks.json"), JSON),
}
SENTENCE_FILES = dict.fromkeys(("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"), JSON)
DENSE_FILES = {
    **dict.fromkeys(
        ("modules.json", "3_Dense/config.json", "4_LayerNorm/config.json", "config_sentence_transformers.json"), JSON
    ),
    **dict.fromkeys(("3_Dense/model.safetensors", "4_LayerNorm/model.safetensors"), BYTES),
}
VOCABULARIES = {"bpe": 60, "byte-bpe": 280, "unigram": 60, "words": 40}

READERS: dict[str, Reader] = {
    **{f"task {name}": Reader(partial(_task_folder, name=name), MODEL_FILES, _predict, 90) for name in SMALL_TASKS},
    **{
        f"config of {name}": Reader(
            partial(_family_folder, model_type=name), {"config.json": ("json",)}, _read_encoder, 90
        )
        for name in ENCODERS
    },
    "pytorch_model.bin": Reader(_bin_folder, {"pytorch_model.bin": BYTES}, _read_encoder, 100),
    "index of weights": Reader(_index_folder, {"model.safetensors.index.json": JSON}, _read_encoder),
    "TensorFlow release": Reader(
        lambda folder: shutil.copytree(TF1, folder),
        {"bert_config.json": JSON, "bert_model.ckpt.index": BYTES, "bert_model.ckpt.data-00000-of-00001": BYTES},
        lambda folder: load_encoder(read_folder(folder)),
        100,
    ),
    "sentence-transformers": Reader(write_sentence_model, SENTENCE_FILES, _encode, 80),
    "sentence-transformers with a dense layer": Reader(_dense_folder, DENSE_FILES, _encode, 80),
    "LoRA adapter": Reader(
        _adapter_folder,
        {"adapter/adapter_config.json": JSON, "adapter/adapter_model.safetensors": BYTES},
        _read_adapter,
        120,
    ),
    "vocab.json and merges.txt": Reader(
        _merges_folder,
        {
            "merges.txt": BYTES,
            **dict.fromkeys(
                ("vocab.json", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json"), JSON
            ),
        },
        _tokenize,
        150,
    ),
    "SentencePiece": Reader(_sentencepiece_folder, {"spiece.model": BYTES, "config.json": JSON}, _tokenize, 120),
    "ONNX folder": Reader(
        _onnx_folder,
        {f"onnx/{name}": JSON for name in ("config.json", "bertworks.json", "tokenizer.json")},
        lambda folder: _encode(folder / "onnx"),
    ),
    **{
        f"tokenizer {kind}": Reader(
            partial(_tokenizer_folder, kind=kind, vocab_size=size), {"tokenizer.json": JSON}, _tokenize, 120
        )
        for kind, size in VOCABULARIES.items()
    },
    "vocab.txt": Reader(_vocab_folder, {"vocab.txt": BYTES, "tokenizer_config.json": JSON}, _tokenize, 120),
    "pretraining recipe": Reader(
        partial(_copy_recipe, name="demo", kind=""), {"recipe.toml": ("toml", "bytes")}, _read_pretrain_recipe, 100
    ),
    "fine-tuning recipe": Reader(
        partial(_copy_recipe, name="transformer", kind="finetune"),
        {"recipe.toml": ("toml", "bytes")},
        _read_finetune_recipe,
        100,
    ),
    "comparison recipe": Reader(
        partial(_copy_recipe, name="sizes", kind="compare"), {"recipe.toml": ("toml", "bytes")}, _read_compare_recipe
    ),
    "corpus manifest": Reader(
        _corpus_folder,
        {"corpus/manifest.json": JSON, "corpus/tokens/*/manifest.json": JSON},
        _read_corpus,
        100,
    ),
    "run folder": Reader(
        _run_folder,
        {METRICS: ("lines", "bytes"), SAMPLES: ("lines", "bytes"), "run.json": JSON, "recipe.toml": ("toml", "bytes")},
        _read_run,
        100,
    ),
    "records of a resumed run": Reader(_run_folder, {METRICS: ("lines", "bytes")}, _resume_records),
    "checkpoint": Reader(
        _checkpoint_folder,
        {"checkpoint/state.json": JSON, "checkpoint/manifest.json": JSON, "checkpoint/model.safetensors": BYTES},
        _read_checkpoint,
        120,
    ),
    **{
        f"labelled {name}": Reader(
            partial(_labelled_folder, name=name),
            {name: ("lines", "bytes") if name.endswith(".jsonl") else JSON if name.endswith(".json") else BYTES},
            partial(_read_labelled, name=name),
            120,
        )
        for name in LABELLED
    },
    **{
        f"texts {name}": Reader(
            partial(_text_folder, name=name),
            {name: ("lines", "bytes") if name.endswith(".jsonl") else BYTES},
            partial(_read_text, name=name),
            120,
        )
        for name in TEXTS
    },
    "word vectors": Reader(_vectors_folder, VECTOR_FILES, _read_vectors, 100),
    "bundle": Reader(_bundle_folder, {"bundle/bundle.json": JSON}, lambda folder: read_bundle(folder / "bundle"), 80),
}
