//! A tar stream as a folder.
//!
//! The archive is hostile, and so is whoever changes the folder meanwhile: entries that are absolute or contain `..` are
//! refused, parents are resolved by the kernel and may not leave the folder (whatever symlinks the archive has put
//! there before), existing files are replaced rather than written through, devices are refused, setuid bits dropped.

use std::ffi::CString;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use sloplet_wire::{ErrorCode, Event, Failure};
use tar::{EntryType, Header};

use crate::context::Context;
use crate::failure::{self, fail, shown};
use crate::files::Subject;
use crate::files::resolve::open_at;
use crate::stream::{Job, Step, StreamIo};

/// Tar counts in these.
const BLOCK: usize = 512;

/// Bytes of one slice.
const BYTES_PER_SLICE: usize = 256 * 1024;

/// Entries begun in one slice.
const ENTRIES_PER_SLICE: usize = 64;

/// Longest extension (long name, PAX records) read.
const MAX_EXTENSION: u64 = 256 * 1024;

/// Longest path; the kernel takes no longer one.
const MAX_PATH: usize = 4095;

/// Folders whose owner may not write in them wait for their permissions until the end. No sane archive has many.
const MAX_DELAYED: usize = 4096;

/// An `Unpack` request.
pub(crate) struct Unpack {
    subject: Subject,
    base: OwnedFd,
    resolve: ResolveFlags,
    state: State,
    /// A header that has come in part.
    partial: Vec<u8>,
    next: Overrides,
    delayed: Vec<(Vec<u8>, u32)>,
    /// The folder of the last entry: the next one is mostly in it too.
    parent: Option<(Vec<u8>, OwnedFd)>,
}

/// What stands before a header and replaces parts of it.
#[derive(Default)]
struct Overrides {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

enum State {
    Header,
    /// Collecting a long name or PAX records.
    Extension {
        kind: EntryType,
        bytes: Vec<u8>,
        left: u64,
        padding: u64,
    },
    /// Writing a file.
    File {
        file: OwnedFd,
        path: Vec<u8>,
        left: u64,
        padding: u64,
        mode: u32,
        modified: u64,
    },
    /// Passing over content nobody needs.
    Skip(u64),
    /// After the end mark; whatever follows is padding.
    Over,
}

impl Unpack {
    pub(crate) fn new(context: &Context, subject: Subject) -> Result<Self, Failure> {
        let acting = subject.actor.act()?;
        let base = context.root.make_folders(&subject.path, &subject.actor)?;
        drop(acting);
        // In a whole root unpacked over, absolute symlinks (/var/run) mean that root; elsewhere they lead out.
        let is_root = context.root.is_whole() && subject.path.iter().all(|byte| *byte == b'/');
        let inside = if is_root { ResolveFlags::IN_ROOT } else { ResolveFlags::BENEATH };
        Ok(Self {
            subject,
            base,
            resolve: inside | ResolveFlags::NO_MAGICLINKS,
            state: State::Header,
            partial: Vec::new(),
            next: Overrides::default(),
            delayed: Vec::new(),
            parent: None,
        })
    }

    /// Uses some of `input` and returns how much.
    fn consume(&mut self, input: &[u8]) -> Result<usize, Failure> {
        match &mut self.state {
            State::Header => {
                let taken = input.len().min(BLOCK - self.partial.len());
                self.partial.extend_from_slice(&input[..taken]);
                if self.partial.len() == BLOCK {
                    let block = std::mem::take(&mut self.partial);
                    self.header(&block)?;
                }
                Ok(taken)
            }
            State::Extension { bytes, left, padding, .. } => {
                let taken = take(input, left);
                bytes.extend_from_slice(&input[..taken]);
                let passed = take(&input[taken..], padding);
                self.settle_extension()?;
                Ok(taken + passed)
            }
            State::File { file, path, left, padding, .. } => {
                if *left > 0 {
                    let most = input.len().min(BYTES_PER_SLICE).min(usize::try_from(*left).unwrap_or(usize::MAX));
                    let written = match rustix::io::write(&*file, &input[..most]) {
                        Ok(len) => len,
                        Err(Errno::INTR) => 0,
                        Err(error) => return Err(failure::errno(error, format_args!("unpacking {}", shown(path)))),
                    };
                    *left -= written as u64;
                    self.settle_file()?;
                    return Ok(written);
                }
                let used = take(input, padding);
                self.settle_file()?;
                Ok(used)
            }
            State::Skip(left) => {
                let used = take(input, left);
                if *left == 0 {
                    self.state = State::Header;
                }
                Ok(used)
            }
            State::Over => Ok(input.len()),
        }
    }

    fn header(&mut self, block: &[u8]) -> Result<(), Failure> {
        if block.iter().all(|byte| *byte == 0) {
            self.state = State::Over;
            return Ok(());
        }
        let broken = |what: &str| fail(ErrorCode::Invalid, format!("not a tar archive, or a damaged one: {what}"));
        let header = Header::from_byte_slice(block);
        let sum: u32 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| match at {
                148..156 => u32::from(b' '),
                _ => u32::from(*byte),
            })
            .sum();
        if header.cksum().ok() != Some(sum) {
            return Err(broken("wrong checksum"));
        }
        let own_size = header.entry_size().map_err(|_| broken("bad size"))?;
        let kind = header.entry_type();
        match kind {
            EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader => {
                if own_size > MAX_EXTENSION {
                    return Err(broken("a name or attribute is too long"));
                }
                let state = State::Extension { kind, bytes: Vec::new(), left: own_size, padding: padding(own_size) };
                self.state = state;
                return self.settle_extension();
            }
            EntryType::XGlobalHeader => {
                self.skip(own_size);
                return Ok(());
            }
            _ => {}
        }
        let overrides = std::mem::take(&mut self.next);
        let path = overrides.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = overrides.link.or_else(|| header.link_name_bytes().map(|link| link.into_owned()));
        let size = overrides.size.unwrap_or(own_size);
        let mode = header.mode().map_err(|_| broken("bad mode"))?;
        let components = components(&path)?;
        match kind {
            EntryType::Regular | EntryType::Continuous => {
                // An old way to write a folder.
                if path.ends_with(b"/") {
                    self.folder(&components, mode)?;
                    self.skip(size);
                    return Ok(());
                }
                let modified = header.mtime().unwrap_or(0);
                self.file(&components, &path, size, mode, modified)
            }
            EntryType::Directory => {
                self.folder(&components, mode)?;
                self.skip(size);
                Ok(())
            }
            EntryType::Symlink | EntryType::Link => {
                let link = link.ok_or_else(|| broken("a link without target"))?;
                self.link(kind, &components, &path, &link)?;
                self.skip(size);
                Ok(())
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                Err(fail(ErrorCode::Denied, format!("{} is a device or FIFO, which is not unpacked", shown(&path))))
            }
            _ => Err(fail(ErrorCode::Unsupported, format!("{} is of an unknown kind", shown(&path)))),
        }
    }

    fn skip(&mut self, size: u64) {
        let total = size.saturating_add(padding(size));
        self.state = if total == 0 { State::Header } else { State::Skip(total) };
    }

    /// Uses an extension once it is complete.
    fn settle_extension(&mut self) -> Result<(), Failure> {
        let State::Extension { kind, bytes, left: 0, padding: 0 } = &mut self.state else {
            return Ok(());
        };
        let (kind, mut bytes) = (*kind, std::mem::take(bytes));
        self.state = State::Header;
        if kind == EntryType::XHeader {
            return self.pax(&bytes);
        }
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        match kind {
            EntryType::GNULongName => self.next.path = Some(bytes),
            _ => self.next.link = Some(bytes),
        }
        Ok(())
    }

    /// PAX records: `length key=value\n`. Unknown keys (times, owners, extended attributes) are passed over.
    fn pax(&mut self, mut records: &[u8]) -> Result<(), Failure> {
        let broken = || fail(ErrorCode::Invalid, "a damaged tar archive: bad PAX record");
        while !records.is_empty() {
            let space = records.iter().position(|byte| *byte == b' ').ok_or_else(broken)?;
            let number = std::str::from_utf8(&records[..space]).ok().and_then(|text| text.parse::<usize>().ok());
            let len = number.filter(|len| *len > space + 1 && *len <= records.len()).ok_or_else(broken)?;
            let record = records[space + 1..len].strip_suffix(b"\n").ok_or_else(broken)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(broken)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => self.next.path = Some(value.to_vec()),
                b"linkpath" => self.next.link = Some(value.to_vec()),
                b"size" => {
                    let text = std::str::from_utf8(value).map_err(|_| broken())?;
                    self.next.size = Some(text.parse().map_err(|_| broken())?);
                }
                _ if key.starts_with(b"GNU.sparse") => {
                    return Err(fail(ErrorCode::Unsupported, "sparse files in archives are not unpacked"));
                }
                _ => {}
            }
            records = &records[len..];
        }
        Ok(())
    }

    fn file(&mut self, components: &[&[u8]], path: &[u8], size: u64, mode: u32, modified: u64) -> Result<(), Failure> {
        let (parent, name) = self.place(components)?;
        let describe = |error| failure::errno(error, format_args!("unpacking {}", shown(path)));
        clear_the_way(parent, &name).map_err(describe)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(parent, &name, flags, Mode::RUSR | Mode::WUSR).map_err(describe)?;
        let path = path.to_vec();
        self.state = State::File { file, path, left: size, padding: padding(size), mode, modified };
        self.settle_file()
    }

    /// Finishes a file once all of it has come.
    fn settle_file(&mut self) -> Result<(), Failure> {
        let State::File { file, path, left: 0, padding, mode, modified } = &self.state else {
            return Ok(());
        };
        if *padding == 0 {
            let describe = |error| failure::errno(error, format_args!("unpacking {}", shown(path)));
            rustix::fs::fchmod(file, Mode::from_raw_mode(mode & 0o777)).map_err(describe)?;
            let time = Timespec { tv_sec: i64::try_from(*modified).unwrap_or(0), tv_nsec: 0 };
            let _ = rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time });
            self.state = State::Header;
        }
        Ok(())
    }

    fn folder(&mut self, components: &[&[u8]], mode: u32) -> Result<(), Failure> {
        if components.is_empty() {
            // The folder itself, which keeps its own permissions.
            return Ok(());
        }
        let path = components.join(&b'/');
        let (parent, name) = self.place(components)?;
        let describe = |error| failure::errno(error, format_args!("unpacking {}", shown(&path)));
        let mode = mode & 0o1777;
        // Files must be put in before a read-only folder becomes so.
        match rustix::fs::mkdirat(parent, &name, Mode::from_raw_mode(mode | 0o300)) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                // Also through a symlink that stays inside.
                open_at(
                    &self.base,
                    &path,
                    OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
                    Mode::empty(),
                    self.resolve,
                )
                .map_err(describe)?;
                return Ok(());
            }
            Err(error) => return Err(describe(error)),
        }
        if mode & 0o300 != 0o300 {
            if self.delayed.len() >= MAX_DELAYED {
                return Err(fail(ErrorCode::Exhausted, "the archive has too many read-only folders"));
            }
            self.delayed.push((path, mode));
        }
        Ok(())
    }

    fn link(&mut self, kind: EntryType, names: &[&[u8]], path: &[u8], link: &[u8]) -> Result<(), Failure> {
        let describe = |error| failure::errno(error, format_args!("unpacking {}", shown(path)));
        if link.is_empty() || link.len() > MAX_PATH || link.contains(&0) {
            return Err(describe(Errno::INVAL));
        }
        if kind == EntryType::Symlink {
            // It may point anywhere: whoever follows it does so inside, and this job never does.
            let (parent, name) = self.place(names)?;
            clear_the_way(parent, &name).map_err(describe)?;
            return rustix::fs::symlinkat(link, parent, &name).map_err(describe);
        }
        let target = components(link)?;
        let (target_parent, target_name) = self.place(&target)?;
        let target_parent = rustix::io::fcntl_dupfd_cloexec(target_parent, 3).map_err(describe)?;
        let (parent, name) = self.place(names)?;
        // Onto itself: it is there already.
        if target != names {
            clear_the_way(parent, &name).map_err(describe)?;
            rustix::fs::linkat(&target_parent, &target_name, parent, &name, AtFlags::empty()).map_err(describe)?;
        }
        Ok(())
    }

    /// The folder (made if missing) and name of an entry.
    fn place(&mut self, components: &[&[u8]]) -> Result<(&OwnedFd, CString), Failure> {
        let Some((name, folders)) = components.split_last() else {
            return Err(fail(ErrorCode::Invalid, "an entry of the archive has no name"));
        };
        let name = CString::new(*name).map_err(|_| fail(ErrorCode::Invalid, "a name contains a NUL byte"))?;
        if folders.is_empty() {
            return Ok((&self.base, name));
        }
        let path = folders.join(&b'/');
        let known = matches!(&self.parent, Some((known, _)) if *known == path);
        if !known {
            self.parent = Some((path, self.open_folders(folders)?));
        }
        match &self.parent {
            Some((_, folder)) => Ok((folder, name)),
            None => Err(fail(ErrorCode::Io, "a folder vanished")),
        }
    }

    fn open_folders(&self, folders: &[&[u8]]) -> Result<OwnedFd, Failure> {
        const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
        let open =
            |depth: usize| open_at(&self.base, &folders[..depth].join(&b'/'), FOLDER, Mode::empty(), self.resolve);
        let describe = |error, depth: usize| {
            failure::errno(error, format_args!("folder {}", shown(&folders[..depth].join(&b'/'))))
        };
        // Deepest first: mostly it is there.
        let mut depth = folders.len();
        let mut folder = loop {
            match open(depth) {
                Ok(folder) => break Some(folder),
                Err(Errno::NOENT) if depth > 1 => depth -= 1,
                Err(Errno::NOENT) => {
                    depth = 0;
                    break None;
                }
                Err(error) => return Err(describe(error, depth)),
            }
        };
        while depth < folders.len() {
            let parent = folder.as_ref().unwrap_or(&self.base);
            match rustix::fs::mkdirat(parent, folders[depth], Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(describe(error, depth + 1)),
            }
            depth += 1;
            folder = Some(open(depth).map_err(|error| describe(error, depth))?);
        }
        folder.ok_or_else(|| fail(ErrorCode::Io, "a folder vanished"))
    }

    fn finish(&mut self) -> Result<(), Failure> {
        match &self.state {
            State::Header if self.partial.is_empty() => {}
            State::Over => {}
            _ => return Err(fail(ErrorCode::Invalid, "the tar archive is cut off")),
        }
        // The innermost first: the outer ones may forbid to reach them.
        while let Some((path, mode)) = self.delayed.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let describe = |error| failure::errno(error, format_args!("unpacking {}", shown(&path)));
            match open_at(&self.base, &path, flags, Mode::empty(), self.resolve) {
                Ok(folder) => rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode)).map_err(describe)?,
                // Replaced by a later entry.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(describe(error)),
            }
        }
        Ok(())
    }
}

/// Counts `left` down by as much of `input` as it covers, and returns how much that is.
fn take(input: &[u8], left: &mut u64) -> usize {
    let taken = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
    *left -= taken as u64;
    taken
}

fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

/// The names a path consists of; refuses those that lead elsewhere.
fn components(path: &[u8]) -> Result<Vec<&[u8]>, Failure> {
    let refuse = |why: &str| fail(ErrorCode::Denied, format!("archive entry {} {why}", shown(path)));
    if path.starts_with(b"/") {
        return Err(refuse("is absolute"));
    }
    if path.len() > MAX_PATH || path.contains(&0) {
        return Err(refuse("is too long or contains a NUL byte"));
    }
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    if names.contains(&&b".."[..]) {
        return Err(refuse("leads out of the folder"));
    }
    Ok(names)
}

/// Removes what is in the way: opening it could write through a symlink or into another name of the same file.
fn clear_the_way(folder: &OwnedFd, name: &CString) -> Result<(), Errno> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

impl Job for Unpack {
    fn step(&mut self, io: &mut StreamIo<'_>, _context: &Context) -> Result<Step, Failure> {
        let _acting = self.subject.actor.act()?;
        let mut bytes = 0;
        for _ in 0..ENTRIES_PER_SLICE {
            if io.input_is_over() {
                self.finish()?;
                io.event(&Event::Done);
                return Ok(Step::Finished);
            }
            if io.input().is_empty() {
                return Ok(Step::Wait);
            }
            let used = self.consume(io.input())?;
            io.consume_input(used);
            bytes += used;
            if bytes >= BYTES_PER_SLICE {
                break;
            }
        }
        Ok(Step::Again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        assert_eq!(components(b"./a//b/.").unwrap(), [b"a", b"b"]);
        assert!(components(b"./").unwrap().is_empty());
        for bad in [&b"/etc/passwd"[..], b"../x", b"a/../../x", b"a/..", b"a\0b"] {
            assert_eq!(components(bad).unwrap_err().code, ErrorCode::Denied, "{bad:?}");
        }
        assert!(components(&[b'x'; 5000]).is_err());
    }
}
