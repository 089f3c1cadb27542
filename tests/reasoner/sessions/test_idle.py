"""The idle queue against a dictionary that does the same slowly."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cosmos3_serve.reasoner.sessions.idle import IdleQueue

moves = st.lists(
    st.tuples(st.sampled_from(["park", "take", "oldest"]), st.sampled_from("abcdef"), st.integers(0, 9)), max_size=300
)


@settings(max_examples=60, deadline=None)
@given(moves)
def test_it_is_a_sorted_dictionary(script: list[tuple[str, str, int]]) -> None:
    queue, model = IdleQueue(), dict[str, float]()
    for what, key, since in script:
        if what == "park":
            queue.park(key, since)
            model[key] = since
        elif what == "take":
            queue.take(key)
            model.pop(key, None)
        expected = min(((at, k) for k, at in model.items()), default=None)
        assert queue.oldest() == expected
        assert len(queue) == len(model)


def test_parking_the_same_key_forever_keeps_it_small() -> None:
    queue = IdleQueue()
    for at in range(10_000):
        queue.park("a", at)
    assert len(queue._heap) <= 2 * len(queue) + 64
    assert queue.oldest() == (9_999, "a")
