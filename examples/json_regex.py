"""JSON by a regular expression."""

import json

import radixlm as rl

CHARACTER = r'\{"name": "[A-Z][a-z]{1,12}", "house": "(Gryffindor|Slytherin)", "age": [1-9][0-9]\}'


@rl.function
def character(s, name):
    s += rl.user("Tell me about " + name + ".")
    s += rl.assistant(rl.gen("json", max_tokens=96, regex=CHARACTER))


def main():
    found = json.loads(character.run("Harry", temperature=0)["json"])
    print(found)
    return found


if __name__ == "__main__":
    with rl.Engine() as engine:
        rl.set_default_backend(engine)
        main()
