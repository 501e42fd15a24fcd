//! The way of one connection: decide, look at its first bytes, dial, relay.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::FutureExt;
use sloplet_policy::addresses::{PROXY_PORT, RESOLVER_V4, RESOLVER_V6};
use sloplet_policy::network::{Decision, Host};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::ask::{Answer, Request};
use crate::check::Check;
use crate::dial::Dialer;
use crate::doorway::Arrival;
use crate::egress::{Core, Seat};
use crate::event::{Event, Protocol};
use crate::first::{self, Kind};
use crate::hello::{self, Hello};
use crate::intercept::Target;
use crate::names;
use crate::proxy;
use crate::questions;
pub(crate) use crate::record::{Place, Record};
use crate::refuse::{Problem, refuse};
use crate::relay::{self, Prefixed};
use crate::requests::{self, Response};

/// How long a hello, or the first line, may take once it has begun.
const HELLO: Duration = Duration::from_secs(10);

/// How long a program's first word may be held back that could become a request. Programs that speak something else may wait
/// for an answer to it.
const WORD: Duration = Duration::from_millis(100);

/// How long a line of text that could be taken for a request waits for the server to speak first, as servers of ssh do.
const SPEAKS: Duration = Duration::from_secs(10);

/// No hurry.
const FOREVER: Duration = Duration::from_secs(365 * 86_400);

/// When a later request on a connection is refused: how long the answers to earlier ones must have been quiet, and how
/// often that is looked at.
const QUIET: (Duration, u32) = (Duration::from_millis(100), 20);

/// How a connection came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// To the address itself.
    Direct,
    /// Through the proxy, by CONNECT; it waits for a yes.
    Connect,
    /// Through the proxy, one request, which comes rewritten.
    Forward,
}

/// Why a connection ends before its time.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It is told.
    Problem(Problem),
    /// There is nobody to tell.
    Gone,
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// Serves what came through the doorway.
pub(crate) async fn arrive(core: Arc<Core>, arrival: Arrival, _seat: Seat) {
    let end = core.end.clone();
    end.run_until_cancelled(async {
        let (address, port) = (arrival.wanted.ip(), arrival.wanted.port());
        let _ = arrival.stream.set_nodelay(true);
        let client = Arc::new(arrival.stream);
        if address == RESOLVER_V4 || address == RESOLVER_V6 {
            match port {
                53 => return questions::over_tcp(&core, &client).await,
                PROXY_PORT => return proxy::serve(&core, &client).await,
                _ => {}
            }
        }
        let (place, _held) = locate(&core, address);
        serve(&core, client, Vec::new(), place, port, Entry::Direct).await;
    })
    .await;
}

/// The name that an address stands for, kept there while the second is held; or the address itself.
pub(crate) fn locate(core: &Arc<Core>, address: std::net::IpAddr) -> (Place, Option<Held>) {
    let Some(number) = names::number(address) else { return (Place::Address(address), None) };
    match core.names.lock().open(number) {
        Some(name) => (Place::Name(name), Some(Held { core: Arc::clone(core), number })),
        None => (Place::Address(address), None),
    }
}

/// Keeps a name at its address.
#[derive(Debug)]
pub(crate) struct Held {
    core: Arc<Core>,
    number: u16,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.core.names.lock().close(self.number);
    }
}

/// Serves a connection to its end. `seen` was read from it already.
pub(crate) async fn serve(
    core: &Arc<Core>,
    client: Arc<TcpStream>,
    mut seen: Vec<u8>,
    place: Place,
    port: u16,
    mut entry: Entry,
) {
    let record = Record::open(core, place, port, &client);
    let end = record.end.clone();
    end.run_until_cancelled(async {
        match pass(&record, &client, &mut seen, &mut entry).await {
            Ok(()) => {}
            Err(Stop::Gone) => {
                relay::delivered(&client).await;
                relay::reset(&client);
            }
            Err(Stop::Problem(problem)) => {
                record.stopped(&problem, protocol_of(&seen));
                let place = format!("{}:{port}", record.place);
                refuse(&client, &mut seen, port, entry, &place, &problem).await;
            }
        }
    })
    .await;
}

fn protocol_of(seen: &[u8]) -> Option<Protocol> {
    match first::classify(seen) {
        _ if seen.is_empty() => None,
        Kind::Tls => Some(Protocol::Tls),
        Kind::Http => Some(Protocol::Http),
        Kind::Raw => Some(Protocol::Raw),
        Kind::Text | Kind::More => None,
    }
}

/// Decides, and lets through. A problem comes back only while the client has got nothing of the other end.
async fn pass(
    record: &Arc<Record>,
    client: &Arc<TcpStream>,
    seen: &mut Vec<u8>,
    entry: &mut Entry,
) -> Result<(), Stop> {
    let (core, place, port) = (&record.core, &record.place, record.port);
    let network = core.network();
    if place.address().is_some_and(|address| names::number(address).is_some()) {
        return Err(Problem::denied("the address stood for a name and no longer does; look the name up again").into());
    }
    let opted_out = match network.decide(place.wanted(), port) {
        Decision::Deny { reason } => return Err(Problem::rules(&reason, place.wanted(), port).into()),
        Decision::Ask { rule, tcp } => {
            ask(record, rule.clone()).await?;
            record.by(rule);
            tcp
        }
        Decision::Allow { rule, tcp } => {
            record.by(rule);
            tcp
        }
    };
    if let Place::Address(address) = place
        && !core.options.lacks("egress-vetting")
    {
        network
            .may_dial(*address, port, &core.options.own_addresses())
            .map_err(|refusal| Problem::vetted(&refusal, port))?;
    }
    if let Some(limit) = core.sums.used_up() {
        core.limited(limit);
        return Err(Problem::denied(format!("the limit {limit} is used up")).into());
    }
    let named = |rule: &sloplet_policy::Rule| !matches!(rule.host, Host::Net(_));
    let intercept = core.options.intercept.as_ref().filter(|i| i.wants(&place.to_string(), port));
    let check = match place {
        // Where keys are put in or money is counted, no rule opts out.
        _ if (opted_out && intercept.is_none()) || core.options.lacks("egress-checks") => Check::Nothing,
        Place::Name(name) => Check::Name(name.clone(), port),
        Place::Address(_) if network.deny.iter().chain(&network.ask).any(named) => {
            Check::NotDenied(Arc::clone(core), port)
        }
        Place::Address(_) => Check::Nothing,
    };
    let dialer = Arc::new(Dialer(Arc::clone(record)));
    if let (Place::Name(name), Some(intercept)) = (place, intercept) {
        if *entry == Entry::Connect {
            relay::write_all(client, proxy::ESTABLISHED).await?;
            *entry = Entry::Direct;
        }
        let kind = first_bytes(record, client, seen, &check).await?;
        let protocol = match kind {
            Kind::Tls => Protocol::Tls,
            Kind::Http => Protocol::Http,
            _ if seen.is_empty() => return Ok(()),
            _ => {
                let reason = "only HTTP and TLS lead to this host, because a secret, a header or a budget is for it";
                return Err(Problem::malformed(reason).into());
            }
        };
        if protocol == Protocol::Http {
            let mut from = 0;
            if let Some((head, _)) = requests::read_head(client, seen, &mut from).await? {
                check.request(&head)?;
            }
        }
        record.passed(protocol);
        let target = Target { name: name.clone(), port, tls: protocol == Protocol::Tls, connection: record.id };
        let stream = Box::new(Prefixed::new(std::mem::take(seen), Arc::clone(client)));
        intercept.serve(stream, target, dialer).await;
        return Ok(());
    }
    tunnel(record, client, seen, &check, &dialer, entry).await
}

/// Waits for a person; an error if the answer is no.
async fn ask(record: &Record, rule: String) -> Result<(), Problem> {
    let (core, key) = (&record.core, (record.place.clone(), record.port));
    if core.approved.lock().contains(&key) {
        record.approved.store(true, Relaxed);
        return Ok(());
    }
    let (connection, name, address, port) = (record.id, record.place.name(), record.place.address(), record.port);
    core.tell(Event::Asked { connection, name: name.clone(), address, port, rule: rule.clone() });
    let answer = {
        let mut asking = core.asking.lock();
        let question =
            || core.options.ask.ask(Request { connection, name, address, port, rule: rule.clone() }).shared();
        asking.entry(key.clone()).or_insert_with(question).clone()
    };
    let answer = timeout(core.network().ask_timeout.0, answer).await;
    core.asking.lock().remove(&key);
    let network = core.network();
    if let Decision::Deny { reason } = network.decide(record.place.wanted(), port) {
        return Err(Problem::rules(&reason, record.place.wanted(), port));
    }
    match answer {
        Ok(Answer::Deny) => Err(Problem::denied(format!("the rule '{rule}' asks a person, who said no"))),
        Err(_) => Err(Problem::denied(format!("the rule '{rule}' asks a person, who did not answer in time"))),
        Ok(answer) => {
            if answer == Answer::Always {
                core.approved.lock().insert(key);
            }
            record.approved.store(true, Relaxed);
            Ok(())
        }
    }
}

/// Reads until it is clear what the connection speaks, and, for TLS, checks the server name. What was read stays in `seen`.
///
/// Before the first byte there is no hurry: the server may have to speak first. Where nothing is checked, all but TLS and
/// HTTP is raw.
async fn first_bytes(record: &Record, client: &TcpStream, seen: &mut Vec<u8>, check: &Check) -> Result<Kind, Stop> {
    if seen.is_empty() && relay::read_more(client, seen).await? == 0 {
        return Ok(Kind::Raw);
    }
    if matches!(check, Check::Nothing) {
        return Ok(match first::classify(seen) {
            Kind::More | Kind::Text => Kind::Raw,
            clear => clear,
        });
    }
    let clear = async {
        loop {
            match first::classify(seen) {
                Kind::More => {}
                Kind::Tls => match hello::parse(seen) {
                    Hello::More if seen.len() <= 2 * hello::MAX => {}
                    Hello::More => return Err(Problem::malformed("the ClientHello is too long").into()),
                    Hello::Bad(problem) => return Err(Problem::malformed(problem).into()),
                    Hello::Name(shown) => {
                        check.server_name(shown.as_deref())?;
                        if let (Place::Address(_), Some(shown)) = (&record.place, shown) {
                            record.shows(&shown);
                            record.decide_again();
                        }
                        return Ok(Kind::Tls);
                    }
                },
                kind => return Ok(kind),
            }
            if relay::read_more(client, seen).await? == 0 {
                return if first::incomplete(seen) { Ok(Kind::Raw) } else { Err(Stop::Gone) };
            }
        }
    };
    let late = || Err(Problem::malformed("its first bytes took too long").into());
    timeout(HELLO, clear).await.unwrap_or_else(|_| late())
}

/// The same once there is somebody to pass the first bytes on to. What could become a request, but is not even a line yet, is
/// passed on when nothing follows for a moment: `ahead` is how much of `seen` was. Whatever it becomes, no server acts before
/// the rest was checked.
async fn first_words(
    record: &Record,
    client: &TcpStream,
    upstream: &TcpStream,
    seen: &mut Vec<u8>,
    check: &Check,
    ahead: &mut usize,
) -> Result<Kind, Stop> {
    let mut wait = None;
    loop {
        let count = match wait {
            Some(wait) => timeout(wait, relay::read_more(client, seen)).await,
            None if seen.is_empty() => Ok(relay::read_more(client, seen).await),
            None => Ok(Ok(seen.len())),
        };
        match count {
            Ok(count) => {
                if count? == 0 {
                    return Ok(Kind::Raw);
                }
            }
            Err(_) => {
                record.up(seen.len() - *ahead)?;
                relay::write_all(upstream, &seen[*ahead..]).await?;
                *ahead = seen.len();
            }
        }
        if matches!(check, Check::Nothing) || !first::incomplete(seen) {
            return first_bytes(record, client, seen, check).await;
        }
        wait = Some(if *ahead < seen.len() { WORD } else { FOREVER });
    }
}

/// Dials and relays. Dialing, waiting for the client's first bytes, and passing on what the server says first all go on at
/// the same time, so that neither end waits for the other; nothing of the client's is passed on before it was checked.
async fn tunnel(
    record: &Arc<Record>,
    client: &Arc<TcpStream>,
    seen: &mut Vec<u8>,
    check: &Check,
    dialer: &Dialer,
    entry: &mut Entry,
) -> Result<(), Stop> {
    let mut kind = None;
    let upstream = if *entry == Entry::Connect {
        let upstream = dialer.connect().await?;
        relay::write_all(client, proxy::ESTABLISHED).await?;
        // From here on it is as if it had come by itself.
        *entry = Entry::Direct;
        upstream
    } else {
        let mut dial = pin!(dialer.connect());
        let mut first = pin!(first_bytes(record, client, seen, check));
        loop {
            tokio::select! {
                biased;
                result = &mut first, if kind.is_none() => kind = Some(result?),
                result = &mut dial => break result?,
            }
        }
    };
    let upstream = Arc::new(upstream);
    record.holds(&upstream);
    let response = Response::default();
    let single = *entry == Entry::Forward;
    let (in_http, unchecked) = (AtomicBool::new(false), AtomicBool::new(false));
    let up = async {
        let mut ahead = 0;
        let kind = match kind {
            Some(kind) => kind,
            None => first_words(record, client, &upstream, seen, check, &mut ahead).await?,
        };
        let checked = !matches!(check, Check::Nothing);
        if kind == Kind::Text && !timeout(SPEAKS, response.speaks_otherwise()).await.unwrap_or(false) {
            in_http.store(true, Relaxed);
            return Err(Problem::unclear(record.place.wanted(), record.port).into());
        }
        unchecked.store(checked && matches!(kind, Kind::Raw | Kind::Text), Relaxed);
        if single || (kind == Kind::Http && checked) {
            in_http.store(true, Relaxed);
            let requests = requests::Requests { record, client, upstream: &upstream, check, response: &response };
            return requests.pump(seen, ahead, single).await;
        }
        if !seen.is_empty() {
            record.passed(protocol_of(seen).unwrap_or(Protocol::Raw));
            record.up(seen.len() - ahead)?;
            relay::write_all(&upstream, &seen[ahead..]).await?;
            *seen = Vec::new();
        }
        Ok(relay::pump(client, &upstream, |count, _| record.up(count)).await?)
    };
    let down = async {
        let watch = |count: usize, bytes: &[u8]| {
            record.passed(Protocol::Raw);
            response.watch(bytes);
            if unchecked.load(Relaxed) && response.is_http() {
                let reason = "the server took for HTTP what could not be checked as such";
                record.stopped(&Problem::denied(reason), Some(Protocol::Raw));
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            record.down(count)
        };
        let result = relay::pump(&upstream, client, watch).await;
        response.over();
        result
    };
    let (mut up, mut down) = (pin!(up.fuse()), pin!(down.fuse()));
    let (mut up_ended, mut down_ended) = (false, false);
    let stop = loop {
        tokio::select! {
            result = &mut up, if !up_ended => match result {
                Ok(()) => up_ended = true,
                Err(stop) => break stop,
            },
            result = &mut down, if !down_ended => match result {
                Ok(()) => down_ended = true,
                Err(_) => break Stop::Gone,
            },
        }
        if up_ended && down_ended {
            record.passed(Protocol::Raw);
            return Ok(());
        }
    };
    let problem = match &stop {
        Stop::Problem(problem) if in_http.load(Relaxed) => problem,
        _ => {
            // What was cut must not look like a proper end.
            relay::reset(&upstream);
            return Err(stop);
        }
    };
    // Earlier requests were proper: let their answers through, then say what is wrong with this one. The server is not told
    // yet that nothing more comes: its own end would end the client's side before that is said.
    for _ in 0..QUIET.1 {
        let before = response.moved();
        if down_ended || !response.any() || timeout(QUIET.0, &mut down).await.is_ok() || response.moved() == before {
            break;
        }
    }
    record.stopped(problem, Some(Protocol::Http));
    let place = format!("{}:{}", record.place, record.port);
    // As if it had come through the proxy: it gets its answer in HTTP, whatever is left to read of it.
    refuse(client, &mut Vec::new(), record.port, Entry::Forward, &place, problem).await;
    Ok(())
}
