//! What a sandbox has written, as an archive of an image's layer.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};
use tar::{Builder, EntryType, Header};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::talk::Saved;

/// Where the disk is mounted a second time, for this.
const PLACE: &str = "/run/disk";

/// What the overlay marks a folder with that hides those below it.
const OPAQUE: &str = "user.overlay.opaque";

/// Sends what is on the disk in pieces, and an empty one at the end, also if something fails on the way.
pub async fn send(device: &Path, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<Saved> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut ours = UnixStream::from_std(ours)?;
    let device = device.to_owned();
    let packing = tokio::task::spawn_blocking(move || pack(&device, theirs));
    let mut piece = vec![0; 256 * 1024];
    loop {
        let count = ours.read(&mut piece).await?;
        stream.write_all(&(count as u32).to_le_bytes()).await?;
        stream.write_all(&piece[..count]).await?;
        if count == 0 {
            break;
        }
    }
    packing.await.map_err(io::Error::other)?
}

fn pack(device: &Path, output: impl Write) -> io::Result<Saved> {
    let place = Path::new(PLACE);
    if !place.exists() {
        fs::create_dir_all(place)?;
        mount(device, place, "ext4", MountFlags::NODEV, None)?;
    }
    let output = io::BufWriter::with_capacity(256 * 1024, output);
    let mut packer = Packer { archive: Builder::new(output), links: HashMap::new(), saved: Saved::default() };
    let root = place.join("upper");
    packer.folder(&root, Path::new(""))?;
    packer.archive.into_inner()?.flush()?;
    Ok(packer.saved)
}

struct Packer<W: Write> {
    archive: Builder<W>,
    links: HashMap<u64, PathBuf>,
    saved: Saved,
}

impl<W: Write> Packer<W> {
    fn folder(&mut self, dir: &Path, inside: &Path) -> io::Result<()> {
        let mut names: Vec<OsString> = fs::read_dir(dir)?.flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        for name in names {
            self.entry(&dir.join(&name), &inside.join(&name))?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, inside: &Path) -> io::Result<()> {
        let meta = fs::symlink_metadata(path)?;
        let kind = meta.file_type();
        let mut header = Header::new_gnu();
        header.set_metadata(&meta);
        header.set_size(0);
        self.saved.files += 1;
        if kind.is_char_device() && meta.rdev() == 0 {
            let mut name = OsString::from(".wh.");
            name.push(inside.file_name().unwrap_or_default());
            header.set_entry_type(EntryType::Regular);
            header.set_mode(0o644);
            return self.archive.append_data(&mut header, inside.with_file_name(name), io::empty());
        }
        if kind.is_dir() {
            self.archive.append_data(&mut header, inside, io::empty())?;
            let mut mark = [0; 1];
            if rustix::fs::lgetxattr(path, OPAQUE, &mut mark).is_ok_and(|length| length == 1 && mark == *b"y") {
                let mut header = Header::new_gnu();
                header.set_entry_type(EntryType::Regular);
                header.set_size(0);
                header.set_mode(0o644);
                self.archive.append_data(&mut header, inside.join(".wh..wh..opq"), io::empty())?;
            }
            return self.folder(path, inside);
        }
        if kind.is_symlink() {
            let target = fs::read_link(path)?;
            return self.archive.append_link(&mut header, inside, target);
        }
        if !kind.is_file() || inside.file_name().is_some_and(|name| name.as_bytes().starts_with(b".wh.")) {
            self.saved.skipped += 1;
            return Ok(());
        }
        if meta.nlink() > 1 {
            if let Some(first) = self.links.get(&meta.ino()) {
                header.set_entry_type(EntryType::Link);
                return self.archive.append_link(&mut header, inside, first);
            }
            self.links.insert(meta.ino(), inside.to_owned());
        }
        header.set_size(meta.len());
        self.saved.bytes += meta.len();
        self.archive.append_data(&mut header, inside, fs::File::open(path)?)
    }
}
