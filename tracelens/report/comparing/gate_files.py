"""What build servers read of gates: JUnit XML, SARIF, annotations of GitHub Actions."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import orjson

from tracelens.files.safe_text import json_safe, terminal_text, xml_text

if TYPE_CHECKING:
    from tracelens.comparison.compared import Comparison

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def junit_xml(found: Comparison) -> bytes:
    """A test suite with a case per gate."""
    failed = sum(not gate.passed for gate in found.gates)
    suite = Element(
        "testsuite", name="tracelens compare", tests=str(len(found.gates)), failures=str(failed), errors="0"
    )
    for gate in found.gates:
        case = SubElement(suite, "testcase", classname="tracelens.gates", name=xml_text(gate.gate))
        if not gate.passed:
            failure = SubElement(case, "failure", message=xml_text(gate.text), type="gate")
            failure.text = xml_text("\n".join(_why(found)))
    suites = Element("testsuites")
    suites.append(suite)
    indent(suites)
    return bytes(tostring(suites, encoding="utf-8", xml_declaration=True)) + b"\n"


def sarif(found: Comparison) -> bytes:
    """SARIF 2.1.0 with a result per gate that failed."""
    rules = [{"id": gate.gate, "shortDescription": {"text": f"gate {gate.gate}"}} for gate in found.gates]
    results = [
        {
            "ruleId": gate.gate,
            "level": "error",
            "message": {"text": "\n".join((gate.text, *_why(found)))},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": quote(found.b.name)}}}],
        }
        for gate in found.gates
        if not gate.passed
    ]
    driver = {"name": "tracelens", "rules": rules}
    document = {"$schema": _SARIF, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return orjson.dumps(json_safe(document), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def github_annotations(found: Comparison) -> str:
    """Workflow commands: an error per gate that failed, a notice per gate that passed."""
    lines = []
    for gate in found.gates:
        text = gate.text if gate.passed else "\n".join((gate.text, *_why(found)))
        command = "notice" if gate.passed else "error"
        lines.append(f"::{command} title={_property(f'tracelens {gate.gate}')}::{_data(text)}")
    return "\n".join(lines) + "\n" if lines else ""


def _why(found: Comparison, most: int = 5) -> list[str]:
    return [terminal_text(change.text) for change in found.changes[:most]]


def _data(text: str) -> str:
    lines = "%0A".join(terminal_text(line).replace("%", "%25") for line in text.split("\n"))
    return lines.replace("\r", "%0D")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
