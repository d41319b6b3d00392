"""Bodies of Text Embeddings Inference (TEI): bytes of JSON in, validated bodies out; and its response schemas.

TEI ignores unknown fields, and so do these bodies.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from bertworks.serving.schemas import Texts, TokenIds

_Inputs = str | TokenIds | Annotated[list[str | TokenIds], Field(fail_fast=True)]
# A text, or a pair of texts; TEI writes a single text in a batch as a list of one.
_TextOrPair = Annotated[list[str], Field(min_length=1, max_length=2)]
_Prompt = Annotated[str | None, Field(description="A name among the prompts of the model folder.")]


class TeiBody(BaseModel):
    """What happens to inputs that are longer than the model: they are truncated, or refused with 413."""

    model_config = ConfigDict(strict=True)

    truncate: bool | None = Field(
        default=None, description="false: refuse inputs that are too long; null and true: truncate."
    )
    truncation_direction: Literal["Right", "Left", "right", "left"] = Field(
        default="Right", description="The side on which tokens are dropped."
    )


class TeiEmbedBody(TeiBody):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": "What is a river?"},
                {"inputs": ["A cat sleeps.", "猫在睡觉。"], "normalize": True, "truncate": True},
            ]
        }
    )

    inputs: _Inputs = Field(description="A text, the token ids of one with its special tokens, or a list of them.")
    normalize: bool = Field(True, description="Scale the vectors to length 1.")
    prompt_name: _Prompt = None
    dimensions: int | None = Field(None, description="A smaller size of the vectors, of a Matryoshka model.")

    def batch(self) -> list[str | list[int]]:
        return _batch(self.inputs)


class TeiEmbedAllBody(TeiBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": "What is a river?"}]})

    inputs: _Inputs
    prompt_name: _Prompt = None

    def batch(self) -> list[str | list[int]]:
        return _batch(self.inputs)


class TeiPredictBody(TeiBody):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": "A charming film."},
                {"inputs": ["It rains.", "The sun shines."]},
                {"inputs": [["A charming film."], ["It rains.", "The sun shines."]], "raw_scores": True},
            ]
        }
    )

    inputs: str | _TextOrPair | Annotated[list[_TextOrPair], Field(min_length=1, fail_fast=True)] = Field(
        description="A text, a pair of texts, or a batch of lists of one or two texts."
    )
    raw_scores: bool = Field(False, description="Return the outputs of the head instead of probabilities.")

    @property
    def is_batch(self) -> bool:
        return not isinstance(self.inputs, str) and not isinstance(self.inputs[0], str)

    def batch(self) -> list[tuple[str, ...]]:
        if isinstance(self.inputs, str):
            return [(self.inputs,)]
        texts = tuple(element for element in self.inputs if isinstance(element, str))
        return [texts] if texts else [tuple(element) for element in self.inputs]


class TeiRerankBody(TeiBody):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"query": "What is a river?", "texts": ["Flowing water.", "A kind of bread."]}]}
    )

    query: str
    texts: Texts
    raw_scores: bool = Field(False, description="Return the outputs of the head instead of their sigmoid.")
    return_text: bool = False


class TeiSimilarityInputs(BaseModel):
    model_config = ConfigDict(strict=True)

    source_sentence: str
    sentences: Texts


class TeiSimilarityParameters(TeiBody):
    prompt_name: _Prompt = None


class TeiSimilarityBody(BaseModel):
    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [{"inputs": {"source_sentence": "A cat sleeps.", "sentences": ["猫在睡觉。", "It rains."]}}]
        },
    )

    inputs: TeiSimilarityInputs
    parameters: TeiSimilarityParameters | None = None


class TeiTokenizeBody(BaseModel):
    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"inputs": ["playing chess"]}]})

    inputs: str | Texts
    add_special_tokens: bool = True
    prompt_name: _Prompt = None

    def batch(self) -> list[str]:
        return [self.inputs] if isinstance(self.inputs, str) else self.inputs


def _batch(inputs: str | list[int] | list[str | list[int]]) -> list[str | list[int]]:
    """Return the inputs as a list: a single text, and a single list of token ids, are one input."""
    if isinstance(inputs, str):
        return [inputs]
    token_ids = [element for element in inputs if isinstance(element, int)]
    return [token_ids] if token_ids else [element for element in inputs if not isinstance(element, int)]


class TeiEmbedResponse(RootModel[list[list[float]]]):
    """A vector for each input."""


class TeiEmbedAllResponse(RootModel[list[list[list[float]]]]):
    """For each input the vector of each token, special tokens included."""


class TeiPrediction(BaseModel):
    score: float
    label: str


class TeiPredictResponse(RootModel[list[TeiPrediction] | list[list[TeiPrediction]]]):
    """The classes by descending score; of a batch, for each input."""


class TeiRank(BaseModel):
    index: int
    score: float
    text: str | None = None


class TeiRerankResponse(RootModel[list[TeiRank]]):
    """The texts by descending score."""


class TeiSimilarityResponse(RootModel[list[float]]):
    """The cosine similarity of each sentence to the source sentence."""


class TeiToken(BaseModel):
    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TeiTokenizeResponse(RootModel[list[list[TeiToken]]]):
    """The tokens of each text, with their characters."""


class TeiEmbeddingModel(BaseModel):
    pooling: str


class TeiClassifierModel(BaseModel):
    id2label: dict[str, str]
    label2id: dict[str, int]


class TeiModelType(BaseModel):
    """One of the three."""

    embedding: TeiEmbeddingModel | None = None
    classifier: TeiClassifierModel | None = None
    reranker: TeiClassifierModel | None = None


class TeiInfoResponse(BaseModel):
    """TEI's description of a model and its limits."""

    model_config = ConfigDict(protected_namespaces=())

    model_id: str
    model_sha: str | None
    model_dtype: str
    model_type: TeiModelType
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    sha: str | None
    docker_label: str | None


class TeiErrorResponse(BaseModel):
    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]
