"""Slurm: hosts, tasks and ports as Slurm means them. Reports row 54."""

import pytest

from phalanx import ClusterError
from phalanx.cluster import slurm
from phalanx.cluster.fields import IncompleteError
from phalanx.cluster.hostlist import MOST_HOSTS, expand, tasks_per_node

ROW_54 = {
    "SLURM_STEP_NODELIST": "node[01,09]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "4711",
}


def step(nodes="n[1-2]", tasks="2", index="0", **others):
    environ = {
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_PROCID": index,
        "SLURM_JOB_ID": "1",
    }
    return slurm.parse(environ | others)


def hosts(spec):
    return [host for host, _ in spec.workers]


# Lists of hosts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1", ["node1"]),
        ("node[01,09]", ["node01", "node09"]),
        ("a1,b[2-3]", ["a1", "b2", "b3"]),
        ("n[009-011]", ["n009", "n010", "n011"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[99-101]", ["n99", "n100", "n101"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("a[1,3-4]b[5]c,d", ["a1b5c", "a3b5c", "a4b5c", "d"]),
        ("n[1-2].example.com", ["n1.example.com", "n2.example.com"]),
        ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
    ],
)
def test_a_list_of_hosts_expands_as_slurm_expands_it(text, expected):
    assert list(expand("X", text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "n[1",
        "n1]",
        "n[1-[2]]",
        "n[]",
        "n[a]",
        "n[1-]",
        "n[2-1]",
        "n[1,]",
        ",a",
        "a,,b",
        "",
        "n[0-999999999]",
        "n[1 - 2]",
    ]
    + [
        "[0-999][0-999]",
        "[0-9][0-9][0-9][0-9][0-9]",
        "n[" + "1," * MOST_HOSTS + "1]",
        "a," * MOST_HOSTS + "a",
    ],
    ids=lambda text: text[:30],
)
def test_other_lists_are_errors_that_name_the_variable_and_stay_short(text):
    with pytest.raises(ClusterError) as error:
        expand("SLURM_STEP_NODELIST", text)
    assert "SLURM_STEP_NODELIST=" in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("text", "nodes", "expected"),
    [
        ("2", 1, (2,)),
        ("2(x2),1", 3, (2, 2, 1)),
        ("1,2,3", 3, (1, 2, 3)),
        ("4(x1)", 1, (4,)),
        ("0,2", 2, (0, 2)),
    ],
)
def test_tasks_per_node_expand(text, nodes, expected):
    assert tasks_per_node("X", text, nodes) == expected


@pytest.mark.parametrize(
    "text", ["", "2(x2)", "2(x4)", "2,2,2,2", "2(x)", "(x3)", "2x3", "2(x3", "-1(x3)", "2(x999999)"]
)
def test_other_tasks_per_node_are_errors_that_name_the_variable(text):
    with pytest.raises(ClusterError, match="SLURM_TASKS_PER_NODE="):
        tasks_per_node("SLURM_TASKS_PER_NODE", text, 3)


# The cluster


def test_without_slurm_there_is_nothing_to_say():
    assert slurm.parse({"SLURM_CONF": "/etc/slurm.conf"}) is None


def test_four_tasks_on_two_nodes_have_consecutive_ports_on_each():
    spec = slurm.parse(ROW_54)
    first = spec.workers[0][1]
    assert spec.workers == (
        ("node01", first),
        ("node01", first + 1),
        ("node09", first),
        ("node09", first + 1),
    )
    assert (spec.index, spec.num_workers, spec.is_chief, spec.notes) == (3, 4, False, ())
    assert spec.coordinator == f"node01:{first}"


def test_the_same_without_a_job_id_has_a_port_and_a_note():
    environ = {name: value for name, value in ROW_54.items() if name != "SLURM_JOB_ID"}
    spec = slurm.parse(environ)
    assert hosts(spec) == ["node01", "node01", "node09", "node09"]
    assert spec.index == 3 and "no SLURM_JOB_ID" in spec.notes[0]


def test_a1_and_b2_to_3_are_three_hosts():
    assert hosts(step("a1,b[2-3]", "3")) == ["a1", "b2", "b3"]


def test_all_tasks_of_a_job_agree_on_every_address():
    specs = [step("n[1-3]", "5", str(i), SLURM_TASKS_PER_NODE="2(x2),1") for i in range(5)]
    assert len({spec.addresses for spec in specs}) == 1
    assert [spec.index for spec in specs] == [0, 1, 2, 3, 4]
    assert hosts(specs[0]) == ["n1", "n1", "n2", "n2", "n3"]


def test_neighbouring_jobs_and_steps_have_ports_of_their_own():
    taken = [{port for _, port in step("n1", "16", "0", SLURM_JOB_ID=str(job)).workers} for job in range(240)]
    assert len(set.union(*taken)) == 240 * 16
    assert min(set.union(*taken)) == 61440 and max(set.union(*taken)) < 65536
    assert step(SLURM_STEP_ID="1").workers != step(SLURM_STEP_ID="0").workers


def test_the_steps_own_numbers_stand_before_the_jobs():
    spec = step(
        "n[2-3]", "2", "1", SLURM_NTASKS="8", SLURM_JOB_NODELIST="n[1-4]",
        SLURM_STEP_TASKS_PER_NODE="1(x2)", SLURM_TASKS_PER_NODE="2(x4)",
    )  # fmt: skip
    assert hosts(spec) == ["n2", "n3"]


def test_cyclic_tasks_go_round_the_nodes():
    spec = step("n[1-2]", "3", "1", SLURM_TASKS_PER_NODE="2,1", SLURM_DISTRIBUTION="cyclic", SLURM_NODEID="1")
    assert hosts(spec) == ["n1", "n2", "n1"]


@pytest.mark.parametrize("way", ["plane=2", "arbitrary", "$(id)"])
def test_an_unknown_distribution_is_an_error_unless_each_node_has_one_task(way):
    with pytest.raises(ClusterError, match="SLURM_DISTRIBUTION="):
        step("n[1-2]", "4", SLURM_DISTRIBUTION=way)
    assert hosts(step("n[1-2]", "2", SLURM_DISTRIBUTION=way)) == ["n1", "n2"]


def test_one_task_is_a_cluster_of_one():
    assert (step("n1", "1").num_workers, step("n1", "1").is_chief) == (1, True)


WRONG = {
    "index 4 of 4": ({"SLURM_PROCID": "4"}, "SLURM_PROCID='4'"),
    "no number of tasks": ({"SLURM_NTASKS": "many"}, "SLURM_NTASKS='many'"),
    "tasks that do not sum": ({"SLURM_TASKS_PER_NODE": "1(x2)"}, "is 2 tasks, and SLURM_NTASKS=4"),
    "another place on the node": (
        {"SLURM_LOCALID": "0"},
        "is SLURM_LOCALID=1 by that count, and Slurm says 0",
    ),
    "another node": ({"SLURM_NODEID": "0"}, "is SLURM_NODEID=1 by that count"),
    "a job that is no number": ({"SLURM_JOB_ID": "x"}, "SLURM_JOB_ID='x'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_numbers_that_contradict_each_other_are_an_error_with_both(case):
    wrong, received = WRONG[case]
    with pytest.raises(ClusterError) as error:
        slurm.parse(ROW_54 | wrong)
    assert received in str(error.value) and "next:     srun" in str(error.value)


def test_uneven_tasks_without_their_numbers_are_incomplete():
    with pytest.raises(IncompleteError, match="3 tasks on 2 nodes"):
        step("n[1-2]", "3")


def test_more_tasks_on_a_node_than_ports_are_an_error():
    with pytest.raises(ClusterError, match="5000 tasks on a node"):
        step("n1", "5000", SLURM_JOB_ID="0")


# Not started by srun


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n1"},
        {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]"},
        {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2"},
    ],
)
def test_several_tasks_that_srun_did_not_start_are_never_quietly_one_worker(environ):
    with pytest.raises(IncompleteError) as error:
        slurm.parse(environ)
    assert "started without srun" in str(error.value) and "next:     srun python" in str(error.value)


@pytest.mark.parametrize("step_id", ["4294967290", "4294967291"], ids=["interactive", "batch"])
def test_an_interactive_shell_in_an_allocation_of_several_tasks_is_none_of_them(step_id):
    shell = {"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    shell |= {"SLURM_PROCID": "0", "SLURM_STEP_ID": step_id, "SLURM_JOB_ID": "1"}
    with pytest.raises(IncompleteError, match="4 tasks on 2 nodes"):
        slurm.parse(shell | {"SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n[1-2]"})
    assert slurm.parse(shell | {"SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "n1"}).num_workers == 1


def test_a_shell_in_an_allocation_of_one_task_is_one_worker_and_says_so():
    spec = slurm.parse({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1"})
    assert (spec.num_workers, spec.notes) == (1, ("an allocation of one task, started without srun",))


def test_a_step_without_a_task_number_is_incomplete():
    with pytest.raises(IncompleteError, match="without SLURM_PROCID"):
        slurm.parse({name: value for name, value in ROW_54.items() if name != "SLURM_PROCID"})


@pytest.mark.parametrize("prefix", ["OMPI_COMM_WORLD", "PMI"])
def test_slurms_tasks_give_way_where_mpirun_inside_of_them_counts_otherwise(prefix):
    mpi = {f"{prefix}_RANK": "5", f"{prefix}_SIZE": "8"}
    with pytest.raises(IncompleteError, match="mpirun's daemons"):
        slurm.parse(ROW_54 | mpi)
    with pytest.raises(IncompleteError, match="mpirun's daemons"):
        slurm.parse({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1"} | mpi)


def test_slurms_tasks_stand_where_pmi_repeats_their_numbers():
    assert slurm.parse(ROW_54 | {"PMI_RANK": "3", "PMI_SIZE": "4", "PMIX_RANK": "3"}).index == 3
