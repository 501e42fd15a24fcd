//! TLS ClientHellos from inside: one name, whatever the records and however many bytes are there yet.

use crate::Target;

pub const TARGET: Target = Target { run, seeds, words: &["\x16\x03\x01", "\x01\0\0", "a.test"], longest: 2048 };

fn run(bytes: &[u8]) {
    sloplet_egress::fuzzing::client_hello(bytes);
}

fn seeds() -> Vec<Vec<u8>> {
    let vector = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let name = vector(&[&[0][..], &vector(b"a.test")].concat());
    let extensions = vector(&[&[0, 0][..], &vector(&name), &[0, 43, 0, 3, 2, 3, 4]].concat());
    let body = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 19, 1], &[1, 0], &extensions].concat();
    let message = [&[1, 0][..], &vector(&body)].concat();
    let record = |part: &[u8]| [&[22, 3, 1][..], &vector(part)].concat();
    let (one, two) = message.split_at(40);
    vec![record(&message), [record(one), record(two)].concat(), b"\x80\x2e\x01\x03\x01".to_vec()]
}
