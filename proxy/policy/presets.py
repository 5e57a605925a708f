"""The rule packs that are shipped in the package: names and texts."""

from __future__ import annotations

from importlib import resources


def preset_names() -> tuple[str, ...]:
    """Return the presets' names in order."""
    files = (resources.files("proxy.policy") / "presets").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def preset_text(name: str) -> str:
    """Return a preset's YAML text.

    Raises: KeyError where there is none of that name.
    """
    if name not in preset_names():
        raise KeyError(name)
    return (resources.files("proxy.policy") / "presets" / f"{name}.yaml").read_text("utf-8")
