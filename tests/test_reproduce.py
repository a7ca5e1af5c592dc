"""The command that makes the papers' figures again."""

import json

from commandline import entries, run


def test_without_a_name_the_studies_are_listed(tmp_path):
    ran = run("reproduce", cwd=tmp_path)
    assert ran.code == 0, ran.err
    for name in ("feng-tu:fig3", "feng-tu:figS11", "tsuzuku:fig4"):
        assert name in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    rows = json.loads(run("reproduce", "--json", cwd=tmp_path).out)
    assert {"name": "feng-tu:fig3", "runs": 80}.items() <= {r["name"]: r for r in rows}[
        "feng-tu:fig3"
    ].items()
    assert entries(tmp_path) == set()


def test_mistakes_are_told_in_a_line(tmp_path):
    for args, words in (
        (("feng-tu:fig33",), "did you mean 'feng-tu:fig3'?"),
        (("--pages", "docs"), "holds no study that was reproduced"),
    ):
        ran = run("reproduce", *args, "--quiet", cwd=tmp_path)
        assert (ran.code, ran.out) == (2, "")
        assert words in ran.err
        assert len(ran.err.splitlines()) == 1
