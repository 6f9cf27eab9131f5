# Shared by the scripts here; sourced, not run.

say() { printf '==> %s\n' "$*"; }
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# apt_install OTHERWISE PACKAGE...: install the first package that this Debian or Ubuntu has, as root or through sudo.
# OTHERWISE tells the user what to do where that can't be.
apt_install() {
    local otherwise=$1 package run=()
    shift
    command -v apt-get > /dev/null || fail "$otherwise"
    if [ "$(id -u)" != 0 ]; then
        command -v sudo > /dev/null || fail "$otherwise (as root: apt-get install $1)"
        run=(sudo)
    fi
    say "asking apt-get for $1"
    "${run[@]}" apt-get update -qq || fail "apt-get update failed; $otherwise"
    for package in "$@"; do
        [ -z "$(apt-cache search --names-only "^$package\$")" ] || break
    done
    say "installing $package"
    "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$package" ||
        fail "apt-get could not install $package; $otherwise"
}
