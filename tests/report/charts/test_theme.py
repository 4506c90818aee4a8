import re

from gatelm.report.charts.theme import ARM_COLORS, BASELINE, Palette


def luminance(color: str) -> float:
    channels = [int(pair, 16) / 255 for pair in re.findall("..", color[1:])]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_an_arm_keeps_its_colour_in_every_chart() -> None:
    palette = Palette.of_arms(["none", "a", "b", "a", "c"], ["none"])
    assert palette.of("none") == BASELINE
    assert [palette.of(arm) for arm in "abc"] == list(ARM_COLORS[:3])
    few = palette.scale(["c", "none"]).to_dict()
    assert few == {"domain": ["c", "none"], "range": [ARM_COLORS[2], BASELINE]}


def test_colours_differ_and_show_on_white() -> None:
    colors = [BASELINE, *ARM_COLORS]
    assert len(set(colors)) == len(colors)
    assert min(1.05 / (luminance(color) + 0.05) for color in colors) > 2.2


def test_more_arms_than_colours_still_have_one() -> None:
    arms = [str(i) for i in range(30)]
    assert all(Palette.of_arms(arms).of(arm) in ARM_COLORS for arm in arms)
