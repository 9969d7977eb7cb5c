"""Make something: `nox -l` lists what. Whether all is well is tox's to say."""

import nox

nox.options.sessions = ["dist"]
PROJECT = nox.project.load_toml("pyproject.toml")
PURE = {"MADL_COMPILE": "0"}


@nox.session
def mutate(session: nox.Session) -> None:
    """Break the code on purpose, one line at a time; the tests must see each break."""
    session.install("--editable", ".", env=PURE)
    session.install(*nox.project.dependency_groups(PROJECT, "test"))
    session.run("python", "tests/mutate.py", *session.posargs)


@nox.session
def dist(session: nox.Session) -> None:
    """Build the sdist, and from it the wheel that runs anywhere, into dist/."""
    session.install("build", "twine")
    session.run("python", "-m", "build", env=PURE)
    session.run("twine", "check", "--strict", "dist/*")
