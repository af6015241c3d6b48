"""LangChain's `ChatOpenAI` and `OpenAI`, and retrieval by its `OpenAIEmbeddings`."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

import openai
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import SecretStr

from scripts.try_clients.drivers.asked import DOCUMENTS, FOUND
from scripts.try_clients.outcome import Outcome, raised
from scripts.try_clients.server import KEY, MODEL, Served

_COUNTRIES = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome", "Norway": "Oslo"}
_QUESTION = "What is the capital of {country}?"
_ANSWER = "The capital of {country} is {city}."


def use_langchain(server: Served) -> Outcome:
    """Every way to run a model; raises AssertionError where one is not as it should be."""
    key = SecretStr(KEY)
    chat = ChatOpenAI(model=MODEL, base_url=server.v1, api_key=key, temperature=0, max_retries=0)
    _invoke(chat)
    _stream(chat)
    answered = _batch(chat)
    answered += asyncio.run(_async_calls(chat))
    _retrieve(chat, OpenAIEmbeddings(model=MODEL, base_url=server.v1, api_key=key, max_retries=0))
    text = OpenAI(model=MODEL, base_url=server.v1, api_key=key, temperature=0, max_tokens=6)
    assert "Madrid" in text.invoke("The capital of Spain is")
    error = raised(openai.BadRequestError, lambda: chat.invoke("hello", max_completion_tokens=0))
    assert error.param == "max_completion_tokens", error
    return Outcome(
        client="langchain-openai",
        version=version("langchain-openai"),
        did="ChatOpenAI: invoke, stream, batch, a chain, ainvoke, astream, abatch; OpenAI: invoke; "
        "OpenAIEmbeddings, a store, a retriever and a chain that answers from it",
        numbers={"batched_answers": answered},
    )


def _invoke(chat: ChatOpenAI) -> None:
    messages = [
        SystemMessage("Be kind."),
        HumanMessage("My name is Anna."),
        AIMessage("Nice to meet you, Anna!"),
        HumanMessage("What is my name?"),
    ]
    answer = chat.invoke(messages)
    assert "Anna" in str(answer.content), answer
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"
    told = chat.bind(logprobs=True, top_logprobs=2).invoke("What is the capital of France?")
    assert len(told.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2


def _stream(chat: ChatOpenAI) -> None:
    chunks = list(chat.stream(_QUESTION.format(country="France")))
    text = "".join(str(chunk.content) for chunk in chunks)
    assert text == _ANSWER.format(country="France", city="Paris"), text
    assert len(chunks) > 4, "the stream came in one piece"


def _batch(chat: ChatOpenAI) -> int:
    chain = ChatPromptTemplate.from_messages([("human", _QUESTION)]) | chat | StrOutputParser()
    texts = chain.batch([{"country": country} for country in _COUNTRIES])
    _check(texts)
    return len(texts)


async def _async_calls(chat: ChatOpenAI) -> int:
    first = await chat.ainvoke(_QUESTION.format(country="France"))
    chunks = [chunk async for chunk in chat.astream(_QUESTION.format(country="France"))]
    assert "".join(str(chunk.content) for chunk in chunks) == first.content
    answers = await chat.abatch([_QUESTION.format(country=country) for country in _COUNTRIES])
    _check([str(answer.content) for answer in answers])
    return len(answers)


def _retrieve(chat: ChatOpenAI, embeddings: OpenAIEmbeddings) -> None:
    """It sends token ids of its own, unless it is asked not to: here they mean other texts."""
    embeddings.check_embedding_ctx_length = False
    store = InMemoryVectorStore(embeddings)
    store.add_documents([Document(text) for text in DOCUMENTS])
    [(found, score)] = store.similarity_search_with_score(DOCUMENTS[FOUND], k=1)
    assert found.page_content == DOCUMENTS[FOUND], found
    assert score > 0.999, score
    prompt = ChatPromptTemplate.from_messages([("human", "{context}\n{question}")])
    context = store.as_retriever(search_kwargs={"k": 1}) | _joined
    asked = {"context": context, "question": RunnablePassthrough()}
    answer = (asked | prompt | chat | StrOutputParser()).invoke("What is the capital of France?")
    assert answer, "nothing was answered"


def _joined(documents: list[Document]) -> str:
    return "\n".join(each.page_content for each in documents)


def _check(texts: list[str]) -> None:
    right = [_ANSWER.format(country=country, city=city) for country, city in _COUNTRIES.items()]
    assert texts == right, texts
