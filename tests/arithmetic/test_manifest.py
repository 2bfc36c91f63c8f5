"""Manifests: what they hold, that our own resolvers understand what they set, and that no value acts in them."""

import re
import shlex
import subprocess

import pytest
import yaml

from phalanx import SettingError
from phalanx.cluster import resolve
from phalanx.manifest.job import Job
from phalanx.manifest.kubernetes import jobset
from phalanx.manifest.scalars import write
from phalanx.manifest.slurm import sbatch

HOSTILE = [
    "$(touch owned)",
    "`touch owned`",
    "a'b\"c\\",
    "two\nlines\n#SBATCH --uid=0",
    "- a: b",
    "*x",
    "yes",
    "2026-01-01",
    "",
    "é\U0001f600\u2028\x85\x7f\x1b[2J",
    "$$HOME ${HOME} $",
    "!!python/object:os.system",
]


def job(*arguments, **options):
    return Job(
        **{
            "arguments": arguments or ("train.py",),
            "workers": 2,
            "name": "digits",
            "image": "registry.example/train:1",
        }
        | options
    )


def parsed(**options):
    tree = yaml.safe_load(jobset(job(**options)))
    (group,) = tree["spec"]["replicatedJobs"]
    spec = group["template"]["spec"]
    return tree, group, spec, spec["template"]["spec"]["containers"][0]


# required fields, as the published schemas of JobSet v1alpha2 and of Kubernetes' batch/v1 and core/v1 list them
REQUIRED = {
    "": ["apiVersion", "kind", "metadata", "spec"],
    "spec.replicatedJobs[]": ["name", "template"],
    "spec.failurePolicy.rules[]": ["name", "action"],
    "spec.replicatedJobs[].template.spec": ["template"],
    "spec.replicatedJobs[].template.spec.podFailurePolicy": ["rules"],
    "spec.replicatedJobs[].template.spec.podFailurePolicy.rules[]": ["action"],
    "spec.replicatedJobs[].template.spec.podFailurePolicy.rules[].onExitCodes": ["operator", "values"],
    "spec.replicatedJobs[].template.spec.template.spec": ["containers"],
    "spec.replicatedJobs[].template.spec.template.spec.containers[]": ["name"],
    "spec.replicatedJobs[].template.spec.template.spec.containers[].env[]": ["name"],
    "spec.replicatedJobs[].template.spec.template.spec.containers[].env[].valueFrom?.fieldRef": ["fieldPath"],
    "spec.replicatedJobs[].template.spec.template.spec.containers[].ports[]": ["containerPort"],
}


def at(tree, path):
    found = [tree]
    for word in filter(None, path.split(".")):
        name, many, optional = (
            word.removesuffix("[]").removesuffix("?"),
            word.endswith("[]"),
            word.endswith("?"),
        )
        found = [each[name] for each in found if not optional or name in each]
        found = [one for each in found for one in each] if many else found
    return found


@pytest.mark.parametrize("path", REQUIRED)
def test_every_field_that_the_schema_requires_is_there(path):
    tree = parsed(max_restarts=2, gpus=4, time="1:00:00")[0]
    found = at(tree, path)
    assert found
    for each in found:
        assert set(REQUIRED[path]) <= each.keys()


def test_a_jobset_is_one_indexed_job_of_all_workers_that_ends_when_one_fails():
    tree, group, spec, container = parsed(workers=3, gpus=4, time="1-00:00:30", max_restarts=2)
    assert (tree["apiVersion"], tree["kind"], group["replicas"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet", 1)
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (
        "Indexed",
        3,
        3,
        0,
    )
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] == 86_430
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    assert container["command"] == ["phalanx", "run", "--replicas", "4", "train.py"]


def test_failures_restart_all_pods_a_preemption_without_counting_and_a_time_limit_never():
    tree, _, spec, _ = parsed(max_restarts=2)
    policy = tree["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 2
    assert {tuple(rule["onJobFailureReasons"]): rule["action"] for rule in policy["rules"]} == {
        ("PodFailurePolicy",): "RestartJobSetAndIgnoreMaxRestarts",
        ("DeadlineExceeded",): "FailJobSet",
    }
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [75]
    assert "rules" not in parsed()[0]["spec"]["failurePolicy"]


@pytest.mark.parametrize("port", [None, 7000])
@pytest.mark.parametrize("index", [0, 2])
def test_the_resolver_finds_the_cluster_in_what_a_pod_of_the_jobset_gets(index, port):
    tree, group, spec, container = parsed(workers=3, port=port)
    name, own = tree["metadata"]["name"], group["name"]
    labels = {  # what the JobSet controller writes on its pods
        "jobset.sigs.k8s.io/jobset-name": name,
        "jobset.sigs.k8s.io/replicatedjob-name": own,
        "jobset.sigs.k8s.io/job-index": "0",
        "jobset.sigs.k8s.io/replicatedjob-replicas": str(group["replicas"]),
    }
    environ = {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"{name}-{own}-0-{index}"}
    for each in container["env"]:
        path = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        environ[each["name"]] = (
            labels[re.fullmatch(r"metadata\.labels\['(.*)'\]", path)[1]] if path else each["value"]
        )
    spec = resolve(environ)
    assert (spec.num_workers, spec.index, spec.source, spec.notes) == (3, index, "Kubernetes JobSet", ())
    assert spec.addresses == tuple(f"digits-workers-0-{each}.digits:{port or 55527}" for each in range(3))
    assert container["ports"] == [{"containerPort": port or 55527}]


def kubelet(text, environ):
    """What Kubernetes' documentation says of `$(NAME)` and `$$`."""
    return re.sub(
        r"\$\$|\$\((.*?)\)", lambda found: "$" if found[0] == "$$" else environ.get(found[1], found[0]), text
    )


@pytest.mark.parametrize("value", HOSTILE)
def test_arguments_reach_the_script_of_a_pod_as_they_are(value):
    container = parsed(arguments=("train.py", value, "-x"))[3]
    assert [kubelet(word, {"HOME": "no", "touch owned": "no"}) for word in container["command"][-2:]] == [
        value,
        "-x",
    ]


# ------------------------------------------------------------------------------------ Slurm


def bash(script, folder, check=False, **environ):
    command = ["bash", "-n"] if check else ["bash"]
    done = subprocess.run(
        command,
        input=script,
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin"} | environ,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.returncode, done.stdout, done.stderr


SRUN = '#!/bin/bash\necho run >> runs\nfor each in "$@"; do printf "%s\\0" "$each"; done\nexit "${CODE:-0}"\n'


@pytest.fixture
def srun(tmp_path):
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "sleep").write_text("#!/bin/bash\n")
    (tmp_path / "sleep").chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("value", HOSTILE)
def test_arguments_reach_the_script_of_a_task_as_they_are(value, restarts, srun):
    script = sbatch(job("train.py", value, "-x", image=None, max_restarts=restarts))
    assert bash(script, srun, check=True)[0] == 0
    code, out, _ = bash(script, srun)
    assert code == 0 and out.split("\0")[-4:-1] == ["train.py", value, "-x"]
    assert sorted(path.name for path in srun.iterdir()) == ["runs", "sleep", "srun"]


def test_slurm_is_asked_for_one_task_on_each_node():
    script = sbatch(job(image=None, gpus=8, time="12:00:00", workers=4))
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", script, re.MULTILINE))
    assert options == {
        "job-name": "digits",
        "nodes": "4",
        "ntasks-per-node": "1",
        "gpus-per-node": "8",
        "time": "12:00:00",
        "output": "%x-%j.out",
    }
    assert shlex.split(script.splitlines()[-1]) == [
        "srun",
        "--kill-on-bad-exit=1",
        "--label",
        "phalanx",
        "run",
        "--replicas",
        "8",
        "train.py",
    ]


def test_the_step_is_started_again_and_the_last_code_is_the_jobs(srun):
    code, _, err = bash(sbatch(job(image=None, max_restarts=2)), srun, CODE="3")
    assert code == 3 and (srun / "runs").read_text().split() == ["run"] * 3
    assert "run 2 of 2 ended with code 3" in err


def test_the_resolver_finds_the_cluster_in_what_srun_sets_with_the_port_of_the_script():
    script = sbatch(job(image=None, port=7000))
    environ = dict(re.findall(r"^export (\S+)=(\S+)$", script, re.MULTILINE))
    environ |= {
        "SLURM_JOB_ID": "5",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_NTASKS": "2",
        "SLURM_TASKS_PER_NODE": "1(x2)",
        "SLURM_PROCID": "1",
    }
    spec = resolve(environ)
    assert (spec.index, spec.addresses) == (1, ("n1:7000", "n2:7000"))


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("options", "received"),
    [
        ({"name": "Train"}, "--name 'Train'"),
        ({"name": "a\nb"}, r"--name 'a\nb'"),
        ({"name": "a" * 41}, "--name"),
        ({"name": ""}, "--name ''"),
        ({"image": "a b"}, "--image 'a b'"),
        ({"image": '"\nkind: Secret'}, "kind: Secret"),
        ({"time": "soon"}, "--time 'soon'"),
        ({"time": "1:00:00\n"}, r"--time '1:00:00\n'"),
        ({"time": "0:00:00"}, "--time '0:00:00'"),
        ({"gpus": 1, "replicas": 2}, "--replicas 2 --gpus 1"),
        ({"arguments": ("train.py", "a\0b")}, r"'a\x00b'"),
        ({"arguments": ("train.py", "\udcff")}, r"'\udcff'"),
        ({"arguments": ("x" * 2**20,)}, "1048576 characters"),
    ],
)
def test_a_value_that_cannot_be_written_is_refused_in_three_parts(options, received):
    with pytest.raises(SettingError) as error:
        job(**options)
    _, second, third = str(error.value).splitlines()
    assert received in second.replace("\\\\", "\\") and len(second) < 400 and third.startswith("  next:     ")


def test_an_image_is_for_pods_only_and_needed_there():
    with pytest.raises(SettingError, match="no --image"):
        jobset(job(image=None))
    with pytest.raises(SettingError, match="--image registry"):
        sbatch(job())


@pytest.mark.parametrize("value", HOSTILE)
def test_yaml_reads_back_what_was_written(value):
    tree = {"a": value, "b": [value, {"c": [value], "d": 3}, True], "e": {"f": {"g": value}}}
    assert yaml.safe_load(write(tree)) == tree
