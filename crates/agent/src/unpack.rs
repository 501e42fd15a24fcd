//! A tar stream as a folder.
//!
//! The archive is hostile, and so is whoever changes the folder meanwhile: entries that are absolute or contain `..` are
//! refused, parents are resolved by the kernel and may not leave the folder (whatever symlinks the archive has put
//! there before), existing files are replaced rather than written through, devices are refused, setuid bits dropped. A file
//! appears when all of it has come.

mod extension;
mod folder;
mod place;

use std::ffi::CString;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use sloplet_wire::{ErrorCode, Event, Failure};
use tar::{EntryType, Header};

use crate::context::Context;
use crate::failure::{self, fail, shown};
use crate::files::{Subject, temporary_name};
use crate::stream::{Job, Step, StreamIo};
use place::components;

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
    /// What a file is called until all of it has come.
    draft: CString,
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
    /// Writing a file, under another name until all of it has come.
    File {
        file: OwnedFd,
        /// Its name, and whether it is in the base itself; else it is in `parent`.
        name: CString,
        in_base: bool,
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
            draft: temporary_name(),
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

    fn file(&mut self, components: &[&[u8]], path: &[u8], size: u64, mode: u32, modified: u64) -> Result<(), Failure> {
        let draft = self.draft.clone();
        let (parent, name) = self.place(components)?;
        let describe = |error| failure::errno(error, format_args!("unpacking {}", shown(path)));
        // Told before all of it has come.
        if is_folder(parent, &name) {
            return Err(describe(Errno::ISDIR));
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(parent, &draft, flags, Mode::RUSR | Mode::WUSR).map_err(describe)?;
        let (path, in_base) = (path.to_vec(), components.len() == 1);
        self.state = State::File { file, name, in_base, path, left: size, padding: padding(size), mode, modified };
        self.settle_file()
    }

    /// Finishes a file once all of it has come.
    fn settle_file(&mut self) -> Result<(), Failure> {
        let State::File { file, name, in_base, path, left: 0, padding: 0, mode, modified } = &self.state else {
            return Ok(());
        };
        let describe = |error| failure::errno(error, format_args!("unpacking {}", shown(path)));
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode & 0o777)).map_err(describe)?;
        let time = Timespec { tv_sec: i64::try_from(*modified).unwrap_or(0), tv_nsec: 0 };
        let _ = rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time });
        // Takes the place of what was there, without following or opening it.
        let folder = self.folder_of(*in_base);
        rustix::fs::renameat(folder, &self.draft, folder, name).map_err(describe)?;
        self.state = State::Header;
        Ok(())
    }

    /// The folder of the file that is being written.
    fn folder_of(&self, in_base: bool) -> &OwnedFd {
        match &self.parent {
            Some((_, folder)) if !in_base => folder,
            _ => &self.base,
        }
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

    fn finish(&mut self) -> Result<(), Failure> {
        match &self.state {
            State::Header if self.partial.is_empty() => {}
            State::Over => {}
            _ => return Err(fail(ErrorCode::Invalid, "the tar archive is cut off")),
        }
        self.settle_folders()
    }
}

#[cfg(feature = "fuzzing")]
impl Unpack {
    /// Takes a whole archive; see [`crate::fuzzing`].
    pub(crate) fn all<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) -> Result<(), Failure> {
        for mut piece in pieces {
            while !piece.is_empty() {
                let used = self.consume(piece)?;
                piece = &piece[used..];
            }
        }
        self.finish()
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

/// Removes what is in the way: opening it could write through a symlink or into another name of the same file.
fn clear_the_way(folder: &OwnedFd, name: &CString) -> Result<(), Errno> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a folder is in the way.
fn is_folder(folder: &OwnedFd, name: &CString) -> bool {
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

impl Drop for Unpack {
    fn drop(&mut self) {
        // A file that was cut off. What it was to replace is still there.
        if let State::File { in_base, .. } = &self.state {
            let _acting = self.subject.actor.act();
            let _ = rustix::fs::unlinkat(self.folder_of(*in_base), &self.draft, AtFlags::empty());
        }
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
