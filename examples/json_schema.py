"""JSON by a schema."""

import json

import radixlm as rl

CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "capital": {"type": "boolean"},
        "rank": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "capital", "rank"],
    "additionalProperties": False,
}


@rl.function
def city(s, name):
    s += rl.user("Tell me about " + name + ".")
    s += rl.assistant(rl.gen("json", max_tokens=96, json_schema=json.dumps(CITY)))


def main():
    found = json.loads(city.run("Paris", temperature=0)["json"])
    print(found)
    return found


if __name__ == "__main__":
    with rl.Engine() as engine:
        rl.set_default_backend(engine)
        main()
