"""The command line: shapes, commands, exit codes."""

import argparse
import json
import os
import subprocess
import sys

import pytest

import fa_numba
from fa_numba import __main__ as command_line
from fa_numba.__main__ import find_terms, main, parse_shape


@pytest.mark.parametrize(
    "text", ["2x4096x16x64", "2,4096,16,64", "(2, 4096, 16, 64)", "2 4096 16 64", "2×4096×16×64"]
)
def test_parse_shape(text):
    assert parse_shape(text) == (2, 4096, 16, 64)


@pytest.mark.parametrize("text", ["", "2x4096xbig", "2x-1x3x4", "2xx3", "1.5x2"])
def test_a_wrong_shape_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="2x4096x16x64"):
        parse_shape(text)


@pytest.fixture
def explained(monkeypatch):
    """Calls that reach fa_numba.explain."""
    calls = []

    def explain(*args, **kwargs):
        calls.append((args, kwargs))
        return "the report"

    monkeypatch.setattr(fa_numba, "explain", explain)
    return calls


def test_explain_passes_every_flag_on(explained, capsys):
    flags = "--dtype bfloat16 --causal --window 256 0 --sink 4 --softcap 30 --num-splits 0"
    shapes = ["1x1x32x128", "1x8192x8x128"]
    assert main(["explain", *shapes, *flags.split(), "--device", "cpu"]) == 0
    assert capsys.readouterr().out == "the report\n"
    ((args, kwargs),) = explained
    assert args == ((1, 1, 32, 128), (1, 8192, 8, 128), "bfloat16")
    assert kwargs == {
        "causal": True,
        "window_size": (256, 0),
        "sink_token_length": 4,
        "softcap": 30.0,
        "num_splits": 0,
        "device": "cpu",
    }


def test_explain_defaults(explained):
    assert main(["explain", "2x64x4x32"]) == 0
    ((args, kwargs),) = explained
    assert args == ((2, 64, 4, 32), (2, 64, 4, 32), "float32")
    assert (kwargs["window_size"], kwargs["num_splits"], kwargs["device"]) == ((-1, -1), 1, None)


def test_explain_a_negative_window_is_a_number_not_a_flag(explained):
    assert main(["explain", "2x64x4x32", "--window", "-1", "0"]) == 0
    assert explained[0][1]["window_size"] == (-1, 0)


def test_explain_prints_the_real_report(capsys):
    assert main(["explain", "1x256x4x64", "--causal"]) == 0
    assert "reference" in capsys.readouterr().out


def test_explain_bad_input_is_one_sentence_and_exit_code_2(capsys):
    assert main(["explain", "2x64x4x32", "2x64x3x32"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("explain: ")
    assert captured.err.count("\n") == 1
    assert "heads" in captured.err


def test_doctor_json(capsys):
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exit_code"] == 0


def test_demo_hands_its_arguments_and_its_exit_code_on(monkeypatch, tmp_path, capfd):
    (tmp_path / "examples").mkdir()
    script = tmp_path / "examples" / "sentence_search.py"
    script.write_text("import sys; print(sys.argv[1:]); sys.exit(3)")
    monkeypatch.setattr(command_line, "ROOT", tmp_path)
    assert main(["demo", "--query", "bread", "-v"]) == 3
    assert capfd.readouterr().out.strip() == "['--query', 'bread', '-v']"


def test_the_demo_and_the_glossary_are_there():
    assert (command_line.ROOT / "examples" / "sentence_search.py").is_file()
    assert (command_line.ROOT / "docs" / "glossary.toml").is_file()


@pytest.mark.parametrize("command", [["demo"], ["glossary", "LSE"]])
def test_outside_a_checkout_the_message_says_what_to_do(monkeypatch, tmp_path, capsys, command):
    monkeypatch.setattr(command_line, "ROOT", tmp_path)
    assert main(command) == 1
    assert "run this in a clone" in capsys.readouterr().err


def test_glossary_prefers_the_exact_name(capsys):
    assert main(["glossary", "online", "softmax"]) == 0
    out = capsys.readouterr().out
    assert out.count(" / ") == 1
    assert out.casefold().startswith("online softmax / ")
    assert "-> fa_numba.reference.softmax" in out


def test_glossary_finds_by_alias_part_and_language():
    row = {"id": "lse", "en": "Log-sum-exp", "zh": "对数求和指数", "aliases": ["LSE (lse)"]}
    other = row | {"id": "delta", "en": "Delta", "zh": "增量", "aliases": ["log-sum"]}
    terms = [row, other]
    assert find_terms(terms, "LSE") == [row]
    assert find_terms(terms, "求和") == [row]
    assert find_terms(terms, "Log-Sum") == [other]
    assert find_terms(terms, "log-su") == [row, other]
    assert find_terms(terms, "flash") == []


def test_glossary_without_a_match(capsys):
    assert main(["glossary", "no such term"]) == 1
    assert "no such term" in capsys.readouterr().err


def test_without_a_command_the_usage_is_shown(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_a_reader_that_has_left_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "fa_numba", "explain", "1x256x4x64"]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, b"")


def test_python_dash_m():
    command = [sys.executable, "-m", "fa_numba", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(name in result.stdout for name in ("demo", "doctor", "explain", "glossary"))
