"""The containers of a chart's pod as processes: root read-only, the user and the volumes of the manifest, no capability."""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

from cluster import POD, Process, wait

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The last stage.
IMAGE = (ROOT / "packaging/container/Containerfile").read_text().rsplit("\nFROM ", 1)[1]
# Words of a log about a file or a right that is missing.
WRONG = re.compile(r"\[(?:emerg|alert|crit|error)\]|Read-only file system|Permission denied|No such file|panicked")

# Makes the root of a container in a mount namespace of its own: the image's files, and one volume for each line of standard input
# (source, place, and ro or rw); then becomes the user, with no capability left.
SCRIPT = """
set -eu
root=$1; user=$2; shift 2
mount -t tmpfs -o mode=755 tmpfs "$root"
mkdir -p "$root/usr/sbin" "$root/proc" "$root/dev" "$root/etc/weir/conf.d" "$root/srv/site" "$root/tmp" "$root/run" "$root/var/run" "$root/var/cache/weir"
for part in bin lib lib64; do
    [ ! -e "/usr/$part" ] || { mkdir "$root/usr/$part"; mount --rbind "/usr/$part" "$root/usr/$part"; ln -s "usr/$part" "$root/$part"; }
done
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
cp -r "$IMAGE_FILES"/. "$root/"
echo "weir:x:10001:10001::/nonexistent:/usr/sbin/nologin" > "$root/etc/passwd"
while read -r source place mode; do
    if [ -d "$source" ]; then mkdir -p "$root$place"; else mkdir -p "$(dirname "$root$place")"; touch "$root$place"; fi
    mount --bind "$source" "$root$place"
    [ "$mode" = rw ] || mount -o remount,bind,ro "$root$place"
done
mount -o remount,ro "$root"
exec chroot "$root" /usr/bin/setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""


class Containers:
    """A pod of a Deployment that the API server has, with its ConfigMaps and a token of its account."""

    def __init__(self, api, dir, binaries, space, name):
        self.api, self.space = api, space
        self.dir = dir / f"pod-{name}"
        self.dir.mkdir()
        self.spec = api.call("GET", f"/apis/apps/v1/namespaces/{space}/deployments/{name}")["spec"]["template"]["spec"]
        self.user = self.spec["securityContext"]["runAsUser"]
        self.volumes = {volume["name"]: self.volume(volume) for volume in self.spec["volumes"]}
        self.image = self.dir / "image"
        for line in re.findall(r"^COPY (?!--)(.*)$", IMAGE, re.M):
            *files, to = line.split()
            for file in files:
                (self.image / to.strip("/")).mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, self.image / to.strip("/"))
        (self.image / "usr/sbin").mkdir(parents=True)
        for program in ("weir", "weir-ingress"):
            shutil.copy(binaries / program, self.image / "usr/sbin")
        self.processes = {}

    def volume(self, volume):
        """A directory with what a volume has."""
        place = self.dir / "volumes" / volume["name"]
        place.mkdir(parents=True)
        if "emptyDir" in volume:
            os.chown(place, 0, self.user)
            place.chmod(0o2777)
        elif "configMap" in volume:
            self.fill(place, volume["configMap"]["name"])
        else:
            # What the kubelet makes of the sources.
            token = self.api.call("POST", f'/api/v1/namespaces/{self.space}/serviceaccounts/{self.spec["serviceAccountName"]}/token',
                                  {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}})
            words = {"token": token["status"]["token"], "ca.crt": self.api.authority.read_text(), "namespace": self.space}
            wanted = [item["path"] for source in volume["projected"]["sources"] for item in source.get("configMap", source.get("downwardAPI", {})).get("items", [])]
            assert sorted([*wanted, "token"]) == sorted(words), wanted
            for name, text in words.items():
                (place / name).write_text(text)
        return place

    def fill(self, place, name):
        """A ConfigMap as the kubelet lays it out: links lead through one that is moved."""
        data = self.api.call("GET", f"/api/v1/namespaces/{self.space}/configmaps/{name}").get("data", {})
        version = place / f"..version{len(list(place.iterdir()))}"
        version.mkdir()
        for key, text in data.items():
            (version / key).write_text(text)
            if not (place / key).is_symlink():
                (place / key).symlink_to(f"..data/{key}")
        new = place / "..new"
        new.symlink_to(version.name)
        new.rename(place / "..data")

    def refresh(self):
        """Brings the ConfigMaps up to date."""
        for volume in self.spec["volumes"]:
            if "configMap" in volume:
                self.fill(self.volumes[volume["name"]], volume["configMap"]["name"])

    def start(self):
        for container in self.spec["containers"]:
            entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", IMAGE, re.M)[1])
            args = container.get("command", entry) + container.get("args", [])
            mounts = []
            for mount in container["volumeMounts"]:
                source = self.volumes[mount["name"]] / mount.get("subPath", "")
                mounts.append(f'{source.resolve()} {mount["mountPath"]} {"ro" if mount.get("readOnly") else "rw"}\n')
            root = self.dir / f'root-{container["name"]}'
            root.mkdir()
            lines = self.dir / f'mounts-{container["name"]}'
            lines.write_text("".join(mounts))
            env = {"PATH": "/usr/sbin:/usr/bin", "POD_NAME": "pod", "POD_IP": POD, "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                   "KUBERNETES_SERVICE_PORT": str(self.api.port), "IMAGE_FILES": str(self.image)}
            command = f'exec unshare --mount --propagation private /bin/sh -c "$0" sh "$@" < {lines}'
            name = f'{self.dir.name}-{container["name"]}'
            # Runtimes give a container's output to its user.
            log = self.dir / f"{name}.log"
            log.touch()
            os.chown(log, self.user, self.user)
            self.processes[container["name"]] = Process(
                name, self.dir,
                ["/usr/bin/env", "-i", *(f"{key}={value}" for key, value in env.items()), "/bin/sh", "-c", command, SCRIPT, str(root), str(self.user), *args])

    def get(self, port, path, host="pod", body=None, address="127.0.0.1"):
        """Status and body."""
        connection = http.client.HTTPConnection(address, port, timeout=10)
        connection.request("POST" if body else "GET", path, body, {"Host": host, "Connection": "close"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, text

    def end(self):
        """Ends the pod as the kubelet does; nothing may have been missing."""
        stop = getattr(signal, re.search(r"^STOPSIGNAL (\S+)$", IMAGE, re.M)[1])
        for name, process in self.processes.items():
            status = process.child.poll()
            assert status is None, f"{name} ended by itself: {status}: {process.text()[-500:]}"
        for name, process in self.processes.items():
            process.send(stop)
        for name, process in self.processes.items():
            wait(f"the end of {name}", 40, lambda process=process: process.child.poll() is not None)
            wrong = [line for line in process.text().splitlines() if WRONG.search(line)]
            assert not wrong, f"{name}: {wrong[:3]}"
        written = sorted(str(file.relative_to(self.dir / "volumes")) for name, place in self.volumes.items() for file in place.iterdir()
                         if file.stat().st_uid == self.user)
        return f"wrote {', '.join(written)}"

    def kill(self):
        for process in self.processes.values():
            process.end(signal.SIGKILL)
