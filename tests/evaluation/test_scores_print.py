"""What ``print(evaluate(...))`` shows."""

from congruence.evaluation import Score, Scores


def test_scores_print_as_a_table_with_the_notes_below():
    near = Score(
        "zero_shot", "aligned image", "target text", 0.85, before=0.005, source=0.886, target=0.909, n=3, chance=0.01
    )
    far = Score("cosine", "aligned text", "target text", 0.5, n=3)
    first, second, third, note = str(Scores([near, far], notes=["few rows"])).splitlines()
    assert first.split() == ["score", "before", "after", "source", "target", "chance"]
    assert second.split()[-5:] == ["0.005", "0.850", "0.886", "0.909", "0.010"]
    assert second.startswith("zero_shot: aligned image, target text ")
    assert third.split()[-5:] == ["-", "0.500", "-", "-", "-"]
    assert len(first) == len(second) == len(third)
    assert note == "few rows"
