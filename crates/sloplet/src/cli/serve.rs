//! What can be typed to serve.

use std::path::PathBuf;

use clap::Args;
use sloplet_policy::{ByteSize, Span};

use super::record::Kept;

pub const SERVE_EXAMPLES: &str = "\
Examples:
  sloplet serve
  sloplet serve --listen 127.0.0.1:8080 --data /srv/sloplet
  sloplet serve --ssh 127.0.0.1:2222 --ssh-create
  sloplet serve --listen 0.0.0.0:443 --public --tls-cert chain.pem --tls-key key.pem --domain sandbox.example.com";

/// `sloplet serve`
#[derive(Debug, Args)]
pub struct Serve {
    /// Address and port.
    #[arg(long, default_value = "127.0.0.1:7070")]
    pub listen: std::net::SocketAddr,

    /// Listen on an address that others can reach.
    #[arg(long)]
    pub public: bool,

    /// Certificate chain in PEM form, for HTTPS.
    #[arg(long, requires = "tls_key", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// Its private key in PEM form.
    #[arg(long, requires = "tls_cert", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// The domain for previews and SDKs: PORT-ID.DOMAIN must lead to this server.
    #[arg(long)]
    pub domain: Option<String>,

    /// Grant internet access to sandboxes of E2B's SDKs, which ask for it by default. Private addresses stay out of reach.
    #[arg(long)]
    pub allow_internet: bool,

    /// Open ports of sandboxes to everybody who knows their address, as E2B does, unless a sandbox says otherwise.
    #[arg(long)]
    pub public_previews: bool,

    /// Machines that may wait in all pools together [default: as many as the pools say]
    #[arg(long, value_name = "NUMBER")]
    pub max_warm: Option<u32>,

    /// Connections from the network at once. One address has at most three quarters of them; those of this user's own programs
    /// are not counted.
    #[arg(long, value_name = "NUMBER", default_value_t = sloplet_server::listen::CONNECTIONS, value_parser = connections)]
    pub max_connections: usize,

    /// Memory that the server holds for clients in all: output and answers that nobody reads, bodies of requests. One key has at
    /// most half of it. Besides, the server needs memory of its own: see SECURITY.md. [default: a quarter of the memory that this
    /// server may use, at most 512MiB]
    #[arg(long, value_name = "SIZE", value_parser = buffers)]
    pub buffers: Option<ByteSize>,

    /// A file whose `[protect]` holds for every sandbox of this server.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// What of S3 may be used, with credentials out of the environment: s3://BUCKET or s3://BUCKET/PREFIX, where {owner} stands for
    /// the key that asks. Can be repeated.
    #[arg(long, value_name = "S3", env = "SLOPLET_S3", value_delimiter = ',')]
    pub s3: Vec<sloplet_s3::Root>,

    /// A registry that keys may pull images from, at a public address or not: HOST or HOST:PORT. Can be repeated. [default:
    /// any at a public address]
    #[arg(long = "registry", value_name = "HOST", env = "SLOPLET_REGISTRIES", value_delimiter = ',')]
    pub registries: Vec<sloplet_engine::template::RegistryHost>,

    /// Drivers that keys may use, with commas between them. [default: all but docker]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub drivers: Option<Vec<String>>,

    /// The weakest isolation that keys may use: process, container, gvisor or vm. What asks for less gets this.
    #[arg(long, value_name = "LEVEL")]
    pub min_isolation: Option<sloplet_policy::Isolation>,

    /// Verify the walls on this schedule.
    #[arg(long, value_name = "TIME")]
    pub verify_every: Option<Span>,

    /// Listen for SSH there, too: the name to log in with is a sandbox's.
    #[arg(long, value_name = "ADDRESS")]
    pub ssh: Option<std::net::SocketAddr>,

    /// Make a sandbox that stays when somebody with a key logs in with a name that is not there yet.
    #[arg(long)]
    pub ssh_create: bool,

    /// The image of sandboxes that are made by a login.
    #[arg(long, value_name = "IMAGE", requires = "ssh_create")]
    pub ssh_image: Option<String>,

    /// Public keys of this server's own user, one a line; others are added with 'sloplet key ssh add'.
    #[arg(long, value_name = "FILE", requires = "ssh")]
    pub ssh_authorized_keys: Option<PathBuf>,

    /// Allow ssh -R: ports and sockets inside sandboxes lead to the client, past all network rules.
    #[arg(long)]
    pub ssh_remote_forward: bool,

    /// Destroy all sandboxes when the server is asked to end, instead of leaving them for the next one.
    #[arg(long)]
    pub destroy_on_exit: bool,

    /// Remove records that are older, once a day and in whole segments of 64 MiB; or 'forever'.
    #[arg(long, value_name = "TIME", default_value = "90d")]
    pub keep_records: Kept,

    /// Remove what commands printed after so long; or 'forever'. Its digest stays in the records.
    #[arg(long, value_name = "TIME", default_value = "30d")]
    pub keep_outputs: Kept,

    /// Keep all privileges of the user who starts the server, also in what parses strangers' bytes (SECURITY.md). For hosts that
    /// permit no user namespaces.
    #[arg(long)]
    pub unconfined: bool,

    /// Log as JSON.
    #[arg(long)]
    pub log_json: bool,

    /// In a session of its own: started by another command, to go on without it.
    #[arg(long, hide = true)]
    pub detached: bool,

    /// Take a protection away, to test the probes: debug builds only.
    #[arg(long, hide = true)]
    pub weaken: Option<String>,

    /// Print the OpenAPI document and end.
    #[arg(long, hide = true)]
    pub print_openapi: bool,
}

fn connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 16..=1_000_000) => Ok(number),
        _ => Err("give a number from 16 to 1000000".into()),
    }
}

fn buffers(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|error| format!("{error}"))?;
    match size.0 >= 16 << 20 {
        true => Ok(size),
        false => Err("give at least 16MiB".into()),
    }
}
