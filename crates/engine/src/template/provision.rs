//! What every template has, whatever image it starts from: a user `user` with a home, who may become root.

/// Who runs the steps of a build, and commands in its sandboxes, unless the recipe says otherwise.
pub(super) const USER: &str = "user";

/// Where steps start, unless the recipe says otherwise.
pub(super) const HOME: &str = "/home/user";

/// Run as root. Works with the tools of Debian, of Alpine, and with none.
pub(super) const SCRIPT: &str = r#"
set -e
shell=/bin/sh
[ -x /bin/bash ] && shell=/bin/bash
if ! grep -q '^user:' /etc/passwd 2>/dev/null; then
    if command -v useradd >/dev/null 2>&1; then
        useradd -m -s "$shell" user
    elif command -v adduser >/dev/null 2>&1; then
        adduser -D -s "$shell" user
    else
        id=1000
        while grep -q "^[^:]*:[^:]*:$id:" /etc/passwd /etc/group 2>/dev/null; do id=$((id + 1)); done
        echo "user:x:$id:$id::/home/user:$shell" >>/etc/passwd
        echo "user:x:$id:" >>/etc/group
    fi
fi
if [ ! -d /home/user ]; then
    mkdir -p /home/user
    chown user: /home/user
fi
if [ -d /etc/sudoers.d ] && [ ! -e /etc/sudoers.d/user ]; then
    echo 'user ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/user
    chmod 0440 /etc/sudoers.d/user
fi
"#;
