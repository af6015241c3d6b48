"""Thought, action, observation, in a loop; the program does what the model asks for.

The demo model never learnt this form: its thought makes no sense and it takes `finish` at once, so
there is one turn and no observation. With a model that reasons, `rl.Engine("FOLDER")`, the loop
goes on for as long as that chooses `look up`, three turns at most.
"""

import radixlm as rl

FACTS = {"France": "Paris", "Japan": "Tokyo"}


@rl.function
def react(s, country):
    s += "Question: What is the capital of " + country + "?\n"
    for turn in range(3):
        s += "Thought:" + rl.gen(f"thought_{turn}", max_tokens=12, stop="\n") + "\n"
        s += "Action: " + rl.select(f"action_{turn}", ["look up", "finish"]) + "\n"
        if s[f"action_{turn}"] == "finish":
            break
        s += f"Observation: the capital of {country} is {FACTS[country]}.\n"
    s += "Answer: The capital of " + country + " is"
    s += rl.gen("answer", max_tokens=6, stop=[".", "\n"])


def main():
    state = react.run("Japan", temperature=0)
    print(state.text())
    return state["answer"], state["action_0"]


if __name__ == "__main__":
    with rl.Engine() as engine:
        rl.set_default_backend(engine)
        main()
