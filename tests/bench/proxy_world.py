"""baton, nginx and HAProxy as proxies before one upstream: their configurations and processes."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http", "lib"))
from front_crowd import wait  # noqa: E402

END_S = 60
REQUESTS_MAX = 8192  # that any of them has under way

# No connection to the upstream is used twice, in none of the three. One process, one thread.
NGINX = """daemon off; master_process off; error_log stderr error; pid %(dir)s/nginx.pid;
events { worker_connections 18000; }
http { access_log off; keepalive_requests 1000000000; client_body_temp_path %(dir)s/body;
proxy_temp_path %(dir)s/p; fastcgi_temp_path %(dir)s/f; uwsgi_temp_path %(dir)s/u; scgi_temp_path %(dir)s/s;
server { listen 127.0.0.1:%(port)d backlog=4096; location / {
proxy_pass http://127.0.0.1:%(upstream)d; proxy_http_version 1.1; proxy_read_timeout 1h;
proxy_buffering %(buffering)s; } } }
"""

HAPROXY = """global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 1h
  timeout server 1h
  option http-server-close
  option http-no-delay
  option abortonclose
frontend f
  bind 127.0.0.1:%(port)d backlog 4096
  default_backend b
backend b
  server u 127.0.0.1:%(upstream)d
"""


def cores():
    """Of the proxy, of the upstream, of the clients; the latter share one if there are but two."""
    have = sorted(os.sched_getaffinity(0))
    return have[0], have[1 % len(have)], have[2 if len(have) > 2 else -1]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(port, method, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=END_S)
    try:
        c.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = c.getresponse()
        return answer.status, answer.read()
    finally:
        c.close()


class Proxy:
    """with Proxy(name, command, port, directory): the process is there, pinned to its core."""

    def __init__(self, name, command, port, directory):
        self.name, self.port = name, port
        self.log = os.path.join(directory, name + ".log")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = command and subprocess.Popen(
                ["taskset", "--cpu-list", str(cores()[0])] + command, stdout=log, stderr=log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def wait_serving(self, path, body):
        def serves():
            assert self.process is None or self.process.poll() is None, f"{self.name} has ended"
            try:
                return ask(self.port, "POST", path, body)[0] == 200
            except OSError:
                return False
        try:
            wait(f"{self.name} serves", serves, END_S)
        except AssertionError:
            with open(self.log, encoding="utf-8") as log:
                print(log.read()[-4000:], file=sys.stderr)
            raise

    def cpu_s(self):
        if self.process is None:
            return 0.0
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, name="VmRSS"):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith(name + ":"))


class World:
    """Which of them there are, and how to start one before an upstream."""

    def __init__(self, baton, directory):
        self.baton, self.directory = baton, directory
        self.nginx = shutil.which(os.environ.get("NGINX", "nginx"), path=os.environ["PATH"] + ":/usr/sbin")
        self.haproxy = shutil.which(os.environ.get("HAPROXY", "haproxy"), path=os.environ["PATH"] + ":/usr/sbin")
        self.names = ["direct", "baton"] + ["nginx"] * bool(self.nginx) + ["haproxy"] * bool(self.haproxy)
        for name, found in (("nginx", self.nginx), ("haproxy", self.haproxy)):
            if not found:
                print(f"{name} is not installed: left out")

    def write(self, name, text, **more):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text % dict(more, dir=self.directory))
        return path

    def start(self, name, upstream, buffering="off"):
        """buffering: nginx's, of answers. Streams need it off."""
        if name == "direct":
            return Proxy(name, None, upstream, self.directory)
        port = free_port()
        if name == "baton":
            command = [self.baton, "serve", "--listen", f"127.0.0.1:{port}", "--upstream",
                       f"http://127.0.0.1:{upstream},vllm", "--generate-concurrency", str(REQUESTS_MAX),
                       "--log-level", "warn"]
        elif name == "nginx":
            command = [self.nginx, "-p", self.directory, "-c",
                       self.write("nginx.conf", NGINX, port=port, upstream=upstream, buffering=buffering)]
        else:
            command = [self.haproxy, "-db", "-f", self.write("haproxy.cfg", HAPROXY, port=port, upstream=upstream)]
        return Proxy(name, command, port, self.directory)


class Upstream:
    """A process of ours that prints where it listens."""

    def __init__(self, *command):
        self.process = subprocess.Popen(["taskset", "--cpu-list", str(cores()[1]), *map(str, command)],
                                        stdout=subprocess.PIPE, text=True)
        said = self.process.stdout.readline().strip()
        assert said, f"{command[0]} did not start: {self.process.wait(END_S)}"
        self.port = int(said.rsplit(":", 1)[-1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(END_S)
        self.process.stdout.close()


class Load:
    """proxy_load (see the head of proxy_load.c), and the proxy's processor time meanwhile."""

    binary = None

    def __init__(self, proxy, n, path, body, how, seconds, pause_us=0):
        self.proxy, self.how = proxy, how
        self.process = subprocess.Popen(
            ["taskset", "--cpu-list", str(cores()[2]), self.binary, str(proxy.port), str(n), path,
             json.dumps(body), how, str(seconds), str(pause_us)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.cpu_before = proxy.cpu_s()
        self.held = None if how in ("loop", "once") else json.loads(self.line())

    def line(self):
        said = self.process.stdout.readline()
        assert said, f"proxy_load ended with {self.process.wait(END_S)}"
        return said

    def end(self):
        """What it says at its end; "cpu_s" of the proxy in "proxy_cpu_s"."""
        if self.how == "loop":
            assert self.line() == "counting\n"
            self.cpu_before = self.proxy.cpu_s()
        elif self.held is not None:
            self.process.stdin.close()
        said = json.loads(self.line())
        said["proxy_cpu_s"] = self.proxy.cpu_s() - self.cpu_before
        self.process.stdin.close()
        self.process.wait(END_S)
        self.process.stdout.close()
        return said
