#!/usr/bin/env bash
# A newcomer's path in clean roots: install what the README says, build, serve, push a first checkpoint; then
# install the Debian packages, and run the release tarball, in other clean roots. Needs root, mmdebstrap and the
# archives of Debian (and Ubuntu). Usage: deploy/test-clean.sh [PART...]   (default: all, in this order)
#   source    Debian 12: deploy/setup.sh, the README's two commands, a first push; makes packages and tarball
#   deb       Debian 12: apt-get install ./baton.deb, the service's configuration, a push, purge
#   control   Debian 12: the package without the engine, as a store; baton-server and it take each other's place
#   tarball   Debian 12, Ubuntu 22.04 and 24.04, with nothing installed
#   service   Debian 12 booted by systemd-nspawn: the unit's start, reload, restart, watchdog and stop
#   docker    the steps of the Dockerfile, one by one, in roots instead of images
# Not tried here: docker itself, GPUs. Roots and packages are in WORK (default: a
# temporary directory, removed at the end), so that WORK=DIR deploy/test-clean.sh deb goes on after source.
set -euo pipefail
source=$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")
debian=http://deb.debian.org/debian
ubuntu=http://archive.ubuntu.com/ubuntu
model=tests/fixtures/kjv-qwen3-1m

skip() {
  echo "skipped: $*"
  exit 77
}
fail() {
  echo "FAIL: $*" >&2
  exit 1
}
((EUID == 0)) || skip "roots are made and entered by root only; run it with sudo"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is not installed: apt-get install mmdebstrap"
if [[ -z ${WORK:-} ]]; then
  WORK=$(mktemp --directory)
  trap 'rm --recursive --force --one-file-system "$WORK"' EXIT
fi

# root NAME SUITE MIRROR: a new root in $WORK/NAME. Debian's archive is checked by its keys; those of Ubuntu are
# not in Debian, and its root runs the tarball only.
root() {
  local tar=$WORK/$2.tar
  if [[ ! -f $tar ]]; then
    local mirror="deb $3 $2 main"
    [[ $3 == "$debian" ]] || mirror="deb [trusted=yes] $3 $2 main"
    mmdebstrap --quiet --variant=minbase "$2" "$tar" "$mirror"
  fi
  rm --recursive --force --one-file-system "${WORK:?}/$1"
  mkdir "$WORK/$1"
  tar --extract --file "$tar" --directory "$WORK/$1"
}

# inside NAME COMMAND: a shell in the root; its processes end with it.
inside() {
  local name=$1
  shift
  cp /etc/resolv.conf "$WORK/$name/etc/resolv.conf"
  # shellcheck disable=SC2016  # the inner shell's
  env --ignore-environment PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/root LC_ALL=C.UTF-8 ${http_proxy:+http_proxy="$http_proxy"} \
    unshare --mount --pid --fork --kill-child bash -c '
      mount --types proc proc "$1/proc" && mount --types tmpfs tmpfs "$1/dev/shm" &&
      exec chroot "$1" bash -euo pipefail -c "$2"' - "$WORK/$name" "$*"
}

# first_push BATON: the first minutes with a server, as the commands of a root; its fixtures are in /fixtures.
first_push() {
  cat <<P
    $1 --version
    $1 serve /fixtures/kjv --weights none --listen 127.0.0.1:8791 ${2:-} 2>/tmp/log &
    export BATON_URL=http://127.0.0.1:8791
    for i in \$(seq 100); do $1 status >/dev/null 2>&1 && break; sleep 0.2; done
    ! $1 generate 'In the' 2>/tmp/refused || { echo 'it generates without weights'; exit 1; }
    $1 push --weight-version step-100 /fixtures/kjv/checkpoints/step-00100.safetensors
    $1 weights verify /fixtures/kjv/checkpoints/step-00100.safetensors
    $1 generate --max-tokens 8 --temperature 0 'In the beginning'
    $1 status | grep step-100
    kill %1 && wait %1 || { cat /tmp/log; exit 1; }
P
}

part_source() {
  root source bookworm "$debian"
  mkdir "$WORK/source/baton"
  (cd "$source" && git ls-files -z | tar --create --null --files-from=-) |
    tar --extract --directory "$WORK/source/baton"
  for command in deploy/setup.sh \
    'cmake --preset release -DBATON_TESTS=OFF && cmake --build --preset release'; do
    grep --quiet --fixed-strings "$command" "$source"/README.md "$source"/docs/*.md ||
      fail "neither the README nor docs/ has the command that is tried here: $command"
    inside source "cd /baton && $command"
  done
  cp --recursive "$source/$model" "$WORK/source/kjv"
  inside source "mkdir /fixtures && mv /kjv /fixtures && $(first_push /baton/build/release/baton)"
  inside source 'cd /baton && deploy/setup.sh package && deploy/tarball.sh build/release /packages &&
    cmake --preset control -DBATON_TESTS=OFF && cmake --build --preset control &&
    for preset in release control; do cpack -G DEB --config build/$preset/CPackConfig.cmake -B /packages; done &&
    rm -r /packages/_CPack_Packages'
  mkdir --parents "$WORK/packages"
  cp "$WORK"/source/packages/* "$WORK/packages/"
}

# with_fixtures NAME
with_fixtures() {
  mkdir "$WORK/$1/fixtures"
  cp --recursive "$source/$model" "$WORK/$1/fixtures/kjv"
}

part_deb() {
  root deb bookworm "$debian"
  with_fixtures deb
  cp "$WORK"/packages/baton-server_*.deb "$WORK/deb/baton.deb"
  inside deb 'apt-get update --quiet=2
    apt-get install --yes --quiet=2 --no-install-recommends /baton.deb >/dev/null
    getent passwd baton
    [[ $(stat --format=%U:%G:%a /var/lib/baton) == baton:baton:750 ]]
    ! baton serve --config /etc/baton/baton.json --check || exit 1 # there is no model yet
    cp --recursive /fixtures/kjv /var/lib/baton/model
    setpriv --reuid=baton --regid=baton --init-groups baton serve --config /etc/baton/baton.json --check'
  inside deb "$(first_push 'setpriv --reuid=baton --regid=baton --init-groups baton')"
  inside deb 'apt-get purge --yes --quiet=2 baton-server >/dev/null
    for path in /etc/baton /var/lib/baton /usr/bin/baton /usr/lib/systemd/system/baton.service; do
      [[ ! -e $path ]] || { echo "purge leaves $path"; exit 1; }
    done'
}

part_control() {
  root control bookworm "$debian"
  with_fixtures control
  cp "$WORK"/packages/baton-control_*.deb "$WORK/control/control.deb"
  cp "$WORK"/packages/baton-server_*.deb "$WORK/control/server.deb"
  inside control 'apt-get update --quiet=2
    install() { apt-get install --yes --quiet=2 --no-install-recommends "$@" >/dev/null; }
    # is PACKAGE: it is installed, and the other one is not
    is() {
      [[ $(dpkg-query --show --showformat="\${Package} \${db:Status-Status}\n" "baton-*" | grep " installed$") \
        == "$1 installed" ]] && baton --version | grep "$1"
    }
    ! install /control.deb /server.deb 2>/dev/null || { echo "both are installed"; exit 1; }
    install /control.deb
    is baton-control
    ! ldd /usr/bin/baton | grep "libutf8proc\|libpcre2" || { echo "libraries of the engine"; exit 1; }
    ! baton serve /fixtures/kjv 2>/tmp/refused || { echo "it has an engine"; exit 1; }
    grep baton-server /tmp/refused
    weights=/fixtures/kjv/checkpoints/step-00100.safetensors
    store="setpriv --reuid=baton --regid=baton --init-groups baton serve --engine none --manifest $weights"
    $store --listen 127.0.0.1:8791 2>/tmp/log &
    export BATON_URL=http://127.0.0.1:8791
    baton wait --for control --timeout 20
    baton push --weight-version step-100 "$weights"
    baton weights verify "$weights"
    baton status | grep step-100
    kill %1 && wait %1 || { cat /tmp/log; exit 1; }
    baton serve --upstream http://127.0.0.1:8791,vllm --listen 127.0.0.1:8792 --check
    install /server.deb
    is baton-server
    install /control.deb
    is baton-control'
}

part_tarball() {
  local suite
  for suite in bookworm:$debian jammy:$ubuntu noble:$ubuntu; do
    root tarball "${suite%%:*}" "${suite#*:}"
    with_fixtures tarball
    mkdir "$WORK/tarball/opt/baton"
    tar --extract --file "$WORK"/packages/*.tar.gz --strip-components=1 --directory "$WORK/tarball/opt/baton"
    inside tarball ". /etc/os-release; echo \"== \$PRETTY_NAME\"; ! dpkg --list | grep libmicrohttpd
      $(first_push /opt/baton/bin/baton)"
  done
}

# What the booted root runs; its last line is in /result.
service_script() {
  cat <<'P'
#!/bin/bash
exec >/log 2>&1
set -euxo pipefail
trap 'echo "status $?" >/result; journalctl --unit baton --no-pager; systemctl poweroff' EXIT
is() { [[ $(systemctl show baton --property "$1" --value) == "$2" ]]; }
pid() { systemctl show baton --property MainPID --value; }
# restarted N: it serves again after it was restarted N times, and knows that it lost a version
restarted() {
  for _ in $(seq 200); do ! is NRestarts "$1" || ! is ActiveState active || break; sleep 0.1; done
  baton status | grep "was lost"
}
systemctl start baton
is StatusText "serving on 127.0.0.1:8700"
baton push --weight-version step-100 /var/lib/baton/model/checkpoints/step-00100.safetensors
systemctl reload baton
for _ in $(seq 50); do ! journalctl --unit baton | grep '"event":"reload"' || break; sleep 0.1; done
journalctl --unit baton | grep '"event":"reload"'
kill -KILL "$(pid)"
restarted 1
kill -STOP "$(pid)"
restarted 2
is Result success
systemctl stop baton
is Result success
is ExecMainStatus 0
P
}

part_service() {
  command -v systemd-nspawn >/dev/null || skip "systemd-nspawn is not installed: apt-get install systemd-container"
  root service bookworm "$debian"
  with_fixtures service
  cp "$WORK"/packages/baton-server_*.deb "$WORK/service/baton.deb"
  inside service 'apt-get update --quiet=2
    apt-get install --yes --quiet=2 --no-install-recommends systemd dbus /baton.deb >/dev/null
    mv /fixtures/kjv /var/lib/baton/model'
  service_script >"$WORK/service/script"
  chmod 755 "$WORK/service/script"
  mkdir "$WORK/service/etc/systemd/system/baton.service.d"
  printf '[Service]\nWatchdogSec=2\n' >"$WORK/service/etc/systemd/system/baton.service.d/test.conf"
  printf '[Service]\nExecStart=/script\n[Install]\nWantedBy=multi-user.target\n' \
    >"$WORK/service/etc/systemd/system/script.service"
  inside service 'systemctl enable script.service'
  timeout 120 systemd-nspawn --quiet --boot --directory="$WORK/service" --register=no --keep-unit \
    --private-network >"$WORK/service.log" 2>&1 || true
  if [[ $(cat "$WORK/service/result") != 'status 0' ]]; then
    cat "$WORK/service/log" >&2
    fail "the service: $(cat "$WORK/service/result")"
  fi
}

part_docker() {
  "$source/deploy/docker/steps.py" "$source" | while IFS=$'\t' read -r step name argument; do
    echo "== $step $name $argument"
    case $step in
    FROM) root "$name" bookworm "$debian" ;;
    COPY) bash -euo pipefail -c "cd '$source' && W='$WORK' && $argument" ;;
    RUN) inside "$name" "$argument" </dev/null ;;
    esac
  done
  with_fixtures docker-2
  inside docker-2 "$(first_push 'setpriv --reuid=baton --regid=baton --init-groups baton')
    ! { baton status >/dev/null || [ \$? -eq 1 ]; } # the health check, without a server"
}

parts=("$@")
((${#parts[@]} > 0)) || parts=(source deb control tarball service docker)
for part in "${parts[@]}"; do
  begin=$SECONDS
  case $part in
  source | deb | control | tarball | service | docker) "part_$part" ;;
  *) fail "'$part' is none of source, deb, control, tarball, service, docker" ;;
  esac
  echo "== $part: passed in $((SECONDS - begin)) s"
done
