//! Requests on paths, and those that are begun like them.

pub(crate) mod attributes;
mod change;
mod entry;
mod list;
mod read;
mod remove;
pub(crate) mod resolve;
pub(crate) mod stepwise;
pub(crate) mod walk;
mod write;

pub(crate) use write::{TEMPORARY_PREFIX, temporary_name};

use sloplet_wire::{ErrorCode, Event, Failure, Request, Target};

use crate::context::{Actor, Context};
use crate::dial::Dial;
use crate::failure::fail;
use crate::listen::{Listen, ListenAt, Spot};
use crate::pack::Pack;
use crate::processes::List as ProcessList;
use crate::server::Server;
use crate::stream::Job;
use crate::unpack::Unpack;
use crate::watch::Watch;

/// How a request begins.
pub(crate) enum Begun {
    /// It is over already.
    Answer(Event),
    /// It takes slices.
    Job(Box<dyn Job>),
}

/// A path and on whose behalf it is used.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) actor: Actor,
    /// Absolute.
    pub(crate) path: Vec<u8>,
}

impl Subject {
    pub(crate) fn new(context: &Context, target: &Target) -> Result<Self, Failure> {
        let actor = context.actor(target.user.as_deref(), target.privileged)?;
        let path = resolve::absolute(&target.path, &actor.user.home)?;
        Ok(Self { actor, path })
    }
}

/// Begins a request.
pub(crate) fn begin(request: Request, server: &Server) -> Result<Begun, Failure> {
    let context = &server.context;
    let subject = |target: &Target| Subject::new(context, target);
    let job = |job: Box<dyn Job>| Ok(Begun::Job(job));
    match request {
        Request::Stat(target) => entry::stat(context, &subject(&target)?).map(Begun::Answer),
        Request::MakeDir { target, mode, parents } => {
            change::make_dir(context, &subject(&target)?, mode, parents).map(Begun::Answer)
        }
        Request::Move { from, to } => change::rename(context, &subject(&from)?, &to).map(Begun::Answer),
        Request::SetMode { target, mode } => change::set_mode(context, &subject(&target)?, mode).map(Begun::Answer),
        Request::List { target, depth } => job(Box::new(list::List::new(context, subject(&target)?, depth)?)),
        Request::Read { target, offset, length } => {
            job(Box::new(read::Read::new(context, &subject(&target)?, offset, length)?))
        }
        Request::Write { target, mode, parents, attributes } => {
            job(Box::new(write::Write::new(context, subject(&target)?, mode, parents, attributes)?))
        }
        Request::Remove { target, recursive } => {
            job(Box::new(remove::Remove::new(context, subject(&target)?, recursive)?))
        }
        Request::Watch { target, recursive } => job(Box::new(Watch::new(context, subject(&target)?, recursive)?)),
        Request::Pack(target) => job(Box::new(Pack::new(context, subject(&target)?)?)),
        Request::Unpack(target) => job(Box::new(Unpack::new(context, subject(&target)?)?)),
        Request::Dial { port } => job(Box::new(Dial::new(port))),
        Request::Listen { port } => job(Box::new(Listen::new(context, port)?)),
        Request::Accept { port } => job(Box::new(Dial::accepting(context, Spot::Port(port))?)),
        Request::ListenAt(target) => job(Box::new(ListenAt::new(context, subject(&target)?)?)),
        Request::AcceptAt(target) => job(Box::new(Dial::accepting(context, Spot::Socket(subject(&target)?.path))?)),
        Request::Processes => job(Box::new(ProcessList::new(server))),
        _ => Err(fail(ErrorCode::Unsupported, "this agent does not know the request")),
    }
}
