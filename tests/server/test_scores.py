"""/v1/score, /v1/rerank and /v1/classify: by embeddings, by a classifier's head, by yes and no."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from radixlm.assembly import AsyncEngine
from radixlm.core.config import EngineConfig
from radixlm.testing.checkpoints import write_random_checkpoint
from tests.server_support import Client, refused

QUERY = "What is the capital of France?"
DOCUMENTS = ["Paris is the capital of France.", "Berlin.", "The capital of Spain is Madrid."]
PAIRED = (
    "<|im_start|>{% for m in messages %}{% if m.role == 'query' %}Q: {% elif m.role == 'document' "
    "%}D: {% else %}I: {% endif %}{{ m.content }}\n{% endfor %}"
)
# Two made-up words of the tokenizer.
YES, NO = 300, 301


def edit(folder: Path, name: str = "config.json", **fields: Any) -> None:
    path = folder / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | fields))


def make_classifier(folder: Path, labels: int, **fields: Any) -> Path:
    made = write_random_checkpoint("tiny", folder, dtype="float32")
    [path] = made.glob("*.safetensors")
    weights = load_file(path)
    generator = torch.Generator().manual_seed(labels)
    weights["score.weight"] = torch.randn(labels, 64, generator=generator) / 4
    save_file(weights, path, metadata={"format": "pt"})
    names = {str(place): f"class {place}" for place in range(labels)}
    named = {"architectures": ["LlamaForSequenceClassification"], "id2label": names}
    edit(made, **named, **fields)
    return made


def make_judge(folder: Path) -> Path:
    made = write_random_checkpoint("tiny", folder, dtype="float32")
    kinds = ("base.modules.transformer.Transformer", "cross_encoder.modules.LogitScore")
    modules = [
        {"type": f"sentence_transformers.{kind}", "path": place}
        for kind, place in zip(kinds, ("", "1_LogitScore"), strict=True)
    ]
    (made / "modules.json").write_text(json.dumps(modules))
    (made / "1_LogitScore").mkdir()
    edit(made / "1_LogitScore", true_token_id=YES, false_token_id=NO)
    edit(
        made,
        "config_sentence_transformers.json",
        prompts={"web": "find it"},
        default_prompt_name="web",
    )
    edit(made, "tokenizer_config.json", chat_template=PAIRED)
    return made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Client]]:
    """Serves folders, each once."""
    engines: dict[Path, AsyncEngine] = {}

    def serve(folder: Path) -> Client:
        if folder not in engines:
            config = EngineConfig(model=str(folder), dtype="float32", kv_tokens=8000)
            engines[folder] = AsyncEngine.from_config(config)
        return Client(engines[folder], "tiny")

    yield serve
    for engine in engines.values():
        asyncio.run(engine.close())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("scorers")
    return {
        "one": make_classifier(place / "one", 1),
        "five": make_classifier(place / "five", 5),
        "judge": make_judge(place / "judge"),
    }


def logits_of(folder: Path, prompts: list[list[int]]) -> list[np.ndarray]:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        str(folder), dtype=torch.float32
    )
    model.config.pad_token_id = 0
    with torch.inference_mode():
        return [model(torch.tensor([each])).logits[0].numpy() for each in prompts]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(x)))


def test_classes_are_those_of_transformers(served, folders):
    prompts = [[*range(80, 100), last] for last in (5, 6, 7)]
    client = served(folders["five"])
    body = client.post("/v1/classify", input=prompts).json()
    known = logits_of(folders["five"], prompts)
    for item, logits in zip(body["data"], known, strict=True):
        expected = np.exp(logits) / np.exp(logits).sum()
        assert item["probs"] == pytest.approx(expected.tolist(), abs=1e-5)
        assert item["label"] == f"class {logits.argmax()}"
        assert item["num_classes"] == 5
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 40
    plain = client.post("/classify", input=prompts, use_activation=False).json()
    for item, logits in zip(plain["data"], known, strict=True):
        assert item["probs"] == pytest.approx(logits.tolist(), abs=1e-4)


def test_a_head_of_one_label_scores_pairs(served, folders):
    client = served(folders["one"])
    body = client.post("/v1/score", text_1=QUERY, text_2=DOCUMENTS).json()
    tokenizer = client.engine.tokenizer
    prompts = [tokenizer.encode(QUERY + each).tolist() for each in DOCUMENTS]
    known = [float(sigmoid(each)[0]) for each in logits_of(folders["one"], prompts)]
    assert [each["score"] for each in body["data"]] == pytest.approx(known, abs=1e-5)
    [alone] = client.post("/v1/classify", input=QUERY).json()["data"]
    [logits] = logits_of(folders["one"], [tokenizer.encode(QUERY).tolist()])
    assert alone["probs"] == pytest.approx([float(sigmoid(logits)[0])], abs=1e-5)


def test_yes_and_no_are_scored_by_the_head_of_tokens(served, folders):
    client = served(folders["judge"])
    ranking = client.post("/v1/rerank", query=QUERY, documents=DOCUMENTS).json()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(folders["judge"]), dtype=torch.float32
    )
    known = {}
    for index, each in enumerate(DOCUMENTS):
        text = f"<|im_start|>I: find it\nQ: {QUERY}\nD: {each}\n"
        ids = client.engine.tokenizer.encode(text, add_special_tokens=False)
        with torch.inference_mode():
            logits = model(torch.tensor(ids[None].astype(np.int64))).logits[0, -1].numpy()
        known[index] = float(sigmoid(logits[YES] - logits[NO]))
    given = {each["index"]: each["relevance_score"] for each in ranking["results"]}
    assert given == pytest.approx(known, abs=1e-5)
    scores = [each["relevance_score"] for each in ranking["results"]]
    assert scores == sorted(scores, reverse=True)
    # All but the document is shared.
    usage = ranking["usage"]
    shared = len(client.engine.tokenizer.encode(f"<|im_start|>I: find it\nQ: {QUERY}\nD: "))
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 2 * (shared - 1)
    asked = client.post("/v1/rerank", query=QUERY, documents=DOCUMENTS, instruction="other")
    assert asked.json()["results"] != ranking["results"]


def test_a_judge_chats_but_embeds_nothing(served, folders):
    client = served(folders["judge"])
    assert client.post("/v1/completions", prompt="a", max_tokens=1).status_code == 200
    assert "LogitScore" in refused(client.post("/v1/embeddings", input="a"))["message"]


def test_a_classifier_gives_no_answers(served, folders):
    client = served(folders["five"])
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/generate", {"text": "a"}),
    ):
        assert "gives no answers" in refused(client.post(path, **body))["message"]
    assert client.post("/v1/embeddings", input="a").status_code == 200
    assert client.get("/health_generate").status_code == 200
    many = client.post("/v1/score", text_1="a", text_2="b")
    assert "classifies by 5 labels" in refused(many)["message"]


def test_embeddings_score_by_their_cosine(real):
    body = real.post("/v1/score", text_1=QUERY, text_2=[*DOCUMENTS, QUERY]).json()
    data = real.post("/v1/embeddings", input=[QUERY, *DOCUMENTS]).json()["data"]
    one, *others = (np.array(each["embedding"]) for each in data)
    known = [float(one @ other) for other in others]
    assert [each["score"] for each in body["data"]] == pytest.approx([*known, 1.0], abs=1e-5)
    assert [each["index"] for each in body["data"]] == [0, 1, 2, 3]
    assert body["object"] == "list"
    pairs = real.post("/score", queries=[QUERY] * 3, documents=DOCUMENTS).json()
    assert [each["score"] for each in pairs["data"]] == pytest.approx(known, abs=1e-5)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_ranked_documents_come_best_first(real, path):
    body = real.post(path, query=QUERY, documents=DOCUMENTS, top_n=2, model="tiny").json()
    scores = [
        each["score"]
        for each in real.post("/v1/score", text_1=QUERY, text_2=DOCUMENTS).json()["data"]
    ]
    order = sorted(range(3), key=lambda index: -scores[index])[:2]
    assert [each["index"] for each in body["results"]] == order
    assert [each["document"]["text"] for each in body["results"]] == [DOCUMENTS[i] for i in order]
    assert body["model"] == "tiny"
    parts = [{"text": each} for each in DOCUMENTS]
    bare = real.post(path, query=QUERY, documents=parts, return_documents=False).json()
    assert len(bare["results"]) == 3
    assert all("document" not in each for each in bare["results"])
    assert bare["usage"]["total_tokens"] == bare["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"text_2": "a"}, "text_1"),
        ("/v1/score", {"queries": "a"}, "documents"),
        ("/v1/score", {"text_1": "a", "queries": "a", "documents": "a"}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "instruction": "c"}, "instruction"),
        ("/v1/score", {"text_1": "a", "text_2": ["a"] * 2049}, "text_2"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a" * 40_000]}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "model": "other"}, "model"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/classify", {"input": "a"}, None),
    ],
)
def test_what_can_not_be_is_refused_by_name(real, path, body, param):
    status = 404 if param == "model" else 400
    assert refused(real.post(path, **body), status)["param"] == param
