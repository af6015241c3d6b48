"""Questions after a few examples that all of them share."""

import radixlm as rl


@rl.function
def few_shot(s, country):
    s += "The capital of Germany is Berlin.\n"
    s += "The capital of Spain is Madrid.\n"
    s += "The capital of " + country + " is"
    s += rl.gen("capital", max_tokens=8, stop="\n")


def main():
    countries = ["France", "Italy", "Japan"]
    states = few_shot.run_batch([{"country": name} for name in countries], temperature=0)
    capitals = [state["capital"] for state in states]
    print(dict(zip(countries, capitals, strict=True)))
    return capitals


if __name__ == "__main__":
    with rl.Engine() as engine:
        rl.set_default_backend(engine)
        main()
