//! The key by which clients recognise the server. Made once; a new one would look like an attack to them.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use ring::rand::{SecureRandom, SystemRandom};
use russh::keys::PrivateKey;
use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::Ed25519Keypair;

/// The folder of the data folder that it is kept in.
const FOLDER: &str = "ssh";
const FILE: &str = "host_ed25519";

/// Reads it, or makes it if there is none.
pub fn of(data: &Path) -> io::Result<PrivateKey> {
    let folder = data.join(FOLDER);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let path = folder.join(FILE);
    match fs::metadata(&path) {
        Ok(metadata) if metadata.mode() & 0o077 != 0 => {
            Err(bad(&path, &"others can read it: chmod 600, or remove it to have a new one made"))
        }
        Ok(_) => {
            let text = fs::read_to_string(&path).map_err(|error| bad(&path, &error))?;
            PrivateKey::from_openssh(&text).map_err(|error| bad(&path, &error))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(&folder, &path),
        Err(error) => Err(bad(&path, &error)),
    }
}

fn make(folder: &Path, path: &Path) -> io::Result<PrivateKey> {
    let mut seed = [0; 32];
    SystemRandom::new().fill(&mut seed).map_err(|_| io::Error::other("the system gives no random numbers"))?;
    let key = PrivateKey::from(Ed25519Keypair::from_seed(&seed));
    let text = key.to_openssh(LineEnding::LF).map_err(io::Error::other)?;
    // Beside its place first: a server that is killed now leaves no half key.
    let draft = folder.join(format!("{FILE}.new"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    Ok(key)
}

fn bad(path: &Path, reason: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("the SSH host key {}: {reason}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_stays_the_same_and_is_nobody_elses() {
        let data = tempfile::tempdir().unwrap();
        let made = of(data.path()).unwrap();
        assert_eq!(of(data.path()).unwrap().public_key(), made.public_key());
        let path = data.path().join(FOLDER).join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(of(data.path()).unwrap_err().to_string().contains("chmod 600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "nonsense").unwrap();
        assert!(of(data.path()).is_err());
    }
}
