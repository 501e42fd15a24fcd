# Prints `head` and what differs from the last commit, or `image` and where the folder is that is to be compared with the
# image. $1 is the folder or file, $2 what is wanted. Nothing of the work tree changes: index and new objects are elsewhere.
work() {
    git -c safe.directory='*' -c core.fsmonitor=false -c core.hooksPath=/dev/null "$@"
}
if [ -d "$1" ]; then folder=$1 part=.; else folder=$(dirname -- "$1") part=$(basename -- "$1"); fi
cd -- "$folder" || exit 1
here=$(pwd -P)
if [ "$2" = image ] || ! work rev-parse --show-toplevel >/dev/null 2>&1; then
    if [ "$2" = head ]; then
        echo "$here is in no work tree of git, or git is not installed in the sandbox" >&2
        exit 1
    fi
    [ "$part" = . ] || here=${here%/}/$part
    printf 'image\n%s\n' "$here"
    exit 0
fi
aside=$(mktemp -d) || exit 1
trap 'rm -rf -- "$aside"' EXIT
objects=$(work rev-parse --path-format=absolute --git-path objects) || exit 1
index=$(work rev-parse --path-format=absolute --git-path index) || exit 1
mkdir -- "$aside/objects" || exit 1
export GIT_ALTERNATE_OBJECT_DIRECTORIES="$objects" GIT_OBJECT_DIRECTORY="$aside/objects"
export GIT_INDEX_FILE="$aside/index" GIT_LITERAL_PATHSPECS=1 GIT_OPTIONAL_LOCKS=0
base=$(work rev-parse --quiet --verify 'HEAD^{tree}') || base=$(work hash-object -t tree -w /dev/null) || exit 1
if [ -f "$index" ]; then cp -- "$index" "$aside/index"; else work read-tree "$base"; fi || exit 1
work add --all -- "$part" || exit 1
printf 'head\n'
work diff --cached --binary --full-index --no-color --no-ext-diff --no-textconv --no-renames --unified=3 \
    --inter-hunk-context=0 --src-prefix=a/ --dst-prefix=b/ "$base" -- "$part"
