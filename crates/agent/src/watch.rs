//! Changes in a folder.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;

use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use sloplet_wire::{Change, ChangeKind, ErrorCode, Event, Failure};

use crate::context::Context;
use crate::failure::{self, fail, shown};
use crate::files::Subject;
use crate::files::TEMPORARY_PREFIX;
use crate::files::resolve::by_descriptor;
use crate::files::walk::{FOLDER, MAX_DEPTH, Walk};
use crate::poll::Readiness;
use crate::stream::{Job, Step, StreamIo};

/// Folders watched by one stream.
const MAX_WATCHES: usize = 8192;

/// Entries scanned or changes told in one slice.
const PER_SLICE: usize = 256;

/// A `Watch` request.
pub(crate) struct Watch {
    subject: Subject,
    inotify: OwnedFd,
    base: OwnedFd,
    recursive: bool,
    /// Watched folders by descriptor of the kernel: their paths below the base, empty or ending with a slash.
    folders: BTreeMap<i32, Vec<u8>>,
    /// Folders to be watched and searched for more; those that were made later report what is in them.
    scans: Vec<Scan>,
    established: bool,
    readable: bool,
    /// What the kernel calls the renaming of an upload that is about to be in its place.
    upload: Option<u32>,
}

struct Scan {
    /// Below the base, empty or ending with a slash.
    path: Vec<u8>,
    walk: Option<Walk>,
    reports: bool,
}

/// An event as the kernel told it.
struct Seen {
    number: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Vec<u8>,
}

fn is_upload(name: &[u8]) -> bool {
    let random = name.strip_prefix(TEMPORARY_PREFIX.as_bytes());
    random.is_some_and(|random| random.len() == 16 && random.iter().all(u8::is_ascii_hexdigit))
}

impl Watch {
    pub(crate) fn new(context: &Context, subject: Subject, recursive: bool) -> Result<Self, Failure> {
        let acting = subject.actor.act()?;
        let base = context.root.open(&subject.path, OFlags::PATH | OFlags::DIRECTORY)?;
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .map_err(|error| failure::errno(error, "too many watches"))?;
        drop(acting);
        let scans = vec![Scan { path: Vec::new(), walk: None, reports: false }];
        Ok(Self {
            subject,
            inotify,
            base,
            recursive,
            folders: BTreeMap::new(),
            scans,
            established: false,
            readable: false,
            upload: None,
        })
    }

    /// Watches the folder of the newest scan, or looks at one of its entries.
    fn scan(&mut self, io: &mut StreamIo<'_>) -> Result<(), Failure> {
        let Some(scan) = self.scans.last_mut() else {
            return Ok(());
        };
        let Some(walk) = &mut scan.walk else {
            let path = scan.path.clone();
            match self.open(&path) {
                Ok(folder) => {
                    // Watched first, then read: what is made in between is seen at least once.
                    self.add(&folder, path.clone())?;
                    let walk = if self.recursive || !path.is_empty() { self.read(&folder) } else { None };
                    match (walk, self.scans.last_mut()) {
                        (Some(walk), Some(scan)) => scan.walk = Some(walk),
                        _ => {
                            self.scans.pop();
                        }
                    }
                }
                Err(error) if path.is_empty() => {
                    return Err(failure::errno(error, shown(&self.subject.path)));
                }
                // Gone again, or a folder that this user may not read.
                Err(_) => {
                    self.scans.pop();
                }
            }
            return Ok(());
        };
        let Some(name) = walk.next() else {
            self.scans.pop();
            return Ok(());
        };
        let mut path = [&*scan.path, name.to_bytes()].concat();
        let kind = walk.folder().and_then(|folder| rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW));
        if scan.reports && kind.is_ok() {
            io.event(&Event::Change(Change { kind: ChangeKind::Create, path: path.clone().into() }));
        }
        if kind.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
            path.push(b'/');
            let reports = scan.reports;
            // As for every walk: each level holds a descriptor.
            if self.scans.len() < MAX_DEPTH {
                self.scans.push(Scan { path, walk: None, reports });
            }
        }
        Ok(())
    }

    /// Opens a folder below the base, through no symlink.
    fn open(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let below: &[u8] = if path.is_empty() { b"." } else { path };
        let inside = rustix::fs::ResolveFlags::BENEATH | rustix::fs::ResolveFlags::NO_SYMLINKS;
        crate::files::resolve::open_at(
            &self.base,
            below,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            inside,
        )
    }

    fn read(&self, folder: &OwnedFd) -> Option<Walk> {
        let readable = rustix::fs::openat(folder, c".", FOLDER, Mode::empty()).ok()?;
        Walk::new(readable).ok()
    }

    fn add(&mut self, folder: &OwnedFd, path: Vec<u8>) -> Result<(), Failure> {
        if self.folders.len() >= MAX_WATCHES {
            return Err(fail(ErrorCode::Exhausted, format!("more than {MAX_WATCHES} folders to watch")));
        }
        let interest = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        match inotify::add_watch(&self.inotify, by_descriptor(folder), interest) {
            Ok(number) => {
                self.folders.insert(number, path);
                Ok(())
            }
            Err(Errno::NOSPC | Errno::NOMEM) => {
                Err(fail(ErrorCode::Exhausted, "the system's limit of watched folders is reached"))
            }
            Err(error) if path.is_empty() => Err(failure::errno(error, shown(&self.subject.path))),
            Err(_) => Ok(()),
        }
    }

    /// Tells what the kernel has to tell; `false` when that was all.
    fn report(&mut self, io: &mut StreamIo<'_>) -> Result<bool, Failure> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Vec::new();
        {
            // One read; what does not fit stays with the kernel.
            let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
            loop {
                match reader.next() {
                    Ok(event) => {
                        let name = event.file_name().map(|name| name.to_bytes().to_vec()).unwrap_or_default();
                        events.push(Seen { number: event.wd(), flags: event.events(), cookie: event.cookie(), name });
                    }
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return Ok(false),
                    Err(error) => return Err(failure::errno(error, "reading changes")),
                }
                if reader.is_buffer_empty() {
                    break;
                }
            }
        }
        for seen in events {
            self.tell(io, &seen);
        }
        Ok(true)
    }

    fn tell(&mut self, io: &mut StreamIo<'_>, seen: &Seen) {
        let Seen { number, flags, cookie, ref name } = *seen;
        let mut send = |kind: ChangeKind, path: Vec<u8>| io.event(&Event::Change(Change { kind, path: path.into() }));
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            send(ChangeKind::Overflow, Vec::new());
            // Folders may have been made unseen.
            if self.recursive {
                self.scans.push(Scan { path: Vec::new(), walk: None, reports: false });
            }
            return;
        }
        let Some(folder) = self.folders.get(&number) else {
            return;
        };
        if flags.contains(ReadFlags::IGNORED) {
            self.folders.remove(&number);
            return;
        }
        if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
            // Told by the folder above, except for the watched folder itself.
            if folder.is_empty() {
                let gone = flags.contains(ReadFlags::DELETE_SELF);
                send(if gone { ChangeKind::Remove } else { ChangeKind::Rename }, Vec::new());
            }
            return;
        }
        let path = [&**folder, name].concat();
        if is_upload(name) {
            // Nobody knows it by that name.
            self.upload = flags.contains(ReadFlags::MOVED_FROM).then_some(cookie);
            return;
        }
        if flags.contains(ReadFlags::MOVED_TO) && self.upload.take() == Some(cookie) {
            // As if it had been written here.
            for kind in [ChangeKind::Create, ChangeKind::Attributes, ChangeKind::Write] {
                send(kind, path.clone());
            }
            return;
        }
        let is_folder = flags.contains(ReadFlags::ISDIR) && !name.is_empty();
        let below = [&*path, b"/"].concat();
        for (flag, kind) in [
            (ReadFlags::CREATE, ChangeKind::Create),
            (ReadFlags::MOVED_TO, ChangeKind::Create),
            (ReadFlags::MODIFY, ChangeKind::Write),
            (ReadFlags::ATTRIB, ChangeKind::Attributes),
            (ReadFlags::MOVED_FROM, ChangeKind::Rename),
            (ReadFlags::DELETE, ChangeKind::Remove),
        ] {
            if flags.contains(flag) {
                send(kind, path.clone());
            }
        }
        if !is_folder || !self.recursive {
            return;
        }
        if flags.contains(ReadFlags::MOVED_FROM) {
            // Its watches know a path that is no longer true; if it stays inside, it is found anew at its new place.
            let stale: Vec<i32> =
                self.folders.iter().filter(|(_, path)| path.starts_with(&below)).map(|(number, _)| *number).collect();
            for number in stale {
                let _ = inotify::remove_watch(&self.inotify, number);
                self.folders.remove(&number);
            }
        }
        if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            self.scans.push(Scan { path: below, walk: None, reports: true });
        }
    }
}

impl Job for Watch {
    fn ready(&mut self, readiness: Readiness) {
        self.readable |= readiness.read;
    }

    fn step(&mut self, io: &mut StreamIo<'_>, context: &Context) -> Result<Step, Failure> {
        if !io.out.has_room() {
            return Ok(Step::Wait);
        }
        let _acting = self.subject.actor.act()?;
        for _ in 0..PER_SLICE {
            if self.scans.is_empty() {
                break;
            }
            self.scan(io)?;
        }
        if !self.scans.is_empty() {
            return Ok(Step::Again);
        }
        if !self.established {
            self.established = true;
            self.readable = true;
            io.watch(context, &self.inotify).map_err(|error| failure::errno(error, "watching"))?;
            io.event(&Event::Done);
        }
        if self.readable {
            self.readable = self.report(io)?;
        }
        Ok(if self.readable || !self.scans.is_empty() { Step::Again } else { Step::Wait })
    }
}
