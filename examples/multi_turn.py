"""A chat of two turns."""

import radixlm as rl


@rl.function
def multi_turn(s, question_1, question_2):
    s += rl.system("You are a helpful assistant.")
    s += rl.user(question_1)
    s += rl.assistant(rl.gen("answer_1", max_tokens=64))
    s += rl.user(question_2)
    s += rl.assistant(rl.gen("answer_2", max_tokens=64))


def main():
    state = multi_turn.run(
        question_1="What is the capital of France?",
        question_2="What is 12 + 7?",
        temperature=0,
    )
    for message in state.messages():
        print(message["role"], ":", message["content"])
    return state["answer_1"], state["answer_2"]


if __name__ == "__main__":
    with rl.Engine() as engine:
        rl.set_default_backend(engine)
        main()
