#!/usr/bin/env bash
# What cmake --install, CPack and deploy/tarball.sh make: complete, in the right places, with manual pages
# that groff and mandoc accept and a unit that systemd accepts. Tools that are not there are skipped, and
# named. Usage: install.sh BUILD_DIR
set -euo pipefail
build=$(realpath "$1")
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
WORK=$(mktemp --directory)
trap 'rm --recursive --force "$WORK"' EXIT

fail() {
  echo "FAIL install.sh:${BASH_LINENO[0]}: $*" >&2
  exit 1
}

for tool in groff mandoc systemd-analyze dpkg-shlibdeps file patchelf; do
  command -v "$tool" >/dev/null || fail "$tool is not installed: deploy/setup.sh test"
done

# files DIR WORD...: every file is in the tree.
files() {
  local dir=$1 file
  shift
  for file in "$@"; do
    [[ -f $dir/$file ]] || fail "$file is missing in $(cd "$dir" && find . -type f)"
  done
}

# An installation: the prefix is that of the command, and DESTDIR is put before it.
DESTDIR=$WORK/stage cmake --install "$build" --prefix /opt/baton >/dev/null
[[ $(ls "$WORK/stage") == opt ]] || fail "files outside of the prefix: $(ls "$WORK/stage")"
tree=$WORK/stage/opt/baton
files "$tree" bin/baton etc/baton/baton.json lib/systemd/system/baton.service lib/sysusers.d/baton.conf \
  share/bash-completion/completions/baton share/zsh/site-functions/_baton share/man/man1/baton.1.gz \
  share/doc/baton/{LICENSE,README.md,CHANGELOG.md,SECURITY.md,docs/configuration.md,openapi/baton.yaml} \
  share/doc/baton/examples/grpo_toy.py share/doc/baton/deploy/kubernetes/cpu.yaml \
  share/doc/baton/deploy/{prometheus/alerts.yml,grafana/baton.json}
grep --quiet '^ExecStart=/opt/baton/bin/baton serve --config /opt/baton/etc/baton/baton.json$' \
  "$tree/lib/systemd/system/baton.service" || fail "the unit does not name the prefix"
! grep '@[a-z]*@' "$tree/lib/systemd/system/baton.service" || fail "the unit was not configured"

# A configuration that was changed stays.
echo '{}' >"$tree/etc/baton/baton.json"
DESTDIR=$WORK/stage cmake --install "$build" --prefix /opt/baton --component service >/dev/null
[[ $(<"$tree/etc/baton/baton.json") == '{}' ]] || fail "an installation replaced the configuration"

# A manual page for each command, with each of its options.
cp --recursive "$tree/share/man/man1" "$WORK/man"
gunzip "$WORK"/man/*.gz
while read -r command; do
  page=$WORK/man/baton-${command// /-}.1
  [[ -f $page ]] || fail "baton $command has no manual page"
  text=$(<"$page")
  # shellcheck disable=SC2086  # "lora load" are two words
  for flag in $("$tree/bin/baton" $command --help | grep --only-matching --extended-regexp '^  --[a-z-]+'); do
    [[ $text == *"${flag//-/\\-}\\fR"* ]] || fail "baton-${command// /-}(1) lacks $flag"
  done
done < <("$tree/bin/baton" help | sed --quiet --regexp-extended \
  's/^       baton ((lora|weights) [a-z]+|[a-z]+) .*/\1/p' | grep --invert-match '^\(help\|version\)$' | sort --unique)
groff -man -Tutf8 -ww "$WORK"/man/*.1 >/dev/null 2>"$WORK/errors"
[[ ! -s $WORK/errors ]] || fail "$(cat "$WORK/errors")"
mandoc -Tlint -Wwarning "$WORK"/man/*.1 || fail "mandoc"

# The unit. What systemd finds beside it is this machine's: only lines about baton.service count.
sed "s|/opt/baton|$tree|" "$tree/lib/systemd/system/baton.service" >"$WORK/baton.service"
systemd-analyze verify --man=no "$WORK/baton.service" 2>"$WORK/errors" || true
! grep 'baton\.service' "$WORK/errors" || fail "systemd-analyze verify"
systemd-analyze security --offline=true --threshold=30 "$WORK/baton.service" >"$WORK/security" ||
  fail "the unit is less hardened than before: $(tail --lines=1 "$WORK/security")"
tail --lines=1 "$WORK/security"

# The Debian package.
(cd "$build" && cpack -G DEB -B "$WORK/deb" >/dev/null)
deb=$(ls "$WORK"/deb/*.deb)
package=$("$build/baton" --version | sed --quiet 's/.* (\(baton-[a-z]*\): .*/\1/p')
[[ $(dpkg-deb --field "$deb" Package) == "$package" ]] || fail "the package is not $package"
for relation in Provides Conflicts Replaces; do # of either package: one takes the other's place
  [[ $(dpkg-deb --field "$deb" "$relation") == baton ]] || fail "$relation is not baton"
done
dpkg-deb --contents "$deb" | awk '{ print $1, $2, substr($6, 2) }' >"$WORK/contents"
for file in /etc/baton/baton.json /usr/bin/baton /usr/lib/systemd/system/baton.service \
  /usr/share/man/man1/baton-serve.1.gz /usr/share/zsh/vendor-completions/_baton \
  "/usr/share/doc/$package/copyright" "/usr/share/doc/$package/changelog.gz"; do
  grep --quiet " root/root $file\$" "$WORK/contents" || fail "the package lacks $file: $(cat "$WORK/contents")"
done
! grep --invert-match '^[d-]rw[x-]r-[x-]r-[x-] ' "$WORK/contents" || fail "wrong modes in the package"
dpkg-deb --extract "$deb" "$WORK/extracted"
grep --quiet '^ExecStart=/usr/bin/baton serve --config /etc/baton/baton.json$' \
  "$WORK/extracted/usr/lib/systemd/system/baton.service" || fail "the package's unit"
[[ $(dpkg-deb --info "$deb" conffiles) == /etc/baton/baton.json ]] || fail "conffiles"
depends=$(dpkg-deb --field "$deb" Depends)
if [[ $package == baton-control ]]; then
  [[ $depends == *libmicrohttpd12* && $depends != *libutf8proc* && $depends != *libpcre2* ]] || fail "dependencies: $depends"
else
  [[ $depends == *libmicrohttpd12*libutf8proc2* ]] || fail "dependencies: $depends"
fi
for script in postinst prerm postrm; do
  dpkg-deb --info "$deb" "$script" | sh -n || fail "$script"
done

# The release tarball: only glibc comes from the system, and a glibc that is too new is refused.
"$source/deploy/tarball.sh" "$build" "$WORK/tarball"
! GLIBC_MAX=2.17 "$source/deploy/tarball.sh" "$build" "$WORK/other" 2>"$WORK/errors" || fail "2.17 is enough?"
grep --quiet 'needs glibc' "$WORK/errors" || fail "$(cat "$WORK/errors")"
[[ -z $(ls "$WORK/other") ]] || fail "a tarball was made of what was refused"
(cd "$WORK/tarball" && sha256sum --quiet --check ./*.sha256 && tar --extract --file ./*.tar.gz)
program=$(ls "$WORK"/tarball/*/bin/baton)
"$program" --version
foreign=$(ldd "$program" | awk -v own="$WORK" '$3 ~ "^/" && index($3, own) != 1 { print $1 }' | sort | xargs)
[[ $foreign == "libc.so.6 libm.so.6 libresolv.so.2" ]] || fail "libraries of the system: $foreign"
[[ $("$program" serve --help) == "$("$build/baton" serve --help)" ]] || fail "another program"
