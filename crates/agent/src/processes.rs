//! The process list, from `/proc`.

use std::collections::BTreeMap;

use rustix::fs::{Mode, OFlags};
use sloplet_wire::{ErrorCode, Event, Failure, MAX_PAYLOAD, ProcessInfo, to_bytes};

use crate::context::Context;
use crate::failure::fail;
use crate::server::Server;
use crate::stream::{Job, Step, StreamIo};

/// Processes looked at in one slice.
const PER_SLICE: usize = 64;

/// Shown of a command line; a program may make it as long as it likes.
const MAX_COMMAND_BYTES: usize = 4096;

/// The answer is one frame: with this much used, no more processes are added.
const MAX_ANSWER_BYTES: usize = MAX_PAYLOAD - 16 * 1024;

/// A `Processes` request.
pub(crate) struct List {
    managed: BTreeMap<u32, Managed>,
    /// Yet to be looked at, the next one last; managed ones come first.
    pids: Option<Vec<u32>>,
    found: Vec<ProcessInfo>,
    bytes: usize,
    ticks_per_second: u64,
    page_kib: u64,
}

struct Managed {
    tag: Option<String>,
    terminal: bool,
}

impl List {
    pub(crate) fn new(server: &Server) -> Self {
        let running = server.by_pid.iter().filter_map(|(pid, id)| Some((*pid as u32, server.processes.get(id)?)));
        let managed = running
            .map(|(pid, process)| (pid, Managed { tag: process.tag.clone(), terminal: process.terminal.is_some() }))
            .collect();
        Self {
            managed,
            pids: None,
            found: Vec::new(),
            bytes: 0,
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
            page_kib: rustix::param::page_size() as u64 / 1024,
        }
    }

    fn look(&self, pid: u32) -> Option<ProcessInfo> {
        let status = read(pid, "stat", 4096)?;
        // The name stands in parentheses and may contain anything, including parentheses.
        let after = &status[status.iter().rposition(|byte| *byte == b')')? + 1..];
        let fields: Vec<&str> = std::str::from_utf8(after).ok()?.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        if fields.first() == Some(&"Z") {
            return None;
        }
        let mut command = read(pid, "cmdline", MAX_COMMAND_BYTES).unwrap_or_default();
        while command.last() == Some(&0) {
            command.pop();
        }
        if command.is_empty() {
            let open = status.iter().position(|byte| *byte == b'(')? + 1;
            let close = status.iter().rposition(|byte| *byte == b')')?;
            command = status.get(open..close)?.to_vec();
        }
        let identity = read(pid, "status", 4096)?;
        let uid = identity.split(|byte| *byte == b'\n').find_map(|line| {
            let ids = std::str::from_utf8(line.strip_prefix(b"Uid:")?).ok()?;
            ids.split_ascii_whitespace().nth(1)?.parse().ok()
        })?;
        let managed = self.managed.get(&pid);
        Some(ProcessInfo {
            pid,
            parent: number(1) as u32,
            command: command.into(),
            uid,
            managed: managed.is_some(),
            tag: managed.and_then(|managed| managed.tag.clone()),
            rss_kib: number(21).saturating_mul(self.page_kib),
            cpu_us: (number(11) + number(12)).saturating_mul(1_000_000) / self.ticks_per_second,
            terminal: managed.is_some_and(|managed| managed.terminal),
        })
    }

    fn all_pids(&self) -> Vec<u32> {
        let Ok(entries) = std::fs::read_dir("/proc") else {
            return Vec::new();
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut pids: Vec<u32> = names.collect();
        pids.sort_unstable_by_key(|pid| std::cmp::Reverse((!self.managed.contains_key(pid), *pid)));
        pids
    }
}

fn read(pid: u32, file: &str, most: usize) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(format!("/proc/{pid}/{file}"), flags, Mode::empty()).ok()?;
    let mut content = vec![0; most];
    let len = rustix::io::read(&file, &mut *content).ok()?;
    content.truncate(len);
    Some(content)
}

impl Job for List {
    fn step(&mut self, io: &mut StreamIo<'_>, _context: &Context) -> Result<Step, Failure> {
        let mut pids = match self.pids.take() {
            Some(pids) => pids,
            None => self.all_pids(),
        };
        if pids.is_empty() && self.found.is_empty() {
            return Err(fail(ErrorCode::Io, "/proc cannot be read"));
        }
        for _ in 0..PER_SLICE {
            let Some(info) = pids.pop().map(|pid| self.look(pid)) else {
                break;
            };
            let Some(info) = info else { continue };
            self.bytes += to_bytes(&info).len();
            if self.bytes > MAX_ANSWER_BYTES {
                pids.clear();
                break;
            }
            self.found.push(info);
        }
        if !pids.is_empty() {
            self.pids = Some(pids);
            return Ok(Step::Again);
        }
        io.event(&Event::Processes(std::mem::take(&mut self.found)));
        Ok(Step::Finished)
    }
}
