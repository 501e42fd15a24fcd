//! Layers as they come, compressed or not: bounded by the limits.

use crate::Target;

pub const TARGET: Target = Target { run, seeds, words: &["\x1f\x28"], longest: 4096 };

fn run(bytes: &[u8]) {
    sloplet_image::fuzzing::layer_stream(bytes)
}

fn seeds() -> Vec<Vec<u8>> {
    vec![
        vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x4b, 0x4c, 0x4a, 6, 0, 0xc2, 0x41, 0x24, 0x35, 3, 0, 0, 0],
        vec![0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x19, 0, 0, b'a', b'b', b'c', 0x3f, 0xba, 0xc4, 0x59],
        vec![0x28, 0xb5, 0x2f, 0xfd, 0x20, 3, 0x19, 0, 0, b'a', b'b', b'c'],
        b"plain".to_vec(),
    ]
}
