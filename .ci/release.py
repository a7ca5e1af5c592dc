"""What must hold before a version is published: version, changelog, tag and built files agree.

``make package`` has built them into dist/. Without an argument the files are looked at; with the
argument ``release`` the changelog must have a date and the tag must stand at this commit as well.
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
LEFT_OUT = re.compile(r"studies/published/.*\.(svg|png|csv|html)")  # by MANIFEST.in


def agreement(version: str, changelog: str, tags: list[str], changed: str) -> list[str]:
    """What is left to do before ``version`` can be published, as sentences.

    ``tags`` are those of this commit, and ``changed`` is what git calls changed since.
    """
    todo = []
    if not VERSION.fullmatch(version):
        todo.append(
            f"lowland.__version__ is {version!r}; expected a number such as 0.2.0 or 0.2.0rc1"
        )
    heading = re.search(r"^## (.*)$", changelog, re.MULTILINE)
    newest = heading[1] if heading else "nothing"
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", newest):
        todo.append(f"CHANGELOG.md begins with {newest!r}; expected '{version} (YYYY-MM-DD)'")
    if changed:
        todo.append(f"there are changes that are not committed: {', '.join(changed.split())}")
    if f"v{version}" not in tags:
        todo.append(f"this commit has no tag v{version}: git tag -a v{version} -m v{version}")
    return todo


def shipped(name: str, version: str, tracked: list[str], wheel: list[str]) -> list[str]:
    """Return what the wheel of a package lacks or has too much, as sentences."""
    inside = re.compile(rf"(?:studies/)?src/({name}/.*)")
    package = {found[1] for file in tracked if (found := inside.fullmatch(file))}
    metadata = f"{name}-{version}.dist-info/"
    packed = {file for file in wheel if not file.startswith(metadata)}
    todo = _told(
        {
            "the wheel lacks": package - packed,
            "the wheel has what git does not track:": packed - package,
        }
    )
    if not any(file.endswith("licenses/LICENSE") for file in wheel):
        todo.append("the wheel has no licence")
    return todo


def completeness(version: str, tracked: list[str], wheel: list[str], sdist: list[str]) -> list[str]:
    """What the built files lack or have too much, as sentences; the arguments are file names."""
    sources = {name for name in tracked if not LEFT_OUT.fullmatch(name)}
    packed = {name.partition("/")[2] for name in sdist}
    made = re.compile(r"PKG-INFO|setup\.cfg|src/lowland\.egg-info/.*")
    comparisons = {
        "the sdist lacks": sources - packed,
        "the sdist has what git does not track:": {
            name for name in packed - sources if not made.fullmatch(name)
        },
    }
    return shipped("lowland", version, tracked, wheel) + _told(comparisons)


def _told(comparisons: dict[str, set[str]]) -> list[str]:
    return [f"{what} {', '.join(sorted(names))}" for what, names in comparisons.items() if names]


def git(*arguments: str) -> str:
    """What a git command prints."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def main(stage: str = "") -> None:
    """Look at dist/, and at the commit for a release; ends with what is left to do, if anything."""
    source = (ROOT / "src/lowland/__init__.py").read_text("utf-8")
    [number] = re.findall(r'^__version__ = "(.*)"$', source, re.MULTILINE)
    wheels = {}
    for name in ("lowland", "lowland_studies"):  # they have one version
        with zipfile.ZipFile(ROOT / f"dist/{name}-{number}-py3-none-any.whl") as archive:
            wheels[name] = archive.namelist()
    with tarfile.open(ROOT / f"dist/lowland-{number}.tar.gz") as archive:
        sdist = [member.name for member in archive if member.isfile()]
    tracked = git("ls-files").splitlines()
    todo = completeness(number, tracked, wheels["lowland"], sdist)
    beside = shipped("lowland_studies", number, tracked, wheels["lowland_studies"])
    todo += [f"of lowland-studies: {what}" for what in beside]
    if stage == "release":
        changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
        tags = git("tag", "--points-at", "HEAD").split()
        todo += agreement(number, changelog, tags, git("diff", "--name-only", "HEAD"))
    if todo:
        sys.exit("\n".join(f"lowland {number}: {what}" for what in todo))
    counts = " and ".join(f"{len(wheel)} in the wheel of {name}" for name, wheel in wheels.items())
    print(f"lowland {number}: {counts}, {len(sdist)} files in the sdist; complete")


if __name__ == "__main__":
    main(*sys.argv[1:])
