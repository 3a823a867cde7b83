"""Check every model of HELIX_MODELS: its runner exists and works."""

from __future__ import annotations

import http
import json
import os
import re
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator

from api_client.contract.settings import Settings
from worker.cli.checks.finding import Finding

_ANSWER_SECONDS = 5.0
_MOST_BYTES = 4 * 2**20
_REFUSED = {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}
_PROGRAM_FIX = "install it for the user of the workers, or name it: agent_path in the model's block"
_URL_FIX = "correct HELIX_OPENAI_URL, or url in the model's block of the settings file; is the service running?"
_KEY_FIX = "correct HELIX_OPENAI_API_KEY, or the key of the model's block in the settings file"


def check_models(settings: Settings) -> Iterator[Finding]:
    """Check whether each model's runner works, and yield findings. Ask each model service only once."""
    from worker.agents.model_availability import (
        find_listed_name,
        find_missing_program,
        find_permanent_obstacle,
        try_program,
    )
    from worker.agents.runner_lookup import list_runner_names

    asked: dict[tuple[str, str], Finding | frozenset[str] | None] = {}
    for model, spec in settings.models.items():
        runner = spec.partition(":")[0]
        if problem := find_permanent_obstacle(settings, model):
            yield Finding(f"model {model}", "wrong", problem, _suggest_fix(runner, list_runner_names()))
            continue
        own = settings.for_model(model)
        if why := find_missing_program(settings, model):
            yield Finding(f"model {model}", "warning", f"not on this machine: {why}", _PROGRAM_FIX)
            continue
        yield from check_certified_version(settings, model)
        if why := try_program(settings, model):
            yield Finding(f"model {model}", "wrong", why, _suggest_fix(runner, list_runner_names()))
            continue
        if not (option := find_listed_name(settings, model)):
            yield Finding(f"model {model}", "ok", f"runs with {spec}")
            continue
        service = (own.openai_url, own.openai_api_key)
        if service not in asked:
            asked[service] = list_service_models(*service)
        yield check_listed(model, option, own.openai_url, asked[service], spec)


def list_model_problems(settings: Settings) -> list[str]:
    """Return one line of text for each model that can never work with these settings."""
    from worker.agents.model_availability import find_permanent_obstacle

    found = ((model, find_permanent_obstacle(settings, model)) for model in settings.models)
    return [f"model {model!r}: {problem}" for model, problem in found if problem]


def list_obstacles(settings: Settings) -> list[str]:
    """Return why models cannot run on this machine, such as a missing program."""
    from worker.agents.model_availability import find_obstacle

    return [why for model in settings.models if (why := find_obstacle(settings, model))]


def check_certified_version(settings: Settings, model: str) -> Iterator[Finding]:
    """Yield a warning if the installed version of an agent's program is not the certified version."""
    from worker.agents.model_availability import find_certified_program

    program, wanted = find_certified_program(settings, model)
    try:
        said = _read_version(program) if wanted else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        said = f"nothing: {error}"
    if wanted and not re.search(rf"(?<![\d.]){re.escape(wanted)}(?![\d.])", said):
        fix = f"install {wanted}, or certify this one: turns worker certify {settings.models[model]}"
        yield Finding(f"version {model}", "warning", f"{program} says {said}; certified was {wanted}", fix)


def _read_version(program: str) -> str:
    with tempfile.TemporaryDirectory() as home:
        env = {"HOME": home, "PATH": os.environ.get("PATH", os.defpath), "DISABLE_AUTOUPDATER": "1"}
        done = subprocess.run([program, "--version"], env=env, capture_output=True, timeout=30, check=False)
    return done.stdout.decode("utf-8", "replace").strip()[:200] or "nothing"


def _suggest_fix(runner: str, known: tuple[str, ...]) -> str:
    match runner:
        case "scripted":
            return "correct the path or the script (docs/scripted-agent.md); a relative path counts from HELIX_ROOT"
        case "openai_http":
            return "set HELIX_OPENAI_URL and name the service's model (docs/settings.md)"
    if runner in known or "." in runner:
        return "correct the text after the runner's name, and the model's block (docs/agents.md)"
    return f"name one of {', '.join(known)} in HELIX_MODELS, or install the package that offers it"


def list_service_models(url: str, key: str) -> Finding | frozenset[str] | None:
    """Return the models that a model service lists, None if the service has no list, or a finding about an error."""
    request = urllib.request.Request(f"{url.rstrip('/')}/models")  # noqa: S310 - the operator's own address
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
            body = json.loads(answer.read(_MOST_BYTES))
        return frozenset(str(each["id"]) for each in body["data"])
    except urllib.error.HTTPError as error:
        if error.code in _REFUSED:
            given = "the key" if key else "a request without a key"
            return Finding("", "wrong", f"{url} refuses {given} ({error.code})", _KEY_FIX)
        if error.code == http.HTTPStatus.NOT_FOUND:
            return None
        return Finding("", "wrong", f"{url}/models answers {error.code}", _URL_FIX)
    except (OSError, ValueError) as error:  # unreachable, not HTTP, or not JSON
        reason = getattr(error, "reason", None) or error
        return Finding("", "wrong", f"{url} does not answer: {reason}", _URL_FIX)
    except (KeyError, TypeError):
        return None


def check_listed(
    model: str, option: str, url: str, found: Finding | frozenset[str] | None, spec: str = "openai_http"
) -> Finding:
    """Check that a model service lists the configured model, and return the finding."""
    check = f"model {model}"
    match found:
        case Finding():
            return Finding(check, found.state, found.message, found.fix)
        case None:
            return Finding(check, "ok", f"{url} answers; it lists no models, so {option!r} was not checked")
    if option in found:
        return Finding(check, "ok", f"{url} lists {option!r}")
    some = ", ".join(sorted(found)[:8]) or "none"
    return Finding(
        check,
        "wrong",
        f"{url} does not list {option!r}; it lists {some}",
        f"correct HELIX_MODELS: {model}={spec.removesuffix(f':{option}')}:MODEL",
    )
