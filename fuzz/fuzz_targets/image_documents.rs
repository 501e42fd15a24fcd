//! JSON of registries and archives: manifests, indexes, configurations.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["sha256:", "\"manifests\":", "\"layers\":", "\"rootfs\":", "\"diff_ids\":", "\"Env\":", "18446744073709551615"], longest: 4096 };

fn run(bytes: &[u8]) {
    sloplet_image::fuzzing::documents(bytes)
}

fn seeds() -> Vec<Vec<u8>> {
    let digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let texts = [
        format!(r#"{{"manifests":[{{"digest":"{digest}","size":7,"platform":{{"os":"linux","architecture":"amd64"}}}}]}}"#),
        format!(r#"{{"config":{{"digest":"{digest}"}},"layers":[{{"digest":"{digest}","mediaType":"x"}}]}}"#),
        format!(r#"{{"architecture":"amd64","config":{{"Env":["A=1"],"Cmd":["sh"],"User":"1"}},"rootfs":{{"diff_ids":["{digest}"]}}}}"#),
        r#"[{"Config":"c.json","Layers":["l.tar"]}]"#.to_owned(),
        r#"{"format":"sloplet-snapshot","version":1,"architecture":"x86_64","config":{},"layers":[{"name":"a","packed":true,"bytes":1,"entries":1}],"snapshot":{}}"#.to_owned(),
    ];
    support::texts(&texts.each_ref().map(String::as_str))
}
