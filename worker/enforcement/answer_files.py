"""Files of an answer: kept from one attempt to the next by the rule of the content guard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from api_client.contract.issue import ValidationIssue
from worker.enforcement.content_guard import derive_request, find_lost_content
from worker.enforcement.reply_merging import list_candidates


def merge_files(
    old_files: Mapping[str, str],
    errors: Sequence[ValidationIssue],
    answer: str,
    new_files: Mapping[str, str],
    locale: str,
) -> tuple[dict[str, str], list[ValidationIssue]]:
    """Merge the files of a reply into those of the earlier answer. Return all files, and issues about lost content.

    A file changes only if an error named it or the retry asked for a whole answer, and never loses a good section.
    """
    files, missing = dict(old_files), []
    whole = [replace(error, file="", part="") for error in errors if not error.file]
    whole = whole[:1] if derive_request(answer, errors).whole else []
    for name, text in new_files.items():
        old = old_files.get(name)
        asked = [*(replace(error, file="") for error in errors if error.file == name), *whole]
        if old is None or old == text:
            files[name] = text
        elif asked:
            candidates = [each.answer for each in list_candidates(old, asked, text)]
            after = next((each for each in candidates if each != old), old)
            gone = find_lost_content(old, asked, after, locale, check_length=True)
            files[name] = old if gone else after
            missing += [replace(issue, file=name, part="") for issue in gone]
    return files, missing
