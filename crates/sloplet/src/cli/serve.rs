//! What can be typed to serve.

use std::path::PathBuf;

use clap::Args;
use sloplet_policy::Span;

use super::record::Kept;

pub const SERVE_EXAMPLES: &str = "\
Examples:
  sloplet serve
  sloplet serve --listen 127.0.0.1:8080 --data /srv/sloplet
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

    /// The domain whose names PORT-ID.DOMAIN lead here: what SDKs and links are told.
    #[arg(long)]
    pub domain: Option<String>,

    /// Give sandboxes of E2B's SDKs, which ask for internet access unless told otherwise, what they ask for. Private
    /// addresses stay out of reach.
    #[arg(long)]
    pub allow_internet: bool,

    /// Open ports of sandboxes to everybody who knows their address, as E2B does, unless a sandbox says otherwise.
    #[arg(long)]
    pub public_previews: bool,

    /// Keep machines ready: IMAGE=NUMBER, of the usual size. Can be repeated.
    #[arg(long, value_name = "IMAGE=NUMBER", value_parser = parse_warm)]
    pub warm: Vec<(String, usize)>,

    /// A file whose `[protect]` holds for every sandbox of this server.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Verify the walls again and again, so often.
    #[arg(long, value_name = "TIME")]
    pub verify_every: Option<Span>,

    /// Destroy all sandboxes when the server is asked to end, instead of leaving them for the next one.
    #[arg(long)]
    pub destroy_on_exit: bool,

    /// Remove records that are older, once a day and in whole segments of 64 MiB; or 'forever'.
    #[arg(long, value_name = "TIME", default_value = "90d")]
    pub keep_records: Kept,

    /// Remove what commands printed after so long; or 'forever'. Its digest stays in the records.
    #[arg(long, value_name = "TIME", default_value = "30d")]
    pub keep_outputs: Kept,

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

fn parse_warm(text: &str) -> Result<(String, usize), String> {
    let form = || format!("'{text}' is not of the form IMAGE=NUMBER, like host=4");
    let (image, count) = text.split_once('=').ok_or_else(form)?;
    Ok((image.to_owned(), count.parse().map_err(|_| form())?))
}
