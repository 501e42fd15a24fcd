//! Files that may be read and not changed.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use rustix::pipe::{SpliceFlags, pipe_with, splice};
use sloplet_policy::Feature;

use crate::part::{Parts, by_descriptor, head, nothing, writable};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "read-only-files",
    ids: &[34],
    tries: "write, truncate, chmod, link and splice into files shown read-only; write to /usr",
    why: "CVE-2022-0847 ('dirty pipe') wrote through read-only mounts; a changed program of the host runs on the host",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[18] }, // EXDEV
};

fn parts(settings: &Settings, parts: &mut Parts) {
    parts.add("write", |settings| {
        let before = head(&settings.read_only, 4096)?;
        File::options().write(true).open(&settings.read_only)?.write_all(&before)?;
        Ok("written".into())
    });
    parts.add("truncate", |settings| {
        let length = head(&settings.read_only, 4096)?.len() as u64;
        File::options().write(true).open(&settings.read_only)?.set_len(length)?;
        Ok("truncated".into())
    });
    // Whose commands are this very user's can change the modes of what this user owns.
    parts.of_claim(Feature::OwnUids).add("chmod", |settings| {
        std::fs::set_permissions(&settings.read_only, Permissions::from_mode(0o644))?;
        Ok("changed".into())
    });
    parts.add("link", |settings| {
        let second = settings.read_only.with_extension("second");
        std::fs::hard_link(&settings.read_only, &second)?;
        std::fs::remove_file(&second)?;
        Ok("linked".into())
    });
    parts.add("by its descriptor", |settings| {
        let file = File::open(&settings.read_only)?;
        writable(by_descriptor(&file))
    });
    // No kernel in use does this any more; the file's content is what counts.
    parts.optional("dirty pipe", |settings| {
        let before = head(&settings.read_only, 4096)?;
        let (reader, writer) = pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let page = [b'x'; 4096];
        for _ in 0..16 {
            rustix::io::write(&writer, &page)?;
        }
        let mut sink = [0u8; 4096];
        for _ in 0..16 {
            rustix::io::read(&reader, &mut sink)?;
        }
        let mut offset = 0;
        splice(File::open(&settings.read_only)?, Some(&mut offset), &writer, None, 1, SpliceFlags::empty())?;
        rustix::io::write(&writer, b"DIRTY")?;
        if head(&settings.read_only, 4096)? == before {
            nothing("unchanged")
        } else {
            Ok("the file was changed".into())
        }
    });
    for folder in ["/usr", "/usr/bin"].into_iter().filter(|_| settings.host_programs) {
        parts.add(format!("a file in {folder}"), move |_| {
            let path = format!("{folder}/.sloplet-attempt-{}", std::process::id());
            std::fs::write(&path, "")?;
            std::fs::remove_file(&path)?;
            Ok("made".into())
        });
    }
}
