//! What the fuzz targets in `fuzz/` may call of this crate, with what must hold for any bytes of a client or an image.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sloplet_wire::Target;

use crate::context::Context;
use crate::files::Subject;
use crate::unpack::Unpack;
use crate::{Config, Identity};

pub use crate::builtin::sftp_fields;
pub use crate::users::fuzzed as user_database;

/// Unpacks an archive into a folder, in pieces of `size` bytes: nothing appears beside that folder.
pub fn unpack_beneath(bytes: &[u8], folder: &Path, size: usize) {
    let (root, home) = (folder.join("root"), folder.join("root/home"));
    if fs::create_dir(&root).is_err() || fs::create_dir(&home).is_err() {
        return;
    }
    let Ok(own) = fs::metadata(&root) else { return };
    let config = Config {
        stream: None,
        pipes: None,
        device: None,
        listener: None,
        door: None,
        identity: Identity::Fixed { uid: own.uid(), gid: own.gid(), name: "user".into(), home: home.clone() },
        root: root.clone(),
        oom_score: None,
        command_filter: None,
        spare_filter: None,
    };
    if let Ok(context) = Context::new(&config) {
        let path = home.as_os_str().as_bytes().to_vec();
        let target = Target { path: path.into(), ..Target::default() };
        let unpack = Subject::new(&context, &target).and_then(|subject| Unpack::new(&context, subject));
        assert!(unpack.is_ok(), "the folder is not taken: {:?}", unpack.err());
        if let Ok(mut unpack) = unpack {
            let _ = unpack.all(bytes.chunks(size.max(1)));
        }
    }
    let beside = (fs::read_dir(folder).map_or(1, Iterator::count), fs::read_dir(&root).map_or(1, Iterator::count));
    assert_eq!(beside, (1, 1), "something appeared beside the folder");
}
