"""SIGTERM in workers that train: JAX must not swallow it."""

import signal

from tests.fleet.workers import Fleet

SCRIPT = """
from phalanx.host.interrupts import Notice
strategy = cluster()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
class Look(keras.callbacks.Callback):
    told = False
    def on_train_batch_end(self, batch, logs=None):
        if batch == 100:
            print("training", flush=True)
        if notice.seen() and not self.told:
            self.told = True
            print("seen", flush=True)
    def on_epoch_end(self, epoch, logs=None):
        if any(strategy.gather(self.told)):
            self.model.stop_training = True
with Notice() as notice:
    model.fit(np.tile(X, (200, 1)), np.tile(Y, (200, 1)), batch_size=64, epochs=1000, verbose=0, callbacks=[Look()])
    print("result", json.dumps(notice.seen()), flush=True)
    sys.exit(75)
"""


def test_a_worker_in_the_middle_of_training_hears_of_it_and_leaves_as_it_likes(tmp_path):
    with Fleet(SCRIPT, tmp_path) as fleet:
        assert fleet.line(0) == fleet.line(1) == "training"
        fleet.kill(1, signal.SIGTERM)
        assert fleet.line(1) == "seen"
        fleet.kill(1, signal.SIGTERM)
        ended = fleet.wait(90)
    assert {index: (each.code, each.results) for index, each in ended.items()} == {
        0: (75, [None]),
        1: (75, ["SIGTERM"]),
    }, ended
