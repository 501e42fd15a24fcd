//! `sloplet serve`

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use rustix::net::SocketType;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sloplet_engine::life::{Quota, Sandboxes};
use sloplet_engine::template::Registries;
use sloplet_engine::{Engine, Places, Trust};
use sloplet_policy::Radius;
use sloplet_s3::{Client, Root, Settings};
use sloplet_server::auth::{LOCAL, Scope};
use sloplet_server::gate::Gate;
use sloplet_server::listen::{self, Listeners, TlsAcceptor};
use sloplet_server::retention::{self, Keep};
use sloplet_server::traces::{Collector, Exporter, Traces};
use sloplet_server::walls::Walls;
use sloplet_server::{App, Config};
use sloplet_spawner::door;
use sloplet_store::Store;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use crate::api::SOCKET;
use crate::cli::{Kept, Serve};
use crate::confinement::{self, Wishes};
use crate::{memory, setup, tidy, verification};

pub fn run(data: Option<PathBuf>, options: Serve) -> anyhow::Result<u8> {
    for address in [Some(options.listen), options.ssh].into_iter().flatten() {
        if !address.ip().is_loopback() && !options.public {
            bail!("{address} can be reached by others: add --public if that is meant");
        }
    }
    if options.print_openapi {
        say!("{}", sloplet_server::v1::document::text().trim_end());
        return Ok(0);
    }
    if options.detached {
        // Whoever started us may be interrupted, or close its terminal: that is not about us.
        rustix::process::setsid().context("leaving the session")?;
    }
    raise_file_limit();
    let places = setup::places(data.clone())?;
    let early = Early::prepare(&places, &options)?;
    if !options.unconfined {
        let files = options.ssh_authorized_keys.iter().filter_map(|path| std::path::absolute(path).ok()).collect();
        let docker = options.drivers.as_ref().is_none_or(|drivers| drivers.iter().any(|driver| driver == "docker"));
        confinement::apply(&places, &Wishes { protect: early.radius.paths.clone(), files, docker })?;
    }
    let exporter = log(options.log_json)?;
    sloplet_sys::allocator::give_back_early();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let code = runtime.block_on(async {
        let exporting = exporter.map(Exporter::start);
        let code = serve(data, options, early).await;
        if let Some(exporting) = exporting {
            exporting.finish().await;
        }
        code
    });
    runtime.shutdown_background();
    code
}

/// What is read and opened while the server still has its privileges.
struct Early {
    radius: Radius,
    tls: Option<TlsAcceptor>,
    http: std::net::TcpListener,
    ssh: Option<std::net::TcpListener>,
}

impl Early {
    fn prepare(places: &Places, options: &Serve) -> anyhow::Result<Self> {
        let radius = match &options.config {
            Some(path) => Trust::of(&places.data).settings(Some(path), Path::new("/"), &[])?.protect,
            None => Radius::default(),
        };
        let tls = match (&options.tls_cert, &options.tls_key) {
            (Some(certificate), Some(key)) => Some(listen::tls(certificate, key)?),
            _ => None,
        };
        let http = bind(options.listen).with_context(|| format!("listening on {}", options.listen))?;
        let for_ssh = |address| bind(address).with_context(|| format!("listening on {address} for SSH"));
        let ssh = options.ssh.map(for_ssh).transpose()?;
        verification::prepare(places, options.config.as_ref());
        Ok(Self { radius, tls, http, ssh })
    }
}

fn bind(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A sandbox takes some descriptors, a connection one: as many as this process may have. What is started in sandboxes has
/// limits of its own.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Begins to log and, where a collector is named, to tell what took how long.
fn log(json: bool) -> anyhow::Result<Option<Exporter>> {
    let filter = EnvFilter::try_from_env("SLOPLET_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = if json { lines.json().boxed() } else { lines.with_target(false).boxed() };
    let collector = Collector::from_environment(|name| std::env::var(name).ok()).context("OpenTelemetry")?;
    let (traces, exporter) = collector.map(Exporter::new).transpose()?.unzip();
    let traces = traces.map(|traces| traces.with_filter(filter_fn(Traces::wants)));
    tracing_subscriber::registry().with(lines.with_filter(filter)).with(traces).init();
    Ok(exporter)
}

/// Where somebody on this machine reaches a listener: "all addresses" is none that a browser could open.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// A driver that nobody knows would silently be allowed to nobody.
fn check_drivers(engine: &Engine, listed: &[String]) -> anyhow::Result<()> {
    for name in listed {
        let spec = sloplet_policy::Spec { driver: Some(name.clone()), ..sloplet_policy::Spec::default() };
        engine.driver_name(&spec).context("--drivers")?;
    }
    Ok(())
}

async fn serve(data: Option<PathBuf>, mut options: Serve, early: Early) -> anyhow::Result<u8> {
    let weaken = options.weaken.as_deref().map(sloplet_policy::weakness::for_test).transpose()?;
    let mut buffers = options.buffers.map_or_else(|| memory::usual_buffers(memory::usable()), |size| size.0);
    if weaken == Some("server-limits") {
        (options.max_connections, buffers) = (1 << 20, 1 << 40);
    }
    let Early { radius, tls, http, ssh: ssh_listener } = early;
    let engine = Arc::new(setup::lasting_engine(data)?.protecting(radius).buffering(buffers));
    check_drivers(&engine, options.drivers.as_deref().unwrap_or_default())?;
    let places = engine.places().clone();
    let store = Store::open(&places.data)?;
    let tcp = TcpListener::from_std(http)?;
    let address = tcp.local_addr()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}", reachable(address));
    let sandboxes = Sandboxes::open(engine.clone(), &store, &places.data, options.max_warm).await?;
    let config = Config {
        data: places.data.clone(),
        domain: options.domain.clone(),
        url: url.clone(),
        internet: options.allow_internet,
        public_previews: options.public_previews,
        s3: storage(&options.s3)?,
        registries: Registries::new(options.registries.clone()),
        walls: Walls { drivers: options.drivers.clone(), least: options.min_isolation },
        weaken,
    };
    let app = App::new(config, sandboxes.clone(), store)?;
    if let Ok(storage) = app.storage() {
        tokio::spawn(storage.clone().tidy());
    }
    let age = |kept: Kept| kept.0.map(|span| span.0);
    let keep = Keep { records: age(options.keep_records), outputs: age(options.keep_outputs) };
    retention::start(engine.ledger().clone(), keep);
    if app.keys().list()?.is_empty() {
        let (_, secret) = app.keys().create("first", Scope::Admin, Quota::default(), Some(LOCAL))?;
        introduce(&secret, &url, options.domain.as_deref());
    }
    tokio::spawn(tidy::keep(sandboxes.clone()));
    if let Some(every) = options.verify_every {
        tokio::spawn(verification::repeat(places.clone(), every.0));
    }
    let ssh = sloplet_ssh::Options {
        create: options.ssh_create,
        image: options.ssh_image.clone(),
        authorized_keys: options.ssh_authorized_keys.clone(),
        remote_forward: options.ssh_remote_forward,
    };
    open_ssh(&app, &places.data, ssh_listener, ssh)?;
    let run = places.own_run()?;
    let unix = bind_socket(&run)?;
    tracing::info!(%url, data = %places.data.display(), "serving");
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let stop = async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    };
    let listeners = Listeners { tcp: Some(tcp), tls, unix: Some(unix), connections: options.max_connections };
    listen::serve(listeners, Gate::new(app), stop).await;
    let _ = std::fs::remove_file(run.join(SOCKET));
    match options.destroy_on_exit {
        true => sandboxes.destroy_all().await,
        false => sandboxes.write_histories(),
    }
    // Tasks that are given up with the runtime hold the ledger, too: it is not dropped before this process ends.
    let ledger = engine.ledger().clone();
    if let Ok(Err(error)) = tokio::task::spawn_blocking(move || ledger.flush()).await {
        tracing::error!(%error, "cannot write the end of the ledger");
    }
    tracing::info!("ended");
    Ok(0)
}

/// Speaks SSH: on a port, if one is given, and in any case with those who come over HTTP.
fn open_ssh(
    app: &App,
    data: &Path,
    listener: Option<std::net::TcpListener>,
    options: sloplet_ssh::Options,
) -> anyhow::Result<()> {
    let listener = listener.map(TcpListener::from_std).transpose()?;
    let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let server = sloplet_ssh::Server::new(app.clone(), data, options, address).context("SSH")?;
    app.set_ssh(Arc::new(server.clone()));
    if let (Some(listener), Some(address)) = (listener, address) {
        tracing::info!(%address, host_key = server.fingerprint(), "serving SSH");
        tokio::spawn(server.listen(listener));
    }
    Ok(())
}

/// The S3 that may be used.
fn storage(roots: &[Root]) -> anyhow::Result<Option<(Client, Vec<Root>)>> {
    let settings = Settings::from_environment(|name| std::env::var(name).ok())?;
    let mut roots = roots.to_vec();
    match settings {
        None if roots.is_empty() => Ok(None),
        None => bail!(
            "--s3 needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or SPACES_ACCESS_KEY and SPACES_SECRET_KEY"
        ),
        Some(settings) => {
            if let Some(bucket) = settings.bucket.as_ref().filter(|_| roots.is_empty()) {
                roots.push(format!("s3://{bucket}").parse()?);
            }
            // Credentials that happen to be there are no permission to use them.
            if roots.is_empty() { Ok(None) } else { Ok(Some((Client::new(settings)?, roots))) }
        }
    }
}

/// Tells the secret of the first key: it is not kept, so never again.
fn introduce(secret: &str, url: &str, domain: Option<&str>) {
    say!("API key (shown this once): {secret}");
    say!();
    match domain.filter(|_| url.starts_with("https")) {
        Some(domain) => say!("  export E2B_API_KEY={secret} E2B_DOMAIN={domain}"),
        None => say!("  export E2B_API_KEY={secret} E2B_API_URL={url} E2B_SANDBOX_URL={url}"),
    }
    say!("  python -c \"from e2b import Sandbox; print(Sandbox.create().commands.run('echo hi').stdout)\"");
    say!();
}

/// Connections that may wait until they are taken.
const BACKLOG: i32 = 1024;

/// Binds the socket, in place of one that a killed server left. The data folder's lock says that there is no other server.
fn bind_socket(folder: &Path) -> anyhow::Result<UnixListener> {
    let path = folder.join(SOCKET);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).context("removing the old socket"),
        _ => {}
    }
    let bound = door::open_door(folder, SOCKET, SocketType::STREAM).map(std::os::unix::net::UnixListener::from);
    let listener = bound.with_context(|| format!("listening on {}", path.display()))?;
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600))?;
    Ok(UnixListener::from_std(listener)?)
}
