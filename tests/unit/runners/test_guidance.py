"""Skills and instruction files of a model: wrong ones are refused by name, and agents see what is named and no more."""

from pathlib import Path
from typing import Any

import pytest

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings, load_settings
from tests.guidance import CANARY, INSTRUCTION, project, skill, write
from tests.runs import ordered
from worker.runners.guidance import link_skills, list_skills, read_instructions, readable_paths


def loaded(root: Path, block: str, rest: str = "") -> Settings:
    write(root / ".helix/helix.toml", f'{rest}\n[model.m]\nrunner = "claude_cli"\n{block}\n')
    return load_settings({"HELIX_ROOT": str(root)})


def guided(root: Path, home: Path, **more: Any) -> Settings:
    return Settings(root=root, **(project(root, home) | more))


def shown(settings: Settings) -> set[str]:
    """Return all files that a model's agents may read, relative to the project."""
    paths = [each for path in readable_paths(settings) for each in ([path] if path.is_file() else path.rglob("*"))]
    return {str(path.relative_to(settings.root)) for path in paths if path.is_file()}


WRONG = {
    "missing": ('skills = ["nowhere"]', "nowhere: no such file or folder in HELIX_ROOT"),
    "absolute": ('skills = ["/etc"]', "/etc: must be a path below HELIX_ROOT"),
    "above": ('instructions = ["../x"]', "../x: must be a path below HELIX_ROOT"),
    "the project": ('skills = ["."]', ".: must be a path below HELIX_ROOT"),
    "a link out": ('skills = ["out"]', "out: a link that leads out of HELIX_ROOT"),
    "a link inside it": ('skills = ["leaking"]', "leaking/one/etc: a link that leads out of HELIX_ROOT"),
    "our state": ('instructions = [".helix/keys"]', ".helix/keys: must not be in .helix or projects"),
    "a link to a session": ('instructions = ["to-session"]', "to-session: must not be in .helix or projects"),
    "no skill": ('skills = ["team"]', "team: no skill in it, which is a folder with SKILL.md"),
    "a file": ('skills = ["team/house.md"]', "team/house.md: no skill in it"),
    "a folder": ('instructions = ["team"]', "team: must be a file"),
    "no text": ('instructions = ["image"]', "image: cannot be read as UTF-8"),
    "twice": ('skills = ["team/skills", "again"]', "again: a second 'review'"),
    "no list": ('skills = "team/skills"', "must be a list of texts"),
    "writable": ('skills = ["team/skills"]\nwritable = ["team"]', "team/skills: agents may write there (writable)"),
    "another's": ('skills = ["team/skills"]\n[model.o]\nrunner = "claude_cli"\nwritable = ["team"]', "may write there"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    project(root, tmp_path / "home")
    write(root / "again/review/SKILL.md", skill("review", "again"))
    write(root / "leaking/one/SKILL.md", skill("one", "leaks"))
    write(root / ".helix/keys", "secret")
    write(root / "projects/sessions/s/output/response.md", "written by an agent")
    (root / "leaking/one/etc").symlink_to("/etc")
    (root / "out").symlink_to(tmp_path / "home")
    (root / "to-session").symlink_to(root / "projects/sessions/s/output/response.md")
    (root / "image").write_bytes(b"\x89PNG\xff")
    return root


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_path_is_refused_when_settings_are_loaded(root: Path, case: str) -> None:
    block, problem = WRONG[case]
    with pytest.raises(SettingsError) as refused:
        loaded(root, block)
    assert problem in str(refused.value)


def test_all_wrong_paths_are_reported_at_once_with_their_lines(root: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        loaded(root, 'skills = ["nowhere", "out"]\ninstructions = ["/etc/passwd"]', 'locale = "xx"')
    said = str(refused.value)
    assert ".helix/helix.toml:4:10: model.m.skills: nowhere: no such" in said
    assert "; out: a link that leads out" in said
    assert ".helix/helix.toml:5:16: model.m.instructions: /etc/passwd: must be" in said
    assert "locale: must be one of" in said


@pytest.mark.parametrize(("runner", "key"), [("scripted", "instructions"), ("openai_http", "skills")])
def test_a_runner_without_files_takes_no_skills(root: Path, runner: str, key: str) -> None:
    write(root / ".helix/helix.toml", f'[model.m]\nrunner = "{runner}"\n{key} = ["team/skills"]\n')
    with pytest.raises(SettingsError, match=rf"model.m.{key}: no such setting"):
        load_settings({"HELIX_ROOT": str(root)})


def test_a_model_reads_what_its_block_names_and_nothing_that_others_name(tmp_path: Path) -> None:
    settings = guided(tmp_path / "root", tmp_path / "home")
    assert shown(settings) == {"src.py", "team/house.md", "team/skills/review/SKILL.md", "team/skills/review/data.txt"}
    assert shown(settings.for_model("other")) == {"src.py", "team/more/pay/SKILL.md", "team/other.md"}
    assert shown(settings.for_model("third")) == shown(settings)
    nobodys = Settings(root=settings.root)
    assert not {path for path in shown(nobodys) if "skills/own" in path or path.endswith(("AGENTS.md", "CLAUDE.md"))}


def test_the_projects_own_are_read_where_a_block_names_them(tmp_path: Path) -> None:
    own = {"skills": ("skills",), "instructions": ("AGENTS.md", ".claude/CLAUDE.md")}
    settings = guided(tmp_path / "root", tmp_path / "home", **own)
    assert {"skills/own/SKILL.md", "AGENTS.md", ".claude/CLAUDE.md"} <= shown(settings)
    assert "CLAUDE.md" not in shown(settings)
    assert list(list_skills(settings)) == ["own"]


def test_of_a_folder_that_another_model_names_as_a_whole_a_model_sees_the_one_skill_that_it_names(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    others = {"other": {"skills": ("team/skills",)}}
    settings = guided(root, tmp_path / "home", skills=("team/skills/review",), model_settings=others)
    write(root / "team/skills/second/SKILL.md", skill("second", CANARY))
    assert {path for path in shown(settings) if "skills/" in path} == {
        "team/skills/review/SKILL.md",
        "team/skills/review/data.txt",
    }
    link_skills(settings, tmp_path / "run/skills")
    links = list((tmp_path / "run/skills").iterdir())
    assert [(each.name, each.resolve()) for each in links] == [("review", root / "team/skills/review")]


def test_instructions_follow_the_sessions_own_and_a_reviewer_that_only_reads_gets_none(tmp_path: Path) -> None:
    settings = guided(tmp_path / "root", tmp_path / "home")
    workdir = tmp_path / "s"
    order = ordered(workdir, "turn", 1, "Hallo")
    write(workdir / "CLAUDE.md", "# Session")
    assert read_instructions(order, settings) == f"# Session\n\n{INSTRUCTION}\n"
    reader = ordered(workdir, "turn", 2, "Hallo", read_only=True)
    assert read_instructions(reader, settings) == "# Session"


def test_a_path_that_became_wrong_after_the_start_is_an_error_of_the_run(tmp_path: Path) -> None:
    settings = guided(tmp_path / "root", tmp_path / "home")
    (settings.root / "team/skills/review/way-out").symlink_to("/etc")
    with pytest.raises(SettingsError, match="way-out: a link that leads out of HELIX_ROOT"):
        readable_paths(settings)
