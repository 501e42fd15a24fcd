//! Starting a program.

use std::ffi::CString;
use std::rc::Rc;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Access, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use sloplet_sys::spawn::{self, Credentials, Program, StartError, WorkDir};
use sloplet_wire::{Builtin, ErrorCode, Exec, Failure};

use crate::Identity;
use crate::builtin;
use crate::context::{Actor, Context, OomScore};
use crate::failure::{self, fail, shown};
use crate::files::resolve::absolute;
use crate::long_line::{self, LONGEST};
use crate::poll::{Part, StreamKey, Token};
use crate::process::{Input, Output, Phase, Process};
use crate::ring::Ring;
use crate::terminal;
use crate::users::User;

/// Searched when the environment has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The program's ends of its standard streams.
struct Standard {
    input: Option<OwnedFd>,
    output: OwnedFd,
    error: Option<OwnedFd>,
}

/// Forks the program. Whether exec succeeded comes later, see [`explain`].
pub(crate) fn start(
    context: &Context,
    null: &OwnedFd,
    id: u32,
    exec: Exec,
    key: StreamKey,
) -> Result<Process, Failure> {
    let user = context.user(exec.user.as_deref())?;
    let mut argv = strings(exec.argv, "argument")?;
    let mut env = strings(exec.env, "environment variable")?;
    add_user(&mut env, &user);
    let Some(name) = argv.first().map(|name| name.as_bytes().to_vec()) else {
        return Err(fail(ErrorCode::Invalid, "no program given"));
    };
    let program = shown(&name);
    let (candidates, inner) = match exec.builtin {
        None => (skip_missing(candidates(&name, &env)?), None),
        Some(Builtin::Shell) => (vec![shell(&user, &mut argv, &mut env)?], None),
        Some(builtin) => {
            argv.push(c_string(user.home.clone(), "home")?);
            (Vec::new(), Some(builtin::of(builtin)?))
        }
    };
    let argv = long_line::split(argv);
    check_sizes(&argv, &env)?;
    let (cwd, cwd_shown) = match exec.cwd {
        Some(path) => {
            let path = absolute(&path, &user.home)?;
            let text = shown(&path);
            (WorkDir::Required(c_string(path, "working directory")?), text)
        }
        None => (WorkDir::Preferred(c_string(user.home.clone(), "home")?), shown(&user.home)),
    };

    let mut process = Process {
        id,
        pid: 0,
        program,
        cwd: cwd_shown,
        tag: exec.tag,
        background: exec.background,
        terminal: None,
        phase: Phase::Running,
        attached: Some(key),
        held: Ring::default(),
        output: Output::default(),
        error: Output::default(),
        input: Input::default(),
        timed_out: false,
    };
    let describe = |error: Errno| failure::errno(error, "making pipes");
    let standard = match exec.terminal {
        Some(size) => {
            let acting = Actor::new(user.clone(), &context.identity).act()?;
            let opened = terminal::open(size).map_err(|error| failure::errno(error, "opening a terminal"));
            drop(acting);
            let (master, program_end) = opened?;
            let master = Rc::new(master);
            context.poll.add(&*master, Token::Process(id, Part::Output)).map_err(describe)?;
            process.terminal = Some(Rc::clone(&master));
            process.output = Output::terminal(Rc::clone(&master));
            process.input = Input::new(master, true);
            Standard { input: None, output: program_end, error: None }
        }
        None => {
            let (output, output_end) = pipe_to_agent(context, Token::Process(id, Part::Output)).map_err(describe)?;
            let (error, error_end) = pipe_to_agent(context, Token::Process(id, Part::Error)).map_err(describe)?;
            process.output = Output::pipe(output, Token::Process(id, Part::Output));
            process.error = Output::pipe(error, Token::Process(id, Part::Error));
            let mut input = None;
            if exec.stdin {
                let (input_end, agent_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(describe)?;
                rustix::fs::fcntl_setfl(&agent_end, OFlags::NONBLOCK).map_err(describe)?;
                context.poll.add(&agent_end, Token::Process(id, Part::Input)).map_err(describe)?;
                process.input = Input::new(Rc::new(agent_end), false);
                input = Some(input_end);
            }
            Standard { input, output: output_end, error: Some(error_end) }
        }
    };

    let output = standard.output.as_fd();
    let terminal = exec.terminal.is_some();
    let default_input: BorrowedFd<'_> = if terminal { output } else { null.as_fd() };
    let credentials = match context.identity {
        Identity::Switch { .. } => Some(Credentials { uid: user.uid, gid: user.gid, groups: user.groups }),
        Identity::Fixed { .. } => None,
    };
    let program = Program {
        candidates: &candidates,
        argv: &argv,
        env: &env,
        cwd: &cwd,
        stdio: [
            standard.input.as_ref().map_or(default_input, AsFd::as_fd),
            output,
            standard.error.as_ref().map_or(output, AsFd::as_fd),
        ],
        terminal,
        filter: context.command_filter.as_deref(),
        credentials: credentials.as_ref(),
        ignored_signals: &context.ignored_signals,
        inner,
    };
    let starting = OomScore::raised(context.oom.as_ref(), || spawn::start(&program)).map_err(|error| {
        let number = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        failure::errno(number, format_args!("starting {}", process.program))
    })?;
    process.pid = starting.pid;
    if let Err(error) = context.poll.add(&starting.status, Token::Process(id, Part::Status)) {
        process.kill();
        return Err(describe(error));
    }
    process.phase = Phase::Starting(starting.status);
    Ok(process)
}

/// Refuses what the kernel would refuse without saying which it was.
fn check_sizes(argv: &[CString], env: &[CString]) -> Result<(), Failure> {
    let too_long = |text: &CString| text.as_bytes().len() > LONGEST;
    if let Some((number, text)) = argv.iter().enumerate().find(|(_, text)| too_long(text)) {
        let bytes = text.as_bytes().len();
        let message = format!(
            "argument {number} has {bytes} bytes, and Linux takes {LONGEST} in one (only a shell's -c line may be longer): \
             pass it in a file or by standard input"
        );
        return Err(fail(ErrorCode::Invalid, message));
    }
    if let Some(text) = env.iter().find(|text| too_long(text)) {
        let name = text.as_bytes().split(|byte| *byte == b'=').next().unwrap_or_default();
        let (name, bytes) = (shown(name), text.as_bytes().len());
        let message = format!("variable {name} has {bytes} bytes, and Linux takes {LONGEST}: pass it in a file");
        return Err(fail(ErrorCode::Invalid, message));
    }
    Ok(())
}

/// Adds what every program expects to know of its user.
fn add_user(env: &mut Vec<CString>, user: &User) {
    let name = user.name.as_ref().map(|name| name.as_bytes());
    for (variable, value) in [("HOME", Some(&*user.home)), ("USER", name), ("LOGNAME", name)] {
        let start = format!("{variable}=");
        if let Some(value) = value
            && !env.iter().any(|line| line.as_bytes().starts_with(start.as_bytes()))
            && let Ok(line) = CString::new([start.as_bytes(), value].concat())
        {
            env.push(line);
        }
    }
}

/// Shells for users whose own is missing, or made to turn people away.
const SHELLS: [&[u8]; 2] = [b"/bin/bash", b"/bin/sh"];

/// Puts the user's shell in place of the first argument.
fn shell(user: &User, argv: &mut [CString], env: &mut Vec<CString>) -> Result<CString, Failure> {
    let turns_away = |path: &[u8]| path.ends_with(b"/nologin") || path.ends_with(b"/false");
    let own = user.shell.as_deref().filter(|path| !turns_away(path));
    let usable = |path: &&[u8]| rustix::fs::access(*path, Access::EXISTS).is_ok();
    let Some(path) = own.into_iter().chain(SHELLS).find(usable) else {
        return Err(fail(ErrorCode::NotFound, "this sandbox has no shell: neither the user's own nor /bin/sh"));
    };
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    // A dash before its name makes it a login shell.
    let first = if argv.len() == 1 { [b"-", name].concat() } else { name.to_vec() };
    argv[0] = c_string(first, "shell")?;
    env.retain(|line| !line.as_bytes().starts_with(b"SHELL="));
    env.push(c_string([b"SHELL=", path].concat(), "shell")?);
    c_string(path.to_vec(), "shell")
}

/// Turns a child's report into words.
pub(crate) fn explain(process: &Process, error: StartError) -> Failure {
    let number = Errno::from_raw_os_error(error.errno);
    match (error.step, number) {
        (spawn::Step::Exec, Errno::NOENT) if !process.program.contains('/') => {
            fail(ErrorCode::NotFound, format!("{}: no such program in PATH", process.program))
        }
        (spawn::Step::Exec, Errno::NOEXEC) => {
            fail(ErrorCode::Invalid, format!("{}: not a program (no #! line?)", process.program))
        }
        (spawn::Step::Exec, Errno::TOOBIG) => {
            let message = "arguments and environment are longer together than Linux takes (usually 2 MiB)";
            fail(ErrorCode::Invalid, format!("{}: {message}: pass some of it in a file", process.program))
        }
        (spawn::Step::Exec, _) => failure::errno(number, &process.program),
        (spawn::Step::WorkDir, _) => failure::errno(number, format_args!("working directory {}", process.cwd)),
        (spawn::Step::Identity, _) => failure::errno(number, "becoming the user"),
        (spawn::Step::Setup, _) => failure::errno(number, format_args!("preparing {}", process.program)),
    }
}

fn pipe_to_agent(context: &Context, token: Token) -> Result<(Rc<OwnedFd>, OwnedFd), Errno> {
    let (agent_end, program_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&agent_end, OFlags::NONBLOCK)?;
    context.poll.add_once(&agent_end, token)?;
    Ok((Rc::new(agent_end), program_end))
}

/// The paths to try. Empty components of `PATH` (the working directory, historically) are skipped.
fn candidates(name: &[u8], env: &[CString]) -> Result<Vec<CString>, Failure> {
    if name.is_empty() {
        return Err(fail(ErrorCode::NotFound, "the program's name is empty"));
    }
    if name.contains(&b'/') {
        return Ok(vec![c_string(name.to_vec(), "program")?]);
    }
    let path = env.iter().find_map(|line| line.as_bytes().strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH);
    let folders = path.split(|byte| *byte == b':').filter(|folder| !folder.is_empty());
    folders.map(|folder| c_string([folder, b"/", name].concat(), "program")).collect()
}

/// Leaves out leading paths at which there is nothing: a look costs a tenth of a failed exec.
fn skip_missing(mut candidates: Vec<CString>) -> Vec<CString> {
    let there = |path: &CString| !path.as_bytes().starts_with(b"/") || rustix::fs::access(path, Access::EXISTS).is_ok();
    if let Some(first) = candidates.iter().position(there) {
        candidates.drain(..first);
    }
    candidates
}

fn strings(list: Vec<minicbor::bytes::ByteVec>, what: &str) -> Result<Vec<CString>, Failure> {
    list.into_iter().map(|bytes| c_string(bytes.into(), what)).collect()
}

fn c_string(bytes: Vec<u8>, what: &str) -> Result<CString, Failure> {
    CString::new(bytes).map_err(|_| fail(ErrorCode::Invalid, format!("the {what} contains a NUL byte")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_up_in_the_given_path() {
        let find = |name: &[u8], env: &[&std::ffi::CStr]| {
            let env: Vec<CString> = env.iter().map(|line| (*line).into()).collect();
            candidates(name, &env).map_err(|failure| failure.code)
        };
        assert_eq!(find(b"x", &[c"A=b", c"PATH=/a::/b:"]).unwrap(), [c"/a/x", c"/b/x"].map(CString::from));
        assert_eq!(find(b"./x", &[c"PATH=/a"]).unwrap(), [CString::from(c"./x")]);
        assert_eq!(find(b"x", &[]).unwrap().len(), 6);
        assert_eq!(find(b"", &[]), Err(ErrorCode::NotFound));
        assert_eq!(find(b"x\0y", &[]), Err(ErrorCode::Invalid));
    }
}
