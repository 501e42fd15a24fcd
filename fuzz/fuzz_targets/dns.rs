//! DNS questions from inside: every answer fits and is never answered itself.

use crate::Target;

pub const TARGET: Target = Target { run, seeds, words: &["\x04test\0", "\x07in-addr\x04arpa\0", "\x03ip6\x04arpa\0"], longest: 512 };

fn run(message: &[u8]) {
    sloplet_egress::fuzzing::dns(message);
}

fn seeds() -> Vec<Vec<u8>> {
    let ask = |name: &[u8], kind: u8| [b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0".as_slice(), name, &[0, kind, 0, 1]].concat();
    let mut edns = ask(b"\x01a\x04test\0", 28);
    edns[11] = 1;
    edns.extend(b"\0\0\x29\x04\xd0\0\0\0\0\0\0");
    vec![ask(b"\x01a\x04test\0", 1), ask(b"\x011\x010\x010\x03127\x07in-addr\x04arpa\0", 12), edns]
}
