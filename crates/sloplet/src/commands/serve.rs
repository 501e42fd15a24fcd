//! `sloplet serve`

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use sloplet_engine::life::{Quota, Sandboxes, Wanted};
use sloplet_policy::Spec;
use sloplet_server::auth::{LOCAL, Scope};
use sloplet_server::gate::Gate;
use sloplet_server::listen::{self, Listeners};
use sloplet_server::retention::{self, Keep};
use sloplet_server::{App, Config};
use sloplet_store::Store;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::cli::{Kept, Serve};
use crate::setup;

/// The Unix socket within the run folder.
pub const SOCKET: &str = "api.sock";

pub fn run(data: Option<PathBuf>, options: Serve) -> anyhow::Result<u8> {
    if !options.listen.ip().is_loopback() && !options.public {
        bail!("{} can be reached by others: add --public if that is meant", options.listen);
    }
    if options.print_openapi {
        say!("{}", sloplet_server::v1::document::text().trim_end());
        return Ok(0);
    }
    if options.detached {
        // Whoever started us may be interrupted, or close its terminal: that is not about us.
        rustix::process::setsid().context("leaving the session")?;
    }
    log(options.log_json);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let code = runtime.block_on(serve(data, options));
    runtime.shutdown_background();
    code
}

fn log(json: bool) {
    let filter = EnvFilter::try_from_env("SLOPLET_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if json {
        builder.json().init();
    } else {
        builder.with_target(false).init();
    }
}

async fn serve(data: Option<PathBuf>, options: Serve) -> anyhow::Result<u8> {
    let engine = Arc::new(setup::lasting_engine(data)?);
    let places = engine.places().clone();
    let store = Store::open(&places.data)?;
    let tls = match (&options.tls_cert, &options.tls_key) {
        (Some(certificate), Some(key)) => Some(listen::tls(certificate, key)?),
        _ => None,
    };
    let tcp = TcpListener::bind(options.listen).await.with_context(|| format!("listening on {}", options.listen))?;
    let address = tcp.local_addr()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{address}");
    let warm = options.warm.iter().map(|(image, count)| {
        let spec = Spec { image: image.clone(), ..Spec::default() };
        Wanted { spec, count: *count }
    });
    let sandboxes = Sandboxes::open(engine.clone(), &store, &places.data, warm.collect()).await?;
    let config = Config {
        data: places.data.clone(),
        domain: options.domain.clone(),
        url: url.clone(),
        internet: options.allow_internet,
    };
    let app = App::new(config, sandboxes.clone(), store)?;
    let age = |kept: Kept| kept.0.map(|span| span.0);
    let keep = Keep { records: age(options.keep_records), outputs: age(options.keep_outputs) };
    retention::start(engine.ledger().clone(), keep);
    if app.keys().list()?.is_empty() {
        let (_, secret) = app.keys().create("first", Scope::Admin, Quota::default(), Some(LOCAL))?;
        introduce(&secret, &url);
    }
    let unix = bind_socket(&places.run.join(SOCKET))?;
    tracing::info!(%url, data = %places.data.display(), "serving");
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let stop = async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    };
    listen::serve(Listeners { tcp: Some(tcp), tls, unix: Some(unix) }, Gate::new(app), stop).await;
    let _ = std::fs::remove_file(places.run.join(SOCKET));
    if options.destroy_on_exit {
        sandboxes.destroy_all().await;
    }
    tracing::info!("ended");
    Ok(0)
}

/// Tells the secret of the first key: it is not kept, so never again.
fn introduce(secret: &str, url: &str) {
    say!("API key (shown this once): {secret}");
    say!();
    say!("  export E2B_API_KEY={secret} E2B_API_URL={url} E2B_SANDBOX_URL={url}");
    say!("  python -c \"from e2b import Sandbox; print(Sandbox.create().commands.run('echo hi').stdout)\"");
    say!();
}

/// Binds the socket, in place of one that a killed server left. The database's lock says that there is no other server.
fn bind_socket(path: &Path) -> anyhow::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o700))?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).context("removing the old socket"),
        _ => {}
    }
    let listener = UnixListener::bind(path).with_context(|| format!("listening on {}", path.display()))?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}
