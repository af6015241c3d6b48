"""Parts of an answer, side by side in forks, then put together."""

import radixlm as rl


@rl.function
def tips(s, countries):
    s += rl.system("You are a helpful assistant.")
    forks = s.fork(len(countries))
    forks += lambda place: rl.user(f"What is the capital of {countries[place]}?")
    forks += rl.assistant(rl.gen("tip", max_tokens=32))
    forks.join()
    s += rl.user("Remember: " + " ".join(s["tip"]) + " What is the capital of Spain?")
    s += rl.assistant(rl.gen("summary", max_tokens=32))


def main():
    state = tips.run(["France", "Italy", "Japan"], temperature=0)
    print(state["tip"], state["summary"])
    return state["tip"], state["summary"]


if __name__ == "__main__":
    with rl.Engine() as engine:
        rl.set_default_backend(engine)
        main()
