"""A longer run of the fuzzers: `python tests/fuzz [--seconds 60] [--findings FOLDER] [TARGET…]`.

Each target is a file test_fuzz_<target>.py here, with a `check` of any bytes, SEEDS and WORDS. Where atheris can be
imported it guides the changes by what they reach, else they are blind. What breaks a check is told, and kept as a file
in the folder of findings; a fixed one becomes a case of the tests of the module that it broke.
"""

import argparse
import importlib
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import conftest

HERE = Path(__file__).parent
TARGETS = sorted(path.stem.removeprefix("test_fuzz_") for path in HERE.glob("test_fuzz_*.py"))
PATIENCE_S = 20  # for one input; an endless loop ends here


def main():
    sys.path.insert(0, str(HERE.parent.parent))
    given = _arguments()
    if len(given.targets) > 1:
        sys.exit(max(_apart(target, given) for target in given.targets))
    try:
        atheris = importlib.import_module("atheris")
    except ImportError:
        _say("atheris is not installed, so the changes are blind")
        _blindly(given.targets[0], given.seconds)
    else:
        _guided(atheris, given.targets[0], given.seconds, given.findings)


def _say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _arguments():
    parser = argparse.ArgumentParser(prog="tests/fuzz")
    # Without `choices`: Python 3.11 checks the default, a list, against them as well.
    parser.add_argument("targets", nargs="*", type=_target, default=TARGETS, metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="how long each target is run")
    parser.add_argument("--findings", type=Path, default=None, help="where the bytes that broke a check are kept")
    return parser.parse_args()


def _target(name):
    if name not in TARGETS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(TARGETS)}")
    return name


def _apart(target, given):
    """Run one target in a process of its own, since what guides it is the coverage of one process."""
    _say(f"--- {target}: {given.seconds} s")
    kept = ["--findings", str(given.findings)] if given.findings else []
    command = [sys.executable, str(HERE), target, "--seconds", str(given.seconds), *kept]
    return subprocess.run(command, check=False).returncode  # noqa: S603 the command is this program


def _blindly(target, seconds):
    module = importlib.import_module(f"test_fuzz_{target}")
    count = conftest.run(module.check, module.SEEDS, module.WORDS, seconds, random.Random())  # noqa: S311
    _say(f"{target}: {count} inputs, nothing found")


def _guided(atheris, target, seconds, findings):
    with atheris.instrument_imports(include=["proxy", "yaml"]):
        module = importlib.import_module(f"test_fuzz_{target}")
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch, "corpus")
        corpus.mkdir()
        for number, seed in enumerate(module.SEEDS):
            Path(corpus, str(number)).write_bytes(seed)
        words = Path(scratch, "words")
        escaped = ("".join(f"\\x{byte:02x}" for byte in word) for word in module.WORDS)
        words.write_text("".join(f'"{word}"\n' for word in escaped))
        options = [f"-max_total_time={seconds}", f"-dict={words}", f"-timeout={PATIENCE_S}", "-rss_limit_mb=2048"]
        options += [f"-max_len={conftest.MAX_BYTES}", "-print_final_stats=1", "-verbosity=1"]
        if findings:
            findings.mkdir(parents=True, exist_ok=True)
            options.append(f"-artifact_prefix={findings}/{target}-")
        atheris.Setup([sys.argv[0], *options, str(corpus)], module.check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
