"""The model chooses; the program branches on what it chose."""

import radixlm as rl


@rl.function
def tool_use(s, question):
    s += "To answer this question: " + question + "\n"
    s += "I need to use a " + rl.gen("tool", choices=["calculator", "search engine"]) + ".\n"
    if s["tool"] == "calculator":
        s += "The math expression is" + rl.gen("expression", max_tokens=8, stop="\n")
    else:
        s += "The key word to search is" + rl.gen("word", max_tokens=8, stop="\n")


@rl.function
def capital(s, method):
    s += "The capital of France is"
    s += rl.select("city", [" Paris", " Berlin", " a city"], choices_method=method)


def main():
    methods = [
        rl.token_length_normalized,
        rl.greedy_token_selection,
        rl.unconditional_likelihood_normalized,
    ]
    cities = [capital.run(method, temperature=0)["city"] for method in methods]
    state = tool_use.run("What is 12 + 7?", temperature=0)
    print(cities)
    print(state.text())
    return cities, state["tool"], state.text()


if __name__ == "__main__":
    with rl.Engine() as engine:
        rl.set_default_backend(engine)
        main()
