"""Makes the embedded demo model from nothing: writes its text, trains it, measures it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from .evaluation import Greedy, evaluate
from .model import DemoModel, load_weights
from .readme import write_readme
from .tokenizer import make_tokenizer, save_tokenizer
from .training import Budget, train

FOLDER = Path(__file__).resolve().parents[2] / "src" / "radixlm" / "demo_model"
TRAINING_FACTS = "training.json"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the model")
    parser.add_argument("--minutes", type=float, default=45.0, help="training time (default 45)")
    parser.add_argument("--steps", type=int, help="train so many steps instead of --minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument(
        "--resume", type=float, metavar="PROGRESS",
        help="go on from the weights in --out, at this share (0 to 1) of the schedule",
    )  # fmt: skip
    parser.add_argument("--evaluate-only", action="store_true", help="train nothing")
    return parser.parse_args()


def _train(args: argparse.Namespace) -> dict[str, float]:
    model = DemoModel()
    record = args.out / TRAINING_FACTS
    earlier = {}
    if args.resume is not None and record.exists():
        earlier = json.loads(record.read_text())
    if args.resume is None:
        tokenizer = make_tokenizer(args.seed)
    else:
        tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
        load_weights(model, args.out)
    args.out.mkdir(parents=True, exist_ok=True)
    save_tokenizer(tokenizer, args.out)
    budget = Budget(args.minutes, args.steps, args.resume or 0.0)
    result = train(model, tokenizer, budget, args.seed, args.workers, args.out)
    made = {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "training_tokens": result.tokens + earlier.get("training_tokens", 0),
        "steps": result.steps + earlier.get("steps", 0),
        "training_minutes": round(result.minutes + earlier.get("training_minutes", 0), 1),
        "sessions": 1 + earlier.get("sessions", 0),
        "loss": round(result.loss, 4),
        "seed": args.seed,
    }
    record.write_text(json.dumps(made) + "\n")
    return made


def main() -> None:
    args = _arguments()
    torch.manual_seed(args.seed)
    made = (
        json.loads((args.out / TRAINING_FACTS).read_text()) if args.evaluate_only else _train(args)
    )
    torch.set_num_threads(args.workers)
    report = evaluate(Greedy(args.out), args.seed)
    for name, expected, answer in report.wrong:
        print(f"wrong: {name}: expected {expected!r}, got {answer!r}", file=sys.stderr)
    write_readme(args.out, made, report)
    accuracy = {name: round(value, 4) for name, value in report.accuracy.items()}
    print(json.dumps({**made, "accuracy": accuracy}))


if __name__ == "__main__":
    main()
