"""Print what to record to answer a question: the lines to add, and the command that answers it afterwards.

tracelens record --for "why is rank 3 slow"
"""

from __future__ import annotations

import argparse

from tracelens.errors import UsageError
from tracelens.files.say import say
from tracelens.recording.recorder import QUESTIONS, question_of, snippet


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--for", dest="question", metavar="QUESTION", help='in your words: "why is the GPU idle"')
    parser.add_argument("--list", action="store_true", help="list the questions with the options that each needs")


def run(args: argparse.Namespace) -> int:
    if args.list or args.question is None:
        for question in QUESTIONS:
            options = ", ".join(f"{name}={value!r}" for name, value in question.options.items()) or "every rank"
            say(f"{question.text}\n    {options}: {question.why}")
        return 0
    found = question_of(args.question)
    if found is None:
        raise UsageError(f"no question about {args.question!r} is known: tracelens record --list shows those that are")
    say(f"# {found.text}: {found.why}\n{snippet(found)}\n# afterwards: {found.then}")
    return 0
