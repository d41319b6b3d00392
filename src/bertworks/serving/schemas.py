"""Request and response bodies: bytes of JSON in, validated bodies out; and the response schemas for the reference.

The number of inputs and the length of texts are not limited here but by the server's Limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from bertworks.choices import POOLING_ALIASES
from bertworks.inference.generation_config import GenerationConfig, make_generation_config

MAX_TOP_K = 100
MAX_MASKS = 16
MAX_ATTENTION_WEIGHTS = 20_000
MAX_NEW_TOKENS = 512

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
# A long list of wrong elements is one problem, not as many.
Texts = Annotated[list[str], Field(fail_fast=True)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K)]
PoolingName = Annotated[
    Literal["mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean"],
    BeforeValidator(lambda name: POOLING_ALIASES.get(name, name) if isinstance(name, str) else name),
]


class Body(BaseModel):
    """A strict body: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def texts(self) -> Iterator[str]:
        """Yield all texts of the body, to check their lengths."""
        for name in type(self).model_fields:
            yield from _texts_in(getattr(self, name))


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for element in value:
            yield from _texts_in(element)
    elif isinstance(value, dict):
        for element in value.values():
            yield from _texts_in(element)


# A text, or the fields that the model's task takes; the task checks their names.
Input = str | dict[str, str | list[str]]


class PredictBody(Body):
    """Texts, or the input fields of the model's task (`input_fields` of /v1/models)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": ["A charming film.", {"text": "Dull."}]},
                {"inputs": [{"sentence1": "It rains.", "sentence2": "The sun shines."}]},
                {"inputs": [{"question": "Who wrote it?", "context": "It was written by Lu Xun in 1921."}]},
                {"inputs": [{"prompt": "She opened the door and", "choices": ["walked in.", "ate the moon."]}]},
                {"inputs": ["Angela Merkel visited Paris. It rained."], "by": "sentence"},
            ]
        }
    )

    inputs: list[Input]
    truncate: bool = Field(False, description="Truncate long texts instead of splitting them into windows.")
    by: Literal["text", "sentence"] = Field("text", description="Predict whole texts, or each of their sentences.")


class FillMaskBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "Paris is the [MASK] of France.", "top_k": 5}]})

    text: str = Field(description="A text with [MASK] for each masked token.")
    top_k: TopK = Field(5, description="Number of candidates for each mask, and of filled sequences.")


class GenerateBody(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": "The river"},
                {"text": "The river", "max_new_tokens": 20, "top_p": 0.9, "seed": 3},
            ]
        }
    )

    text: str = Field(description="The prompt; may be empty.")
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)] = 40
    top_k: Annotated[int, Field(ge=0, le=2**31)] | None = Field(
        None,
        description="Sample among the k most probable tokens; 0: among all. "
        "null: greedy decoding, or 0 if top_p or temperature is given.",
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="Nucleus sampling.")
    temperature: Annotated[float, Field(ge=0.01, le=100)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    def generation_config(self) -> GenerationConfig:
        return make_generation_config(self.max_new_tokens, self.top_k, self.top_p, self.temperature, self.seed)


class NextBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "Paris is the", "top_k": 5, "backward": False}]})

    text: str
    top_k: TopK = 5
    backward: bool = Field(
        False, description="Predict the word before the text; for masked and bidirectional language models."
    )


class EmbedBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": ["A cat sleeps.", "猫在睡觉。"]}]})

    inputs: list[str]
    pooling: PoolingName | None = Field(None, description="null: the pooling of the model folder.")
    truncate: bool = Field(False, description="Truncate long texts instead of splitting them into windows.")
    prompt_name: str | None = Field(None, description="A prompt of the model folder; null: its default.")


class TokenizeBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "playing chess", "embeddings": True}]})

    text: str
    pair: str | None = None
    embeddings: bool = Field(False, description="Return the embeddings that are summed for each token too.")


class AttentionBody(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": "The cat sat because it was tired.", "layer": 0, "head": 0}]}
    )

    text: str
    pair: str | None = None
    top_k: Annotated[int, Field(ge=1, le=MAX_ATTENTION_WEIGHTS)] = Field(
        200, description="Number of attention weights to return, the largest first."
    )
    layer: Annotated[int, Field(ge=0)] | None = Field(None, description="null: all layers.")
    head: Annotated[int, Field(ge=0)] | None = Field(None, description="null: all heads.")


class ExplainBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"input": "A charming film.", "target": None}]})

    input: Input
    target: str | None = Field(None, description="What to explain, such as a class; null: the prediction.")


class ProjectionBody(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "minilm", "inputs": ["cat", "dog", "car"], "query": "animal"}]}
    )

    model: str
    inputs: list[str]
    query: str | None = Field(None, description="A text to which cosine similarities are computed.")


class SearchBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"query": "how to read a file", "top_k": 5}]})

    query: str
    top_k: TopK = 10


class EmbeddingsBody(BaseModel):
    """OpenAI's body. Fields without a meaning here (user) are ignored."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"examples": [{"model": "minilm", "input": ["A cat sleeps."]}]}
    )

    model: str
    input: str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(
        None, description="The size of the vectors: the model's own, or one of the `dimensions` of a Matryoshka model."
    )

    def inputs(self) -> list[str | list[int]]:
        if isinstance(self.input, str):
            return [self.input]
        if self.input and isinstance(self.input[0], int):
            return [[element for element in self.input if isinstance(element, int)]]
        return [element for element in self.input if not isinstance(element, int)]

    def texts(self) -> Iterator[str]:
        return (element for element in self.inputs() if isinstance(element, str))


class UsageResponse(BaseModel):
    num_tokens: int
    num_windows: int
    num_truncated: int = Field(description="Tokens dropped by truncation.")
    num_unknown: int = Field(description="Tokens that are unknown to the vocabulary.")


class WarningResponse(BaseModel):
    """A reason not to trust the result: texts of another language or script, or single texts instead of pairs."""

    type: Literal["unknown_tokens", "fragments", "minor_script", "single_text"]
    message: str
    ratio: float = Field(description="The share of tokens that it is about; of inputs for single_text.")
    examples: list[str] = Field(description="The most frequent unknown words, or the script.")


Warnings = Annotated[list[WarningResponse], Field(description="What the model was not trained to read; usually empty.")]


class PredictResponse(BaseModel):
    predictions: list[dict[str, Any]]
    usage: UsageResponse
    warnings: Warnings


class FillMaskResponse(BaseModel):
    text: str
    mask_candidates: list[list[dict[str, Any]]] = Field(
        description="For each mask its candidates {token, probability}."
    )
    sequences: list[dict[str, Any]] = Field(description="The text with all masks filled: {text, tokens, probability}.")
    warnings: Warnings


class GenerateResponse(BaseModel):
    text: str
    continuation: str
    tokens: list[str]
    probabilities: list[float]
    finish_reason: Literal["eos", "max_new_tokens", "max_length"]
    warnings: Warnings


class WordCandidate(BaseModel):
    word: str
    tokens: list[str]
    probability: float


class NextResponse(BaseModel):
    words: list[WordCandidate]
    warnings: Warnings


class EmbedResponse(BaseModel):
    vectors: list[list[float]]
    vector_size: int
    usage: UsageResponse
    warnings: Warnings


class TokenizeResponse(BaseModel):
    tokens: list[str]
    input_ids: list[int]
    position_ids: list[int]
    token_type_ids: list[int]
    attention_mask: list[int]
    offsets: list[list[int] | None]
    texts: list[str] = Field(description="The characters of each token; empty for special tokens.")
    embedding_norms: dict[str, list[float]] | None = Field(
        None, description="The norm of each embedding (token, position, token_type, ...) and of their sum."
    )
    embedding_values: dict[str, list[list[float]]] | None = Field(
        None, description="The first components of the same embeddings."
    )


class AttentionResponse(BaseModel):
    tokens: list[str]
    token_type_ids: list[int]
    num_layers: int
    num_heads: int
    attention_weights: list[list[float]] = Field(
        description="Each [layer, head, query position, key position, weight], the largest first."
    )
    num_truncated: int


class ExplainResponse(BaseModel):
    target: str
    output: float
    baseline_output: float
    texts: list[dict[str, Any]]
    context_weight: float
    convergence_delta: float
    num_steps: int
    num_truncated: int
    warnings: Warnings


class ProjectionResponse(BaseModel):
    points: list[list[float]]
    scores: list[float] | None
    warnings: Warnings


class PassageHit(BaseModel):
    text: str
    score: float
    document: str
    sentence_index: int


class SearchResponse(BaseModel):
    results: list[PassageHit]


class EmbeddingsResponse(BaseModel):
    object: str
    data: list[dict[str, Any]]
    model: str
    usage: dict[str, int]


class ModelResponse(BaseModel):
    """OpenAI's description of a model, with ours beside it."""

    id: str
    object: Literal["model"]
    created: int = Field(description="When the model folder was last written, in seconds since 1970.")
    owned_by: str
    name: str
    task: str | None
    capabilities: list[str]
    input_fields: list[list[str]] | None = Field(description="The alternative input fields of the task.")
    labels: list[str] | None
    max_length: int
    dimensions: list[int] = Field(description="The vector sizes of a Matryoshka model; empty for any other model.")
    languages: list[str] | None = Field(description="Those of the folder, or those that its vocabulary reads.")
    num_parameters: int | None = Field(description="The weights of the encoder; null for an exported graph.")
    num_layers: int
    hidden_size: int
    scores: dict[str, float] = Field(description="The metrics on the dev set, where the folder has them.")
    description: str


class ModelsResponse(BaseModel):
    object: Literal["list"]
    data: list[ModelResponse]


class RunsResponse(BaseModel):
    runs: list[dict[str, Any]]


class RunResponse(BaseModel):
    name: str
    kind: str
    state: str
    step: int
    recipe: dict[str, Any]
    records: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    seconds_left: float | None


class ErrorDetail(BaseModel):
    type: str
    message: str
    request_id: str


class ErrorResponse(BaseModel):
    error: ErrorDetail
