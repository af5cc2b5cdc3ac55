"""The Markdown file of all experiments: what it takes from them, and what it keeps of a person's words."""

import pytest
from study_folders import write_study

from fl_app.experiments.site import write_results

TABLE = "|  | Baseline |\n| --- | --- |\n| SSIM | 0.9 (0.954) |\n"


@pytest.fixture
def multirun(tmp_path):
    folder = tmp_path / "multirun"
    first = write_study(folder / "dgp_table1" / "cpu")
    (first / "table.md").write_text(TABLE)
    write_study(
        folder / "dlg_fig3" / "cpu",
        name="dlg_fig3",
        paper="dlg",
        change=lambda study: study.update(what="Figure 3", title="Leaks"),
    )
    return folder


def test_tables_verdicts_and_commands_are_the_experiments_own(multirun, tmp_path):
    text = write_results([multirun], tmp_path / "results.md").read_text()
    assert TABLE.strip() in text
    assert "`fl-app -m experiment=dgp_table1` · 3 of 3 cells · seed 0 · measured " in text
    assert "LeNet instead of ResNet-18, 20 images." in text
    assert "| top-k leaks less than nothing | **refuted** | exploratory |" in text
    assert "8 claims: 2 × holds, 2 × refuted, 2 × not decided, 2 × not measured." in text
    assert "- ATS with trained policies: they take days" in text
    assert text.index("## Xue et al.") < text.index("### Table 1") < text.index("## Zhu et al.")


def test_only_the_figures_of_papers_are_shown(multirun, tmp_path):
    text = write_results([multirun], tmp_path / "results.md").read_text()
    assert "![Accuracy over rounds](results/dlg_fig3-cpu-1.png)" in text
    assert [picture.name for picture in (tmp_path / "results").glob("*.png")] == ["dlg_fig3-cpu-1.png"]


def test_files_for_programs_are_published_beside_the_page(multirun, tmp_path):
    (multirun / "dgp_table1" / "cpu" / "units.csv").write_text("schema\n")
    write_results([multirun], tmp_path / "results.md")
    published = {file.name for file in (tmp_path / "results" / "dgp_table1-cpu").iterdir()}
    assert published == {"study.json", "table.md", "table.csv", "units.csv"}


def test_the_first_page_has_five_lines_a_paper_and_leads_to_the_claims(multirun, tmp_path):
    text = write_results([multirun], tmp_path / "results.md").read_text()
    short = text[text.index("## In short") : text.index("## Counts")]
    for verdict in ("holds", "refuted", "equivalent", "not decided", "not measured"):
        assert short.count(f"- *{verdict}*: ") == 2
    assert "](#dgp_table1-cpu)" in short
    assert "](#dlg_fig3-cpu)" in short


def test_words_are_kept_with_their_experiment(multirun, tmp_path):
    file = write_results([multirun], tmp_path / "results.md")
    before = file.read_text()
    words = "In words: top-k leaks\nmore than the paper says."
    place = before.index("Not reproduced:", before.index('id="dgp_table1-cpu"'))
    file.write_text(before[:place] + f"{words}\n\n" + before[place:])
    edited = file.read_text()
    assert write_results([multirun], file).read_text() == edited
    assert edited.index(words) < edited.index('id="dlg_fig3-cpu"')


def test_words_at_the_end_of_the_file_are_kept_as_they_are(multirun, tmp_path):
    file = write_results([multirun], tmp_path / "results.md")
    file.write_text(file.read_text().rpartition("Not reproduced:")[0] + "In words: the last ones.\n")
    for _ in range(2):
        assert write_results([multirun], file).read_text().count("\nIn words: the last ones.\n\nNot") == 1


def test_words_on_what_is_gone_are_not_thrown_away(multirun, tmp_path):
    file = tmp_path / "results.md"
    file.write_text('<a id="gone-cpu"></a>\n### Gone\n\nIn words: it was so.\n')
    with pytest.raises(ValueError, match=r"has words on gone-cpu, but no study\.json"):
        write_results([multirun], file)
    assert "it was so" in file.read_text()


def test_tables_of_a_command_with_overrides_are_left_out(multirun, tmp_path):
    write_study(multirun / "dgp_table1" / "cpu" / "variant-1a2b3c4d")
    text = write_results([multirun], tmp_path / "results.md").read_text()
    assert text.count('<a id="dgp_table1-cpu"></a>') == 1


def test_another_kind_of_file_and_an_empty_folder_are_refused(multirun, tmp_path):
    with pytest.raises(ValueError, match=r"ends in \.md"):
        write_results([multirun], tmp_path / "results")
    with pytest.raises(FileNotFoundError, match=r"study\.json"):
        write_results([tmp_path / "nothing"], tmp_path / "results.md")
