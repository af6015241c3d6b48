"""Many runs of one program, a few at a time."""

import radixlm as rl


@rl.function
def add(s, a, b):
    s += rl.system("You are a helpful assistant.")
    s += rl.user(f"What is {a} + {b}?")
    s += rl.assistant(rl.gen("sum", max_tokens=16))


def main():
    sums = [{"a": a, "b": 12} for a in range(8)]
    states = add.run_batch(sums, temperature=0, num_threads=4, progress_bar=True)
    answers = [state["sum"] for state in states]
    print(answers)
    return answers


if __name__ == "__main__":
    with rl.Engine() as engine:
        rl.set_default_backend(engine)
        main()
