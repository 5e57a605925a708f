"""Pictures, sounds and films in a content part: where they are, and the part in another API's shape.

    image_url: "…"   input_image: {image_url: "…"}   image: {source: {type: base64, …}}   file: {file_data: "data:…"}
    input_audio: {data, format}   audio_url: {url: "data:audio/…;base64,…"}

Sources: OpenAI's chat and Responses schemas, Anthropic's messages, the chat templates of Hugging Face.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_DATA: Final = re.compile(r"data:([^;,]*)(?:;[^,]*)?;base64,(.*)", re.DOTALL | re.IGNORECASE)
_AUDIO_TYPES: Final[Mapping[str, str]] = {"mp3": "mpeg", "m4a": "mp4", "opus": "ogg", "pcm16": "pcm"}
_AUDIO_FORMATS: Final[Mapping[str, str]] = {
    "mpeg": "mp3",
    "mp4": "m4a",
    "x-wav": "wav",
    "wave": "wav",
    "x-flac": "flac",
}


def url_of(part: Mapping[str, Any], noun: str) -> str | None:
    """Return the address of the part's image, audio or video, inline data as a data URL; None where there is none."""
    fits = re.compile(rf"(?!data:)|data:{noun}/", re.IGNORECASE)
    return next((url for url in _urls(part, noun) if url and fits.match(url)), None)


def _urls(part: Mapping[str, Any], noun: str) -> Iterator[str]:
    for holder in (part.get(f"{noun}_url"), part.get(f"input_{noun}"), part.get(noun), part.get("source"), part):
        if isinstance(holder, str):
            yield holder
        elif isinstance(holder, dict):
            yield from _addresses(holder, noun)
    # A file may be anything: only its data say that it is a picture.
    for holder in (part.get("file"), part):
        data = holder.get("file_data") if isinstance(holder, dict) else None
        if isinstance(data, str) and data[:5].lower() == "data:":
            yield data


def _addresses(holder: Mapping[str, Any], noun: str) -> Iterator[str]:
    url, data, media_type, form = (holder.get(name) for name in ("url", "data", "media_type", "format"))
    if isinstance(url, str):
        yield url
    if isinstance(data, str) and data:
        kind = media_type if isinstance(media_type, str) else f"{noun}/{_AUDIO_TYPES.get(str(form), form or '*')}"
        yield data if data[:5].lower() == "data:" else f"data:{kind};base64,{data}"


def as_url_part(noun: str, part: Any) -> dict[str, Any] | None:
    """Return the part as `{"type": "image_url", "image_url": {"url": …}}`, or None where it has no address."""
    if not isinstance(part, dict):
        return None
    name = f"{noun}_url"
    held = part.get(name)
    if isinstance(held, dict) and isinstance(held.get("url"), str):
        return dict(part) | {"type": name} if part.get("type") in (None, name) else {"type": name, name: held}
    url = url_of(part, noun)
    return None if url is None else {"type": name, name: {"url": url, **_details(part)}, **_marks(part)}


def as_input_image(part: Any) -> dict[str, Any] | None:
    """Return the part as Responses has it: `{"type": "input_image", "image_url": "…"}`."""
    if not isinstance(part, dict):
        return None
    if part.get("type") == "input_image" and (isinstance(part.get("image_url"), str) or part.get("file_id")):
        return dict(part)
    url = url_of(part, "image")
    held = part.get("image_url")
    details = _details(held if isinstance(held, dict) else part)
    return None if url is None else {"type": "input_image", "image_url": url, **({"detail": "auto"} | details)}


def as_input_audio(part: Any) -> dict[str, Any] | None:
    """Return the part as chat has inline audio: `{"type": "input_audio", "input_audio": {data, format}}`."""
    held = part.get("input_audio") if isinstance(part, dict) else None
    if isinstance(held, dict) and isinstance(held.get("data"), str) and isinstance(held.get("format"), str):
        return dict(part) | {"type": "input_audio"}
    inline = _DATA.fullmatch(url_of(part, "audio") or "") if isinstance(part, dict) else None
    if inline is None:
        return None
    subtype = inline[1].partition("/")[2].lower()
    sound = {"data": inline[2], "format": _AUDIO_FORMATS.get(subtype, subtype)}
    return {"type": "input_audio", "input_audio": sound, **_marks(part)}


def _details(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}


def _marks(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"cache_control": part["cache_control"]} if "cache_control" in part else {}
