//! Specifications of devices, from vendors: only plain paths inside.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["cdiVersion: ", "kind: a/b", "devices:", "containerEdits:", "deviceNodes:", "create-symlinks", "--link", "::", "&a ", "*a"], longest: 2048 };

fn run(bytes: &[u8]) {
    sloplet_engine::fuzzing::cdi(&String::from_utf8_lossy(bytes))
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&[
        "cdiVersion: \"0.6.0\"\nkind: vendor.com/gpu\ndevices:\n  - name: \"0\"\n    containerEdits:\n      deviceNodes:\n        - path: /dev/x\n      hooks:\n        - hookName: createContainer\n          path: /usr/bin/nvidia-cdi-hook\n          args: [nvidia-cdi-hook, create-symlinks, --link, \"a::/b\"]\ncontainerEdits:\n  env: [A=1]\n  mounts:\n    - hostPath: /lib/x\n      containerPath: /lib/x\n",
        r#"{"cdiVersion":"0.5.0","kind":"a/b","devices":[{"name":"all","containerEdits":{"deviceNodes":[{"path":"/dev/y","hostPath":"/dev/z"}]}}]}"#,
    ])
}
