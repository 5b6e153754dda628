#!/usr/bin/env python3
"""Checks docker-compose.yml, the Dockerfile and deploy/k8s, as far as that goes without Docker.

    .tools/venv/bin/python scripts/check_compose.py PATH/TO/flash-sale

Run it with the Python that `scripts/setup.sh ci` prepares. It checks that

- docker-compose.yml fits the official Compose schema, its services depend on services that exist,
  and a service that is waited for as healthy has a health check;
- every image is pinned to a version;
- every file and folder that is mounted, built from or copied exists, and .dockerignore lets it
  through;
- the program knows every setting and every command that the compose file, the Dockerfile and
  .env.example name, and neither .env.example nor the compose file leaves one of its settings out
  (but those of embedded servers);
- deploy/k8s names every manifest, gives the program settings and commands that it knows, selects
  pods that exist, and has no secrets in it;
- what the proxy, Prometheus and the cluster's first step are to reach is a service, or an alias of
  one.
"""

import json
import pathlib
import re
import subprocess
import sys

from ruamel.yaml import YAML

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Read by libraries that the program uses, so they are not in its --help.
LIBRARY_SETTINGS = {"RUST_LOG", "RUST_BACKTRACE"}
# Of the servers that the program starts itself; in the compose file they are services of their own.
EMBEDDED_SETTINGS = {"DATA_DIR", "REDIS_FSYNC"}

problems = []


def must(holds, text):
    if not holds:
        problems.append(text)


def words(value):
    """A command as compose and Docker allow it: a string or a list."""
    return value.split() if isinstance(value, str) else [str(word) for word in value or []]


class Program:
    """What the binary says about itself."""

    def __init__(self, binary):
        self.binary = binary
        self.helps = {}
        self.settings = set(re.findall(r"\[env: (\w+)", self.help("serve") or ""))
        must(self.settings, f"`{binary} serve --help` names no environment variable")

    def help(self, command):
        """The --help of a command, hidden ones too, or None if there is no such command."""
        if command not in self.helps:
            run = subprocess.run([self.binary, command, "--help"], capture_output=True, text=True, timeout=30)
            self.helps[command] = run.stdout if run.returncode == 0 else None
        return self.helps[command]

    def check_command(self, where, arguments):
        """arguments: what follows `flash-sale` on a command line."""
        command, *rest = arguments or [""]
        text = self.help(command) if command else None
        must(text is not None, f"{where}: flash-sale has no command `{command}`")
        for flag in rest:
            if flag.startswith("--"):
                name = flag.split("=")[0]
                must(text is None or re.search(rf"(?<![\w-]){name}(?![\w-])", text), f"{where}: `{command}` has no {name}")

    def check_setting(self, where, name):
        must(name in self.settings | LIBRARY_SETTINGS, f"{where}: the program has no setting {name}")


def check_pinned(where, image):
    """repository:tag, where the tag has two numbers or a date, or repository@sha256:…"""
    name, _, tag = image.rpartition(":")
    pinned = "@sha256:" in image or (name and re.search(r"\d+\.\d+|\d{8}", tag))
    must(pinned and tag != "latest", f"{where}: image {image} is not pinned to a version")


def check_schema():
    run = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    must(run.returncode == 0, f"docker-compose.yml does not fit the Compose schema:\n{run.stdout}{run.stderr}")


def check_compose(program):
    compose = YAML(typ="safe").load(ROOT / "docker-compose.yml")
    services, volumes = compose["services"], compose.get("volumes") or {}
    built = {service["image"] for service in services.values() if "build" in service and "image" in service}
    for name, service in services.items():
        where = f"docker-compose.yml, {name}"
        if "build" in service:
            build = service["build"]
            context = ROOT / (build if isinstance(build, str) else build.get("context", "."))
            dockerfile = context / ("Dockerfile" if isinstance(build, str) else build.get("dockerfile", "Dockerfile"))
            must(dockerfile.is_file(), f"{where}: there is no {dockerfile}")
        else:
            check_pinned(where, service.get("image", ""))

        for volume in service.get("volumes", []):
            source = volume.split(":")[0] if isinstance(volume, str) else volume.get("source", "")
            if source.startswith("."):
                must((ROOT / source).exists(), f"{where}: {source} does not exist")
            else:
                must(source in volumes, f"{where}: volume {source} is not declared")
        for file in words(service.get("env_file")):
            must((ROOT / file).is_file(), f"{where}: {file} does not exist")

        for other, condition in (service.get("depends_on") or {}).items():
            must(other in services, f"{where}: depends on {other}, which is not a service")
            if condition.get("condition") == "service_healthy":
                check = services.get(other, {}).get("healthcheck", {})
                must(check.get("test"), f"{where}: waits for {other} to be healthy, which has no health check")

        for key, value in (service.get("environment") or {}).items():
            # YAML 1.1 and 1.2 disagree about a bare on, off, yes and no; in quotes they cannot. No
            # value at all is taken from its caller's environment.
            bare = isinstance(value, bool) or not isinstance(value, (str, int, type(None)))
            must(not bare, f"{where}: put the value of {key} in quotes")

        if service.get("image") in built:
            environment = service.get("environment") or {}
            for key in environment:
                program.check_setting(where, key)
            for key in sorted(program.settings - EMBEDDED_SETTINGS - set(environment)):
                must(False, f"{where}: the setting {key} cannot be set")
            command = words(service.get("command"))
            if "entrypoint" in service:  # a shell: every flash-sale in its script
                for line in re.findall(r"flash-sale ([^;&|]+)", " ".join(command)):
                    program.check_command(where, line.split())
            else:
                program.check_command(where, command or ["serve"])
            test = words(service.get("healthcheck", {}).get("test"))
            if test:
                must(test[:2] == ["CMD", "flash-sale"], f"{where}: the image has nothing but flash-sale to check health with")
                program.check_command(where, test[2:])


def check_dockerfile(program):
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    # Comment lines may stand inside a continued instruction, so they go first.
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    let_through = {
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").split() if line.startswith("!")
    }
    stages = set()
    for line in text.splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            image, *stage = rest.split()
            if image not in stages:
                check_pinned("Dockerfile", image)
            stages.update(stage[1:])
        elif instruction == "COPY" and "--from=" in rest:
            must(re.search(r"--from=(\S+)", rest).group(1) in stages, f"Dockerfile: no such stage in: {line}")
        elif instruction == "ADD" and "://" in rest:
            must("--checksum=sha256:" in rest, f"Dockerfile: what is fetched needs a checksum: {line}")
        elif instruction in ("COPY", "ADD"):
            for source in rest.split()[:-1]:
                if "*" not in source:
                    must((ROOT / source).exists(), f"Dockerfile: {source} does not exist")
                top = source.rstrip("*").split("/")[0]
                must(top in let_through or source in let_through, f"Dockerfile: .dockerignore keeps {source} out of the build")
        elif instruction in ("HEALTHCHECK", "CMD", "ENTRYPOINT"):
            command = json.loads(rest[rest.index("[") :])
            if instruction == "CMD":
                program.check_command("Dockerfile, CMD", command)
            else:
                must(command[0] == "flash-sale", f"Dockerfile, {instruction}: expected flash-sale, not {command[0]}")
                if instruction == "HEALTHCHECK":
                    program.check_command("Dockerfile, HEALTHCHECK", command[1:])
        elif instruction == "ENV":
            for name in re.findall(r"(\w+)=", rest):
                program.check_setting("Dockerfile", name)
    must(re.search(r"^USER (?!0|root)\w+", text, re.MULTILINE), "Dockerfile: the program must not run as root")
    dependencies = text.split("cargo build")[0]
    manifest = (ROOT / "Cargo.toml").read_text(encoding="utf-8")
    for path in re.findall(r'^path = "(.+)"', manifest, re.MULTILINE):
        must(path in dependencies, f"Dockerfile: {path} has no stand-in in the dependencies' layer")
    for crate in sorted((ROOT / "crates").glob("*/Cargo.toml")):
        path = crate.relative_to(ROOT)
        copied = f"COPY {path} {path.parent}/\n" in dependencies
        must(copied, f"Dockerfile: {path} is not copied into the dependencies' layer")


def check_env_example(program):
    named = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE))
    for name in sorted(named):
        program.check_setting(".env.example", name)
    for name in sorted(program.settings - named):
        must(False, f".env.example: the setting {name} is missing")


def check_kubernetes(program):
    """What a schema cannot see; scripts/check_manifests.sh checks the schemas."""
    folder, yaml = ROOT / "deploy/k8s", YAML(typ="safe")
    kustomization = yaml.load(folder / "kustomization.yaml")
    files = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    must(files == set(kustomization["resources"]), f"deploy/k8s: resources are not {sorted(files)}")
    for literal in kustomization["configMapGenerator"][0]["literals"]:
        name = literal.split("=")[0]
        must(name == "METRICS_ADDR" or name in program.settings, f"deploy/k8s: the program has no setting {name}")
    manifests = [manifest for file in sorted(files) for manifest in yaml.load_all(folder / file)]
    pods = {m["metadata"]["name"]: m["spec"]["template"] for m in manifests if m["kind"] == "Deployment"}
    labels = [pod["metadata"]["labels"] for pod in pods.values()]
    for manifest in manifests:
        where, spec = f"deploy/k8s, {manifest['kind']} {manifest['metadata']['name']}", manifest["spec"]
        must(manifest["kind"] != "Secret", f"{where}: secrets do not belong here")
        selector = spec.get("selector", {})
        must(selector.get("matchLabels", selector) in [*labels, {}], f"{where}: selects no pod")
        target = spec.get("scaleTargetRef", {}).get("name")
        must(target in [*pods, None], f"{where}: there is no {target} to scale")
    for name, pod in pods.items():
        for container in pod["spec"]["containers"]:
            program.check_command(f"deploy/k8s, {name}", container["args"])
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                must(container[probe]["httpGet"]["port"] in ports, f"deploy/k8s, {name}: {probe} has no such port")


def check_addresses():
    """Hosts that are named where Compose does not look."""
    compose = YAML(typ="safe").load(ROOT / "docker-compose.yml")
    services = compose["services"]
    known = set(services)
    for service in services.values():
        networks = service.get("networks") or {}
        for network in networks.values() if isinstance(networks, dict) else ():
            known.update((network or {}).get("aliases", []))
    scrape = YAML(typ="safe").load(ROOT / "deploy" / "prometheus.yml")["scrape_configs"]
    named = {
        "docker-compose.yml, proxy": services["proxy"]["environment"]["INSTANCES"].split(":-", 1)[1].rstrip("}").split(),
        "deploy/Caddyfile": re.search(r"\{\$INSTANCES:([^}]*)\}", (ROOT / "deploy/Caddyfile").read_text(encoding="utf-8"))
        .group(1)
        .split(),
        "deploy/prometheus.yml": [
            target for job in scrape for group in job.get("static_configs", []) for target in group["targets"]
        ]
        + [name for job in scrape for group in job.get("dns_sd_configs", []) for name in group["names"]],
        "docker-compose.yml, the comments": re.findall(
            r"(?:=|[ ,/\"])((?:app|redis)-\d:\d+)", "\n".join(comments("docker-compose.yml"))
        )
        + re.findall(r"http://(jaeger:\d+)", "\n".join(comments("docker-compose.yml"))),
    }
    for where, addresses in named.items():
        must(addresses, f"{where}: names nobody")
        for address in addresses:
            must(address.split(":")[0] in known, f"{where}: there is no service {address}")
    nodes = {name for name in services if re.fullmatch(r"redis-\d", name)}
    waited_for = set(services["redis-cluster"]["depends_on"])
    must(len(nodes) == 6 and nodes == waited_for, f"redis-cluster waits for {sorted(waited_for)} of {sorted(nodes)}")


def comments(file):
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.lstrip().startswith("#")]


def main():
    if len(sys.argv) != 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    program = Program(str(pathlib.Path(sys.argv[1]).resolve()))
    check_schema()
    check_compose(program)
    check_dockerfile(program)
    check_env_example(program)
    check_kubernetes(program)
    check_addresses()
    for line in problems:
        print(line)
    if problems:
        print(f"{len(problems)} problem(s)")
        return 1
    print("docker-compose.yml, Dockerfile, deploy/k8s and .env.example agree with the schema, the files and the program")
    return 0


if __name__ == "__main__":
    sys.exit(main())
