//! Exported snapshots, taken into a store: only what is whole and sealed. The first byte says what is done to the rest before:
//! nothing, or sums, compression and a seal, so that what is within is reached.

use sha2::{Digest, Sha256};

use crate::{Target, support};

pub const TARGET: Target = Target {
    run,
    seeds,
    words: &["sloplet1", "sloplet-snapshot.json", "layers/a/", "\"packed\":true", "\"entries\":1", "\"layers\":["],
    longest: 8192,
};

fn run(bytes: &[u8]) {
    let Some((how, rest)) = bytes.split_first() else { return };
    let archive = if how % 4 == 0 { rest.to_vec() } else { sealed(&support::summed(rest)) };
    support::within_folder(|folder| sloplet_image::fuzzing::snapshot_archive(&archive, folder));
}

/// As an export ends: a frame that decompressors skip, with the digest of all before it.
fn sealed(tar: &[u8]) -> Vec<u8> {
    let mut packed = zstd::encode_all(tar, 1).expect("compression in memory");
    let digest = Sha256::digest(&packed);
    packed.extend_from_slice(b"\x53\x2a\x4d\x18\x28\x00\x00\x00sloplet1");
    packed.extend_from_slice(&digest);
    packed
}

fn seeds() -> Vec<Vec<u8>> {
    let manifest = format!(
        r#"{{"format":"sloplet-snapshot","version":1,"architecture":"{}","config":{{}},"layers":[{{"name":"a","packed":true,"bytes":7,"entries":2}}],"snapshot":null}}"#,
        std::env::consts::ARCH
    );
    let tar = [
        support::member("sloplet-snapshot.json", b'0', "", manifest.as_bytes()),
        support::member("layers/a/", b'5', "", b""),
        support::member("layers/a/file", b'0', "", b"content"),
        vec![0; 1024],
    ]
    .concat();
    vec![[&[1], tar.as_slice()].concat(), [&[0], sealed(&tar).as_slice()].concat()]
}
