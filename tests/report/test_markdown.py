from gatelm.report import markdown


def test_a_table_keeps_its_columns_whatever_a_cell_holds():
    text = markdown.table(["arm", "x"], [["a|b", "1\n2"]], ["left"])
    assert text == "| arm | x |\n| :-- | --: |\n| a\\|b | 1 2 |"


def test_a_section_ends_at_the_next_heading_of_its_level():
    text = "# T\n\n## Reading\n\none\n\n### More\n\n```\n## no heading\n```\n\n## Next\n\ntwo\n"
    expected = "## Reading\n\none\n\n### More\n\n```\n## no heading\n```"
    assert markdown.section(text, "Reading") == expected
    assert markdown.section(text, "Next") == "## Next\n\ntwo"
    assert markdown.section(text, "Absent") is None
    assert markdown.section("```\n## Reading\n```\n", "Reading") is None


def test_folded_blocks_are_still_markdown():
    text = markdown.folded("More", ["| a |", "", "b"])
    assert text == "<details><summary>More</summary>\n\n| a |\n\nb\n\n</details>"
    assert markdown.folded("More", ["", ""]) == ""
