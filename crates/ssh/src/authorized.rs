//! A file of public keys whose owners are the server's own user.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sloplet_server::ssh::PublicKey;

/// Bytes of the file that are read.
const BYTES: u64 = 1024 * 1024;

/// The keys of a file in OpenSSH's form. A line with options is an error: to let somebody in without the restrictions that
/// were meant would be worse than not to.
pub fn read(path: &Path) -> io::Result<Vec<PublicKey>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(named)?;
    let metadata = file.metadata().map_err(named)?;
    if metadata.mode() & 0o022 != 0 {
        return Err(named(io::Error::other("others can write to it: chmod go-w")));
    }
    let mut text = String::new();
    file.take(BYTES).read_to_string(&mut text).map_err(named)?;
    let mut keys = Vec::new();
    for (number, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = PublicKey::parse(line).map_err(|error| {
            named(io::Error::other(format!("line {}: {error} (options before a key are not supported)", number + 1)))
        })?;
        keys.push(key);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me";

    #[test]
    fn keys_are_read_and_options_are_not_overlooked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        fs::write(&path, format!("# mine\n\n{KEY}\n")).unwrap();
        assert_eq!(read(&path).unwrap().len(), 1);
        fs::write(&path, format!("{KEY}\ncommand=\"true\" {KEY}\n")).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("line 2"));
        fs::write(&path, KEY).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("chmod go-w"));
    }
}
