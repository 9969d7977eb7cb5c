"""Names out of files that anyone may have written."""


def printable(text: str) -> str:
    r"""Return a text without control codes, lone surrogates and ends of lines.

    >>> printable("weights\x1b[31m")
    'weights?[31m'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def printable_lines(text: str) -> str:
    r"""Return a text of lines whose names are made printable.

    >>> printable_lines("run\x1b[2J.trace:3: broken\nTry: another")
    'run?[2J.trace:3: broken\nTry: another'
    """
    return "\n".join(map(printable, text.split("\n")))
