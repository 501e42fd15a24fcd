//! Names and secrets by chance.

/// Sixteen random letters and digits; no hyphens, so that `<port>-<id>` can be taken apart.
pub fn new_id() -> String {
    random_bytes::<16>()
        .map(|byte| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(byte % 32)]))
        .iter()
        .collect()
}

/// Forty random hexadecimal digits: whoever knows them may do something.
pub fn new_secret() -> String {
    random_bytes::<20>().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0u8; N];
    // Fails only before the pool is ready, long before a user can start a program.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes
}
