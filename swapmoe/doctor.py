"""Looks at everything a start depends on and says what is missing, slow or out of date."""

from dataclasses import dataclass, field
from pathlib import Path

from swapmoe import findings
from swapmoe.doctor_machine import machine
from swapmoe.doctor_model import Disk, disk_findings, measure, model
from swapmoe.doctor_tools import builds, tools
from swapmoe.errors import ModelError, ToolError
from swapmoe.findings import Finding


@dataclass
class Report:
    """All findings by section, and what the disk of the model gave."""

    sections: dict[str, list[Finding]] = field(default_factory=dict)
    disk: Disk | None = None

    @property
    def exit_code(self) -> int:
        """9 for a model that cannot be used, 4 for a missing tool, else 0; warnings count not."""
        if findings.has({"": self.sections.get("Model", [])}, "bad"):
            return ModelError.exit_code
        return ToolError.exit_code if findings.has(self.sections, "missing") else 0

    def to_json(self) -> dict[str, object]:
        """For machines."""
        return {
            "exit_code": self.exit_code,
            "findings": findings.to_json(self.sections),
            "disk": self.disk.to_json() if self.disk else None,
        }


def examine(pin: str | None, path: Path | None, *, probe: bool = True) -> Report:
    """Look at tools, machine and build, and at a model where one is given."""
    report = Report({"Tools": tools(), "Machine": machine(), "Build": builds(pin)})
    if path is None:
        return report
    found, facts = model(path)
    if facts and probe:
        try:
            report.disk = measure(facts)
            found += disk_findings(report.disk, facts)
        except ToolError as error:
            text = "; ".join([error.message, *error.evidence])
            found.append(Finding("note", "disk probe", text, error.hint))
    report.sections["Model"] = found
    return report
