"""Texts as they come: in a thread, and in a coroutine."""

import asyncio

import radixlm as rl


@rl.function
def ask(s, question):
    s += rl.user(question)
    s += rl.assistant(rl.gen("answer", max_tokens=32))


async def told(question):
    state = ask.run(question, stream=True, temperature=0)
    return "".join([piece async for piece in state.text_async_iter("answer")])


def main():
    state = ask.run("What is the capital of France?", stream=True, temperature=0)
    pieces = []
    for piece in state.text_iter("answer"):
        print(piece, end="", flush=True)
        pieces.append(piece)
    print()
    answer = asyncio.run(told("What is 12 + 7?"))
    print(answer)
    return "".join(pieces), answer


if __name__ == "__main__":
    with rl.Engine() as engine:
        rl.set_default_backend(engine)
        main()
