"""TF_CONFIG: tf.distribute's roles and numbers, and each mistake its own error. Reports row 34."""

import json

import pytest

from phalanx import ClusterError
from phalanx.cluster import tf_config

TWO = {"worker": ["a:2222", "b:2222"]}
FIRST = {"type": "worker", "index": 0}


def parse(cluster=TWO, task=FIRST, **others):
    return tf_config.parse({"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, **others})})


def error_of(text):
    with pytest.raises(ClusterError) as error:
        tf_config.parse({"TF_CONFIG": text})
    rule, received, paste = str(error.value).splitlines()
    assert received.startswith("  received: TF_CONFIG: ") and paste.startswith("  next:     ")
    return rule, received, paste


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": ""}, {"PATH": "/bin"}])
def test_without_tf_config_there_is_nothing_to_say(environ):
    assert tf_config.parse(environ) is None


@pytest.mark.parametrize("index", [0, 1])
def test_without_a_chief_worker_0_is_the_chief(index):
    spec = parse(task={"type": "worker", "index": index})
    assert (spec.num_workers, spec.index, spec.chief, spec.is_chief) == (2, index, 0, index == 0)
    assert (spec.addresses, spec.coordinator, spec.source) == (("a:2222", "b:2222"), "a:2222", "TF_CONFIG")


@pytest.mark.parametrize(("job", "index", "expected"), [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)])
def test_the_chief_is_0_and_worker_i_is_i_plus_1(job, index, expected):
    cluster = {"worker": ["b:1", "c:1"], "chief": ["a:1"]}
    spec = parse(cluster, {"type": job, "index": index})
    assert (spec.index, spec.addresses, spec.is_chief) == (expected, ("a:1", "b:1", "c:1"), expected == 0)


def test_an_evaluator_is_not_counted():
    spec = parse({"chief": ["a:1"], "worker": ["b:1"], "evaluator": ["e:1"]}, {"type": "worker", "index": 0})
    assert (spec.num_workers, spec.index, spec.addresses) == (2, 1, ("a:1", "b:1"))
    assert spec.notes == ("the evaluator is not counted",)


@pytest.mark.parametrize("cluster", [TWO, {**TWO, "evaluator": ["e:1"]}])
def test_the_evaluator_itself_is_a_cluster_of_one_and_says_so(cluster):
    spec = parse(cluster, {"type": "evaluator", "index": 0})
    assert (spec.num_workers, spec.index, spec.is_chief) == (1, 0, True)
    assert "evaluator" in spec.notes[0]


@pytest.mark.parametrize("job", ["worker", "chief"])
def test_a_single_worker_is_an_ordinary_cluster_of_one(job):
    spec = parse({job: ["localhost:2222"]}, {"type": job, "index": 0})
    assert (spec.num_workers, spec.index, spec.addresses) == (1, 0, ("localhost:2222",))


def test_an_index_may_be_text_and_further_fields_are_left_alone():
    task = {"type": "worker", "index": "1", "cloud": "x"}
    assert parse(task=task, environment="cloud", rpc_layer="grpc").index == 1


def test_ipv6_addresses_have_brackets():
    spec = parse({"worker": ["[fe80::1]:1", "[fe80::2]:1"]})
    assert spec.workers == (("fe80::1", 1), ("fe80::2", 1))


def config(cluster=TWO, task=FIRST):
    return json.dumps({"cluster": cluster, "task": task})


MISTAKES = {  # text, what the rule says, what was received, what to do
    "quotes missing": (
        "{cluster: {worker: [a:1]}}",
        "TF_CONFIG is JSON",
        "at character 1",
        "double quotes inside",
    ),
    "single quotes": (
        "{'cluster': {'worker': ['a:1']}}",
        "TF_CONFIG is JSON",
        "at character 1",
        "double quotes inside",
    ),
    "cut off": ('{"cluster": {"worker": ["a:1"', "TF_CONFIG is JSON", "at character 29", "export TF_CONFIG="),
    "a list": ("[1]", "is a JSON object", "[1], a list", "export TF_CONFIG="),
    "null": ("null", "is a JSON object", "None, a NoneType", "export TF_CONFIG="),
    "an empty object": ("{}", "has the field cluster", "no field", "unset TF_CONFIG"),
    "cluster missing": ('{"task": {}}', "has the field cluster", "'task'", '"cluster": {'),
    "cluster empty": (config({}), "cluster is an object of jobs", "cluster={}", '"worker": ["host1:2222"'),
    "cluster a list": (config(["a:1"]), "cluster is an object of jobs", "cluster=['a:1']", '"worker":'),
    "cluster twice": (
        '{"cluster": {"worker": ["a:1"]}, "cluster": {"worker": ["b:1"]}}',
        "stands once",
        "'cluster' stands twice",
        "export TF_CONFIG=",
    ),
    "two chiefs": (
        config({"chief": ["a:1", "b:1"]}, {"type": "chief", "index": 0}),
        "cluster.chief has one address at most",
        "cluster.chief has 2",
        '"chief": ["host0:2222"]',
    ),
    "two evaluators": (
        config({**TWO, "evaluator": ["e:1", "f:1"]}),
        "cluster.evaluator has one address at most",
        "cluster.evaluator has 2",
        '"evaluator": [',
    ),
    "master": (config({"master": ["a:1"]}), "chief; master", "cluster names master", '"chief" instead'),
    "master as a task": (
        config(task={"type": "master", "index": 0}),
        "chief; master",
        "task.type names master",
        '"chief" instead',
    ),
    "ps": (config({**TWO, "ps": ["p:1"]}), "nobody serves parameters", "cluster names ps", "without ps"),
    "unknown type in the cluster": (
        config({"wroker": ["a:1"]}),
        "Types of tasks are chief, worker, evaluator",
        "cluster names 'wroker'",
        '"worker" instead',
    ),
    "unknown type of task": (
        config(task={"type": "boss", "index": 0}),
        "Types of tasks are",
        "task.type names 'boss'",
        '"worker" instead',
    ),
    "type of task not in the cluster": (
        config(task={"type": "chief", "index": 0}),
        "task.type is a job of the cluster",
        "task.type=chief, and cluster has worker",
        '"type": "worker"',
    ),
    "only an evaluator": (
        config({"evaluator": ["e:1"]}, {"type": "evaluator", "index": 0}),
        "cluster has a worker or a chief",
        "evaluator",
        '"worker":',
    ),
    "an address instead of a list": (
        config({"worker": "a:1"}),
        "cluster.worker is a list",
        "cluster.worker='a:1'",
        '"worker": ["host1:2222"]',
    ),
    "an empty list": (config({"worker": []}), "cluster.worker is a list", "cluster.worker=[]", '"worker": ['),
    "an address that is no text": (
        config({"worker": ["a:1", 2]}),
        "cluster.worker[1] is text",
        "cluster.worker[1]=2",
        '"worker": [',
    ),
    "port missing": (
        config({"worker": ["a"]}),
        "cluster.worker[0] ends in a port",
        "cluster.worker[0]='a'",
        "'a:2222'",
    ),
    "port 0000": (
        config({"worker": ["localhost:0000"]}),
        "cluster.worker[0] ends in a port, 1 to 65535",
        "'localhost:0000', whose port is '0000'",
        "host1:2222",
    ),
    "port too large": (config({"worker": ["a:70000"]}), "1 to 65535", "whose port is '70000'", "host1:2222"),
    "port no number": (config({"worker": ["a:http"]}), "1 to 65535", "whose port is 'http'", "host1:2222"),
    "port empty": (config({"worker": ["a:"]}), "1 to 65535", "whose port is ''", "host1:2222"),
    "host empty": (config({"worker": [":1"]}), "has a host name", "cluster.worker[0]=':1'", "host1:2222"),
    "a URL": (
        config({"worker": ["grpc://a:1"]}),
        "is a name of",
        "cluster.worker[0]='grpc://a:1'",
        "host1:2222",
    ),
    "two equal addresses": (
        config({"worker": ["a:1", "b:1", "a:1"]}),
        "Each task has an address of its own",
        "cluster.worker[0] and cluster.worker[2] are both 'a:1'",
        "'a:2222' and 'a:2223'",
    ),
    "chief and worker with one address": (
        config({"chief": ["a:1"], "worker": ["A:1"]}),
        "Each task has an address of its own",
        "cluster.chief[0] and cluster.worker[0] are both",
        "on one machine, two ports",
    ),
    "task missing": (
        '{"cluster": {"worker": ["a:1"]}}',
        "has the field task",
        "task is missing",
        '"task": {',
    ),
    "task a number": (config(task=1), "task is an object", "task=1", '"task": {'),
    "type missing": (
        config(task={"index": 0}),
        "task has the field type",
        "{'index': 0}",
        '"type": "worker"',
    ),
    "index missing": (
        config(task={"type": "worker"}),
        "task has the field index",
        "{'type': 'worker'}",
        '"index": 0',
    ),
    "index 2 of 2": (
        config(task={"type": "worker", "index": 2}),
        "task.index is 0 to 1",
        "task.index='2'",
        '"index": 1}   # 0 to 1',
    ),
    "negative index": (
        config(task={"type": "worker", "index": -1}),
        "whole number, 0 to 1",
        "'-1'",
        "0 to 1",
    ),
    "index a fraction": (config(task={"type": "worker", "index": 0.5}), "whole number", "=0.5", "0 to 1"),
    "index true": (config(task={"type": "worker", "index": True}), "whole number", "=True", "0 to 1"),
    "index null": (config(task={"type": "worker", "index": None}), "whole number", "=None", "0 to 1"),
    "type a list": (
        config(task={"type": ["worker"], "index": 0}),
        "Types of tasks",
        "['worker']",
        '"worker"',
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_each_mistake_has_an_error_of_its_own_that_names_the_field_and_the_fix(case):
    text, *wanted = MISTAKES[case]
    for part, words in zip(error_of(text), wanted, strict=True):
        assert words in part, part


def test_the_loopback_address_of_one_machine_among_others_is_refused_before_anything_connects():
    with pytest.raises(ClusterError) as error:
        parse({"worker": ["node1:1", "127.0.1.1:1"]})
    assert "TF_CONFIG: worker 1 is at 127.0.1.1:1" in str(error.value)
    assert "hostname -f" in str(error.value)


def test_two_processes_with_the_same_index_are_two_valid_configs():
    """Found when they connect, not here: each of them is right by itself."""
    assert parse() == parse()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"cluster": ' + "[" * 5_000 + "]" * 5_000 + "}", "9" * 5_000]
)
def test_endless_nesting_and_digits_are_errors_and_no_crash(text):
    assert all(len(part) < 500 for part in error_of(text))
