//! From frames to work.

use sloplet_wire::{Channel, ErrorCode, Event, Failure, Header, Kind, Request, TerminalSize, WireError};

use crate::connection::MAX_STREAMS;
use crate::failure::{self, fail};
use crate::files;
use crate::killing::Killing;
use crate::poll::StreamKey;
use crate::process::{Phase, Process};
use crate::server::{Runnable, Server};
use crate::stream::{Body, StreamIo};
use crate::terminal;

/// The signal that no process outlives.
const SIGKILL: i32 = 9;

/// The largest signal number.
const LAST_SIGNAL: i32 = 64;

impl Server {
    /// Acts on one frame. An error ends the connection; frames for streams that are over are not errors, because the
    /// host may not know yet.
    pub(crate) fn handle(&mut self, connection: u32, header: Header, payload: &[u8]) -> Result<(), WireError> {
        let key = StreamKey { connection, stream: header.stream };
        match header.kind {
            Kind::Request => self.request(key, payload),
            Kind::Data => self.data(key, header.channel, payload),
            Kind::End => self.end(key, header.channel),
            Kind::Window => {
                let credit = payload.try_into().map(u32::from_le_bytes).map_err(|_| WireError::Malformed("window"))?;
                self.window(key, header.channel, credit)
            }
            Kind::Reset => {
                let connection = self.connections.get_mut(&connection);
                if let Some(stream) = connection.and_then(|connection| connection.streams.remove(&key.stream))
                    && let Body::Process(id) = stream.body
                {
                    self.abandon(id, key);
                }
                Ok(())
            }
            Kind::Ping if payload.len() <= 8 => {
                self.reply(connection, Kind::Pong, payload);
                Ok(())
            }
            Kind::Pong => Ok(()),
            Kind::Ping | Kind::Hello | Kind::Fatal | Kind::Event => Err(WireError::Malformed("frame")),
        }
    }

    fn request(&mut self, key: StreamKey, payload: &[u8]) -> Result<(), WireError> {
        let Some(connection) = self.connections.get_mut(&key.connection) else {
            return Ok(());
        };
        if key.stream == 0 || connection.streams.contains_key(&key.stream) {
            return Err(WireError::Malformed("stream number"));
        }
        let result = if connection.streams.len() >= MAX_STREAMS {
            Err(fail(ErrorCode::Exhausted, format!("more than {MAX_STREAMS} streams on one connection")))
        } else {
            match minicbor::decode::<Request>(payload) {
                Ok(request) => self.perform(key, request),
                // A newer host asks for what this agent does not know yet.
                Err(error) if error.is_unknown_variant() => {
                    Err(fail(ErrorCode::Unsupported, "this agent does not know the request"))
                }
                Err(_) => return Err(WireError::Malformed("request")),
            }
        };
        if let Some(connection) = self.connections.get_mut(&key.connection) {
            match result {
                Ok(None) => {}
                Ok(Some(event)) => connection.out.event(key.stream, &event),
                Err(failure) => connection.out.event(key.stream, &Event::Failed(failure)),
            }
        }
        Ok(())
    }

    /// Begins a request; an event is its whole answer.
    fn perform(&mut self, key: StreamKey, request: Request) -> Result<Option<Event>, Failure> {
        match request {
            Request::Exec(exec) => self.exec(key, exec).map(|()| None),
            Request::Attach { pid } => self.attach(key, pid).map(|()| None),
            Request::Signal { pid, signal, group } => self.signal(key, pid, signal, group),
            Request::Resize { pid, size } => self.resize(pid, size).map(Some),
            Request::SendInput { pid, data, end } => self.send_input(pid, &data, end).map(Some),
            Request::FilterCommands => self.context.filter_commands().map(|()| Some(Event::Done)),
            other => match files::begin(other, self)? {
                files::Begun::Answer(event) => Ok(Some(event)),
                files::Begun::Job(job) => {
                    self.open(key, Body::Job(job));
                    Ok(None)
                }
            },
        }
    }

    fn data(&mut self, key: StreamKey, channel: u8, payload: &[u8]) -> Result<(), WireError> {
        if channel != Channel::Input as u8 {
            return Err(WireError::Malformed("channel"));
        }
        let Some(connection) = self.connections.get_mut(&key.connection) else { return Ok(()) };
        let Some(stream) = connection.streams.get_mut(&key.stream) else { return Ok(()) };
        stream.flow.receive(payload.len())?;
        match &mut stream.body {
            Body::Process(id) => {
                let id = *id;
                if let Some(process) = self.processes.get_mut(&id) {
                    process.input.push(payload, Some(key));
                }
                self.enqueue(Runnable::Process(id));
            }
            Body::Job(job) => {
                let mut io = StreamIo { key, out: &mut connection.out, flow: &mut stream.flow };
                let used = if io.input().is_empty() { job.take(payload) } else { 0 };
                io.release(used);
                if used < payload.len() {
                    stream.flow.hold(&payload[used..]);
                    self.enqueue(Runnable::Stream(key));
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, key: StreamKey, channel: u8) -> Result<(), WireError> {
        if channel != Channel::Input as u8 {
            return Err(WireError::Malformed("channel"));
        }
        let connection = self.connections.get_mut(&key.connection);
        let Some(stream) = connection.and_then(|connection| connection.streams.get_mut(&key.stream)) else {
            return Ok(());
        };
        match &stream.body {
            Body::Process(id) => {
                let id = *id;
                if let Some(process) = self.processes.get_mut(&id) {
                    process.input.end();
                }
                self.enqueue(Runnable::Process(id));
            }
            Body::Job(_) => {
                stream.flow.input_ended = true;
                self.enqueue(Runnable::Stream(key));
            }
        }
        Ok(())
    }

    fn window(&mut self, key: StreamKey, channel: u8, credit: u32) -> Result<(), WireError> {
        let connection = self.connections.get_mut(&key.connection);
        let Some(stream) = connection.and_then(|connection| connection.streams.get_mut(&key.stream)) else {
            return Ok(());
        };
        stream.flow.grant(channel, credit)?;
        let runnable = match stream.body {
            Body::Process(id) => Runnable::Process(id),
            Body::Job(_) => Runnable::Stream(key),
        };
        self.enqueue(runnable);
        Ok(())
    }

    /// A running process started by this agent.
    fn running(&mut self, pid: u32) -> Result<&mut Process, Failure> {
        let id = i32::try_from(pid).ok().and_then(|pid| self.by_pid.get(&pid));
        id.and_then(|id| self.processes.get_mut(id))
            .filter(|process| process.is_running())
            .ok_or_else(|| fail(ErrorCode::NotFound, format!("no running process {pid} was started by this agent")))
    }

    fn attach(&mut self, key: StreamKey, pid: u32) -> Result<(), Failure> {
        let running = self.running(pid).ok().map(|process| process.id);
        let ended = || {
            let of_pid = |id: &&u32| self.processes.get(id).is_some_and(|process| process.pid as u32 == pid);
            self.finished.iter().rev().find(of_pid).copied()
        };
        let lost = || fail(ErrorCode::NotFound, format!("no process {pid} was started by this agent"));
        let id = running.or_else(ended).or_else(|| self.ending(pid)).ok_or_else(lost)?;
        let process = self.processes.get_mut(&id).ok_or_else(lost)?;
        if !process.background {
            return Err(fail(ErrorCode::Invalid, format!("process {pid} was not started in the background")));
        }
        let former = process.attached.replace(key);
        self.end_stream(former, fail(ErrorCode::Io, "another stream has attached to the process"));
        self.open(key, Body::Process(id));
        let (Some(process), Some(connection)) =
            (self.processes.get_mut(&id), self.connections.get_mut(&key.connection))
        else {
            return Ok(());
        };
        if let Some(stream) = connection.streams.get_mut(&key.stream) {
            process.replay(&mut StreamIo { key, out: &mut connection.out, flow: &mut stream.flow });
        }
        Ok(())
    }

    /// A process that was reaped but whose output is not complete.
    fn ending(&self, pid: u32) -> Option<u32> {
        let of_pid = |process: &&Process| process.pid as u32 == pid && matches!(process.phase, Phase::Ended(_));
        self.processes.values().rev().find(of_pid).map(|process| process.id)
    }

    fn signal(&mut self, key: StreamKey, pid: u32, signal: i32, group: bool) -> Result<Option<Event>, Failure> {
        if !(0..=LAST_SIGNAL).contains(&signal) {
            return Err(fail(ErrorCode::Invalid, format!("there is no signal {signal}")));
        }
        let pid = self.running(pid)?.pid;
        let target = if group { -pid } else { pid };
        sloplet_sys::spawn::send_signal(target, signal).map_err(|error| {
            let number = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
            failure::errno(number, format_args!("sending signal {signal} to process {pid}"))
        })?;
        match Killing::of(target).filter(|_| signal == SIGKILL) {
            Some(killing) => {
                self.await_end(key, killing);
                Ok(None)
            }
            None => Ok(Some(Event::Done)),
        }
    }

    fn resize(&mut self, pid: u32, size: TerminalSize) -> Result<Event, Failure> {
        let process = self.running(pid)?;
        let Some(master) = &process.terminal else {
            return Err(fail(ErrorCode::Invalid, format!("process {pid} has no terminal")));
        };
        terminal::resize(&**master, size).map_err(|error| failure::errno(error, "changing the terminal's size"))?;
        Ok(Event::Done)
    }

    fn send_input(&mut self, pid: u32, data: &[u8], end: bool) -> Result<Event, Failure> {
        let process = self.running(pid)?;
        if !process.input.is_open() {
            return Err(fail(ErrorCode::Invalid, format!("standard input of process {pid} is not open")));
        }
        if !process.input.has_space(data.len()) {
            return Err(fail(ErrorCode::Exhausted, format!("process {pid} does not read its standard input")));
        }
        process.input.push(data, None);
        if end {
            process.input.end();
        }
        let id = process.id;
        self.enqueue(Runnable::Process(id));
        Ok(Event::Done)
    }
}
