"""Let atheris find files that a reader does wrong with.

``python -m tests.fuzz.atheris_reader READER FOLDER... [-max_total_time=60]`` takes
libFuzzer's arguments. The first folder receives what was found on the way; a file that
crashes, hangs or takes too much memory is left where ``-artifact_prefix=`` says.
"""

import sys

import atheris

with atheris.instrument_imports(include=["madl", "tests.fuzz"]):
    from tests.fuzz.readers import READERS, read


def main() -> None:
    """Fuzz the reader that is named first."""
    name, *arguments = sys.argv[1:]
    if name not in READERS:
        sys.exit(f"READER must be one of {', '.join(READERS)}, got {name!r}")

    def one(data: bytes) -> None:
        read(name, data)

    limits = ["-timeout=20", "-rss_limit_mb=3000", "-max_len=4096"]
    atheris.Setup([sys.argv[0], *limits, *arguments], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
