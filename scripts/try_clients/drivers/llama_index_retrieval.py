"""LlamaIndex: documents are embedded into an index, and a question answered from what is found."""

from __future__ import annotations

from typing import Any

import openai
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

from scripts.try_clients.drivers.asked import DOCUMENTS, FOUND, arguments


class Answering(CustomLLM):  # type: ignore[misc]
    """LlamaIndex's own way to OpenAI-like servers has pins that no index here can satisfy."""

    url: str
    key: str
    name: str

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=1024, num_output=40, model_name=self.name)

    def complete(self, prompt: str, **_: Any) -> CompletionResponse:
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)
        said: Any = [{"role": "user", "content": prompt}]
        answer = client.chat.completions.create(model=self.name, messages=said, max_tokens=40)
        return CompletionResponse(text=answer.choices[0].message.content)

    def stream_complete(self, prompt: str, **_: Any) -> Any:
        yield self.complete(prompt)


def main() -> None:
    url, key, name = arguments()
    embed = OpenAILikeEmbedding(model_name=name, api_base=f"{url}/v1", api_key=key, max_retries=0)
    index = VectorStoreIndex.from_documents(
        [Document(text=text) for text in DOCUMENTS], embed_model=embed
    )
    [found] = index.as_retriever(similarity_top_k=1).retrieve(DOCUMENTS[FOUND])
    assert found.text == DOCUMENTS[FOUND], found
    assert (found.score or 0) > 0.999, found.score
    engine = index.as_query_engine(llm=Answering(url=url, key=key, name=name), similarity_top_k=2)
    answer = engine.query("What is the capital of France?")
    assert str(answer), answer
    assert len(answer.source_nodes) == 2
    [again] = embed.get_text_embedding_batch([DOCUMENTS[0]])
    assert len(again) == len(embed.get_query_embedding("hello"))


if __name__ == "__main__":
    main()
