"The copy drafter's table does not fill up, however many texts one session reads."
import numpy as np

from alphabook.copying import CopyDrafter


def test_a_thousand_texts_in_one_session():
    drafter, rng = CopyDrafter(), np.random.default_rng(0)
    for turn in range(1000):
        drafter.rollback(0)
        drafter.committed(rng.integers(0, 5000, 200).astype(np.int32), prompt=True)
        index = drafter.index
        assert (index.keys != -1).sum() <= 3*len(index.keys)//4, turn
