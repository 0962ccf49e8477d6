#!/usr/bin/env python3
"""The manifests of deploy/kubernetes/: what they name in each other exists, a pod gets the time that its
baton needs to stop, and `baton serve --check` accepts the arguments of each baton.
Usage: kubernetes.py BATON MANIFESTS MODEL FAKECUDA
"""
import pathlib
import re
import subprocess
import sys
import tempfile

import yaml

STOP_MARGIN_S = 10  # beyond --drain-delay and --drain-timeout
wrong = []
n_checked = 0


def check(true, message):
    global n_checked
    n_checked += 1
    if not true:
        wrong.append(message)


def options_of(container):
    return dict(arg.removeprefix("--").split("=", 1) for arg in container["args"])


def check_program(baton, cuda, container, where, paths):
    """The paths in the container's arguments are replaced by those of this machine, and its ports by free ones."""
    command = [baton, "serve", "--check"]
    if {"device", "stage"} & options_of(container).keys():
        command.append(f"--cuda-library={cuda}")
    for arg in container["args"]:
        for inside, outside in paths.items():
            arg = re.sub(rf"={re.escape(inside)}$", "=" + outside, arg)
        command.append(re.sub(r"^(--[a-z-]*listen=.*):\d+$", r"\1:0", arg))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    check(done.returncode == 0, f"{where}: {' '.join(command)}: {done.stderr}{done.stdout}")
    check("configuration: ok" in done.stdout, f"{where}: {done.stdout}")


def check_stop(pod, container, where):
    options = options_of(container)
    longest_s = (int(options.get("drain-delay", 0)) + int(options.get("drain-timeout", 30000))) / 1000
    grace_s = pod.get("terminationGracePeriodSeconds", 30)
    check(grace_s >= longest_s + STOP_MARGIN_S, f"{where}: killed after {grace_s} s, may drain for {longest_s} s")
    for other in pod["containers"]:
        if other is not container:
            sleep_s = int(other["lifecycle"]["preStop"]["exec"]["command"][1])
            check(longest_s < sleep_s < grace_s, f"{where}: the other container ends after {sleep_s} s")


def check_pod(spec, where):
    template = spec["template"]
    check(spec["selector"]["matchLabels"] == template["metadata"]["labels"], f"{where}: the selector")
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
    mounts = {mount["name"] for container in template["spec"]["containers"] for mount in container["volumeMounts"]}
    check(mounts == volumes, f"{where}: volumes {volumes}, mounts {mounts}")


def check_baton(pod, container, where):
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listeners = {int(value.rpartition(":")[2])
                 for name, value in options_of(container).items() if name.endswith("listen")}
    check(set(ports.values()) == listeners, f"{where}: ports {ports}, listeners {listeners}")
    for probe, paths in (("livenessProbe", ["/livez"]), ("readinessProbe", ["/readyz", "/readyz?for=control"])):
        get = container[probe]["httpGet"]
        check(get["port"] == "health" and get["path"] in paths, f"{where}: {probe} {get}")
    check_stop(pod, container, where)


def check_first_update(pod, services, where):
    """A pod that is not ready, since it has no weights yet, must be reached by its first update."""
    labels = pod["spec"]["template"]["metadata"]["labels"].items()
    probes = [container["readinessProbe"]["httpGet"]["path"] for container in pod["spec"]["template"]["spec"]["containers"]
              if container["name"] == "baton"]
    through = [service for service in services if service["spec"]["selector"].items() <= labels
               and (service["spec"].get("publishNotReadyAddresses") or probes == ["/readyz?for=control"])]
    check(through, f"{where}: no Service reaches it before its first update")


def check_service(service, pods, where):
    labels = service["spec"]["selector"].items()
    chosen = [pod for pod in pods if labels <= pod["spec"]["template"]["metadata"]["labels"].items()]
    check(len(chosen) == 1, f"{where}: the Service chooses {len(chosen)} workloads")
    names = {port["name"] for pod in chosen for container in pod["spec"]["template"]["spec"]["containers"]
             for port in container.get("ports", [])}
    for port in service["spec"]["ports"]:
        check(port["targetPort"] in names, f"{where}: there is no port {port['targetPort']}")


def main():
    baton, manifests, model, cuda = sys.argv[1:]
    with tempfile.TemporaryDirectory() as work:
        keys = pathlib.Path(work, "keys")
        keys.write_text("control 0123456789abcdef0123456789abcdef\n")
        keys.chmod(0o600)
        upstream = pathlib.Path(work, "upstream")
        upstream.write_text("0123456789abcdef0123456789abcdef\n")
        upstream.chmod(0o600)
        pathlib.Path(work, "state").mkdir()
        paths = {"/model/model.safetensors": f"{model}/checkpoints/step-00000.safetensors", "/model": model,
                 "/etc/baton/keys": str(keys),
                 "/etc/baton/upstream": str(upstream), "/var/lib/baton/state": f"{work}/state"}
        n_batons = 0
        for path in sorted(pathlib.Path(manifests).glob("*.yaml")):
            documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
            pods = [document for document in documents if document["kind"] in ("StatefulSet", "Deployment")]
            for document in documents:
                where = f"{path.name}: {document['kind']} {document['metadata']['name']}"
                if document["kind"] == "Service":
                    check_service(document, pods, where)
            for document in pods:
                where = f"{path.name}: {document['kind']} {document['metadata']['name']}"
                check_first_update(document, [d for d in documents if d["kind"] == "Service"], where)
                pod = document["spec"]["template"]["spec"]
                check_pod(document["spec"], where)
                for container in pod["containers"]:
                    if container["name"] == "baton":
                        n_batons += 1
                        check_baton(pod, container, where)
                        check_program(baton, cuda, container, where, paths)
        check(n_batons >= 5, f"only {n_batons} batons in {manifests}")
    print("\n".join([*wrong, f"{n_checked} checks, {len(wrong)} failed"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
