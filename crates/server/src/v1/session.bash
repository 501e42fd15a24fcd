# Takes up what the last command of the session left, runs this one, and leaves its own. Only builtins where it matters:
# the session may have changed PATH, and defined functions of any name.
readonly __sloplet_file="$1" __sloplet_command="$2"
set --
__sloplet_special() {
    case "$1" in
        __sloplet_* | BASH* | _ | COMP_* | DIRSTACK | EPOCH* | EUID | FUNCNAME | GROUPS | HISTCMD | IFS | LINENO | OPTIND | \
            PIPESTATUS | PPID | RANDOM | SECONDS | SHELLOPTS | SHLVL | SRANDOM | UID) return 0 ;;
    esac
    return 1
}
__sloplet_save() (
    builtin set +euxfvn
    __sloplet_umask=$(builtin umask)
    builtin umask 077
    {
        builtin printf 'builtin umask %s\n' "$__sloplet_umask"
        builtin declare -p IFS
        IFS=$'\n'
        builtin set -f
        for __sloplet_name in $(builtin compgen -v); do
            __sloplet_special "$__sloplet_name" && continue
            __sloplet_text=$(builtin declare -p "$__sloplet_name" 2>/dev/null) || continue
            case "$__sloplet_text" in
                "declare -"*r*" $__sloplet_name"*) # read-only ones could not be set again
                    __sloplet_attributes=${__sloplet_text#declare -}
                    case "${__sloplet_attributes%% *}" in *r*) continue ;; esac ;;
            esac
            builtin printf '%s\n' "$__sloplet_text"
        done
        for __sloplet_name in $(builtin compgen -A function); do
            case "$__sloplet_name" in __sloplet_*) ;; *) builtin declare -f "$__sloplet_name" ;; esac
        done
        builtin printf 'builtin cd -- %q 2>/dev/null\n' "$PWD"
    } >"$__sloplet_file.new" 2>/dev/null && builtin command -p mv -f -- "$__sloplet_file.new" "$__sloplet_file"
)
if [ -f "$__sloplet_file" ]; then
    # What the last command has unset stays unset.
    for __sloplet_name in $(compgen -e); do
        __sloplet_special "$__sloplet_name" || unset "$__sloplet_name"
    done
    . "$__sloplet_file" 2>/dev/null
    unset __sloplet_name
fi
trap '{ __sloplet_save; } 2>/dev/null' EXIT
eval "$__sloplet_command"
