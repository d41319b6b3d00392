"""The endpoints of Text Embeddings Inference (TEI): its bodies in, its responses out, for clients written for it.

TEI serves one model. Of several, the first that an endpoint is for answers, or the one that the query parameter `model`
names. Errors have TEI's shape and statuses: 400 for nothing to compute, 413 for too much, 424 for the wrong model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

import bertworks
from bertworks.embeddings.pooling import Pooling
from bertworks.embeddings.sentence_settings import normalize_vectors, truncate_vectors
from bertworks.errors import InputError
from bertworks.serving import tei_schemas as schemas
from bertworks.serving.answers import Floats, Work, cosines
from bertworks.serving.errors import RequestError
from bertworks.serving.models import ServedModel
from bertworks.serving.routing import JsonRoute, json_response
from bertworks.serving.service import Service, Timing
from bertworks.serving.tei_answers import (
    Truncation,
    can_predict,
    can_rerank,
    compute_headers,
    model_type_of,
    scores_of,
    tei_embed_work,
    tei_predict_work,
    tei_tokens,
    token_vectors_work,
)

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_ERROR_STATUSES = (400, 401, 403, 404, 408, 413, 415, 422, 424, 429, 500, 503, 504)
_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.TeiErrorResponse, "description": "an error in TEI's shape"} for status in _ERROR_STATUSES
}
_MODEL_PARAMETER = {
    "name": "model",
    "in": "query",
    "required": False,
    "schema": {"type": "string"},
    "description": "The name of a served model; by default the first that the endpoint is for.",
}


class TeiEndpoints:
    """One method per endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def info(self, request: Request) -> Response:
        """Describe the model as Text Embeddings Inference does."""
        served = self._model(request, lambda model: True, "")
        return json_response(
            {
                "model_id": served.name,
                "model_sha": None,
                "model_dtype": _DTYPES[served.model.precision],
                "model_type": model_type_of(served),
                "max_concurrent_requests": self._service.scheduler.limits.requests,
                "max_input_length": served.max_length,
                "max_batch_tokens": served.embed_queue.budget,
                "max_batch_requests": None,
                "max_client_batch_size": self._service.limits.inputs,
                "auto_truncate": True,
                "tokenization_workers": 1,
                "version": bertworks.__version__,
                "sha": None,
                "docker_label": None,
            }
        )

    async def embed(self, request: Request, body: schemas.TeiEmbedBody) -> Response:
        """Embed texts, compatible with Text Embeddings Inference."""
        served, inputs = self._embedding_model(request), body.batch()
        num_characters = self._check(inputs)
        pooling = _with_prompt(served, body.prompt_name, inputs)
        pooling = pooling if body.dimensions is None else pooling.untruncated()
        vectors, headers = await self._embed(served, inputs, pooling, body, num_characters)
        try:
            vectors = truncate_vectors(vectors, body.dimensions, served.dimensions, normalize=False)
        except InputError as error:
            raise RequestError(422, str(error), error_type="Validation") from None
        return json_response(normalize_vectors(vectors) if body.normalize else vectors, headers=headers)

    async def embed_all(self, request: Request, body: schemas.TeiEmbedAllBody) -> Response:
        """Return the vectors of all tokens, special tokens included, without pooling."""
        served, inputs = self._embedding_model(request), body.batch()
        num_characters = self._check(inputs)
        pooling = _with_prompt(served, body.prompt_name, inputs)
        vectors, headers = await self._compute(
            served, lambda: token_vectors_work(served, inputs, pooling, _truncation(body)), num_characters
        )
        return json_response(vectors, headers=headers)

    async def similarity(self, request: Request, body: schemas.TeiSimilarityBody) -> Response:
        """Return the cosine similarities of sentences to a source sentence."""
        served, parameters = self._embedding_model(request), body.parameters or schemas.TeiSimilarityParameters()
        _check_not_empty(body.inputs.sentences, "inputs.sentences")
        texts = [body.inputs.source_sentence, *body.inputs.sentences]
        num_characters = self._check(texts)
        pooling = _with_prompt(served, parameters.prompt_name, texts)
        vectors, headers = await self._embed(served, texts, pooling, parameters, num_characters)
        return json_response(cosines(vectors[1:], vectors[0]), headers=headers)

    async def predict(self, request: Request, body: schemas.TeiPredictBody) -> Response:
        """Predict the classes of texts or pairs, by descending score."""
        served = self._model(request, can_predict, "classifies texts; serve one that is fine-tuned for it")
        inputs = body.batch()
        predictions, headers = await self._predict(served, inputs, body)
        value_name = _first_label(served)
        ranked = [
            [{"score": score, "label": label} for label, score in _by_descending_score(scores.items())]
            for scores in (scores_of(prediction, body.raw_scores, value_name) for prediction in predictions)
        ]
        return json_response(ranked if body.is_batch else ranked[0], headers=headers)

    async def rerank(self, request: Request, body: schemas.TeiRerankBody) -> Response:
        """Rank texts by the score of a pair with the query."""
        served = self._model(request, can_rerank, "scores pairs; serve a reranker: a model with a single output")
        _check_not_empty(body.texts, "texts")
        predictions, headers = await self._predict(served, [(body.query, text) for text in body.texts], body)
        scores = [next(iter(scores_of(prediction, body.raw_scores).values())) for prediction in predictions]
        return json_response(
            [
                {"index": index, "score": score, **({"text": body.texts[index]} if body.return_text else {})}
                for index, score in _by_descending_score(enumerate(scores))
            ],
            headers=headers,
        )

    async def tokenize(self, request: Request, body: schemas.TeiTokenizeBody) -> Response:
        """Tokenize texts, compatible with Text Embeddings Inference."""
        served, texts = self._model(request, lambda model: True, ""), body.batch()
        num_characters = self._check(texts)
        prompt = _with_prompt(served, body.prompt_name, texts).prompt
        tokenizer = served.model.tokenizer
        return json_response(
            await self._service.run_tokenization(
                lambda: [tei_tokens(tokenizer, prompt + text, body.add_special_tokens) for text in texts],
                num_characters,
            )
        )

    async def _embed(
        self,
        served: ServedModel,
        inputs: Sequence[str | Sequence[int]],
        pooling: Pooling,
        body: schemas.TeiBody,
        num_characters: int,
    ) -> tuple[Floats, dict[str, str]]:
        return await self._compute(
            served, lambda: tei_embed_work(served, inputs, pooling, _truncation(body)), num_characters
        )

    async def _predict(
        self, served: ServedModel, inputs: Sequence[tuple[str, ...]], body: schemas.TeiBody
    ) -> tuple[Sequence[Any], dict[str, str]]:
        for texts in inputs:
            _check_not_empty("".join(texts), "inputs")
        num_characters = self._check_size(len(inputs), [text for texts in inputs for text in texts])
        return await self._compute(served, lambda: tei_predict_work(served, inputs, _truncation(body)), num_characters)

    async def _compute(
        self, served: ServedModel, make_work: Callable[[], Work], num_characters: int
    ) -> tuple[Any, dict[str, str]]:
        """Return the result of a work, and the headers that say what it cost."""
        timing = Timing()
        result = await self._service.answer(make_work, num_characters, timing)
        return result, compute_headers(served, num_characters, timing)

    def _check(self, inputs: Sequence[str | Sequence[int]]) -> int:
        """Check the number of inputs and their lengths; return the number of characters."""
        _check_not_empty(inputs, "inputs")
        for value in inputs:
            _check_not_empty(value, "inputs")
        if any(len(value) > self._service.limits.characters for value in inputs):
            raise RequestError(413, f"an input is longer than {self._service.limits.characters:,}; split it into parts")
        return self._check_size(len(inputs), (value for value in inputs if isinstance(value, str)))

    def _check_size(self, num_inputs: int, texts: Iterable[str]) -> int:
        try:
            return self._service.check(num_inputs, texts)
        except RequestError as error:  # TEI's status of a batch that is too large
            raise RequestError(413, error.message) from None

    def _embedding_model(self, request: Request) -> ServedModel:
        """Return the model that a request names, else the first whose folder states a pooling, else the first."""
        models = self._service.models.values()
        has_embedding_model = any(model.pooling.is_explicit for model in models)
        is_named = "model" in request.query_params
        return self._model(request, lambda model: is_named or model.pooling.is_explicit or not has_embedding_model, "")

    def _model(self, request: Request, is_suitable: Callable[[ServedModel], bool], purpose: str) -> ServedModel:
        """Return the model that a request names, or the first suitable one; `purpose` says what none of them does."""
        name = request.query_params.get("model")
        models = self._service.models
        if name is not None and name not in models:
            raise RequestError(404, "no such model; see /v1/models")
        candidates = list(models.values()) if name is None else [models[name]]
        served = next(filter(is_suitable, candidates), None)
        if served is None:
            message = f"no served model {purpose}" if name is None else f"the model '{name}' is none that {purpose}"
            raise RequestError(424, message)
        request.scope["model"] = served.name  # label of the metrics
        return served


def add_tei_endpoints(app: FastAPI, service: Service) -> None:
    """Add TEI's routes."""
    endpoints = TeiEndpoints(service)
    routes: list[tuple[str, Callable[..., Any], type]] = [
        ("/embed", endpoints.embed, schemas.TeiEmbedResponse),
        ("/embed_all", endpoints.embed_all, schemas.TeiEmbedAllResponse),
        ("/predict", endpoints.predict, schemas.TeiPredictResponse),
        ("/rerank", endpoints.rerank, schemas.TeiRerankResponse),
        ("/similarity", endpoints.similarity, schemas.TeiSimilarityResponse),
        ("/tokenize", endpoints.tokenize, schemas.TeiTokenizeResponse),
        ("/info", endpoints.info, schemas.TeiInfoResponse),
    ]
    for path, endpoint, response_class in routes:
        is_get = path == "/info"
        app.router.add_api_route(
            path,
            endpoint,
            methods=["GET" if is_get else "POST"],
            response_model=None,
            responses={**_ERROR_RESPONSES, 200: {"model": response_class, "description": "success"}},
            route_class_override=None if is_get else JsonRoute,
            name=f"tei_{path[1:]}",
            openapi_extra={"parameters": [_MODEL_PARAMETER]},
        )


def _first_label(served: ServedModel) -> str:
    """Return the label of the first output in the model's config.json, as TEI names a single value."""
    assert served.task is not None
    return str(served.task.config()["id2label"]["0"])


def _truncation(body: schemas.TeiBody) -> Truncation:
    return Truncation(body.truncate is not False, body.truncation_direction.lower() == "left")


def _with_prompt(served: ServedModel, name: str | None, inputs: Sequence[str | Sequence[int]]) -> Pooling:
    """Return the pooling of a model with the prompt of that name, by default the folder's own."""
    if name is None:
        return served.pooling
    if not all(isinstance(value, str) for value in inputs):
        raise RequestError(413, "token ids have no prompt; send texts, or leave prompt_name out")
    try:
        return served.pooling.with_prompt(name, served.prompts, served.model.tokenizer)
    except InputError as error:
        raise RequestError(413, str(error)) from None


def _check_not_empty(values: Sequence[Any], name: str) -> None:
    if not values:
        raise RequestError(400, f"`{name}` is empty; send at least one text", error_type="Empty")


def _by_descending_score(scores: Iterable[tuple[Any, float]]) -> list[tuple[Any, float]]:
    """Return (key, score) pairs, the highest score first; of equal ones the last, as TEI does."""
    return sorted(scores, key=lambda item: item[1])[::-1]
