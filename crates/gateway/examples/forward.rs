//! A gateway on loopback, for trying it out: every connection to it is handed to the gateway as one to the host that its
//! ClientHello would name, and goes on to one upstream address.
//!
//! `forward CONFIG`, a JSON file: `upstream` (address), `roots` (PEM file), `folder` (where `ca.pem` and `events.jsonl` are
//! written), `host`, `port`, `secrets` (rules; their sources must be set), `budget`, `prices` (file), `llm`. It prints the
//! address it listens on, and then the variables that the sandbox would have.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use sloplet_egress::intercept::{Dial, Intercept, Pending, Stream, Target};
use sloplet_gateway::{Accounts, Authority, Gateway, LlmHost, Prices, Secret, SecretValue, Setup, placeholder};
use sloplet_policy::{Budget, SecretRule};
use tokio::net::{TcpListener, TcpStream};

#[derive(Deserialize)]
struct Config {
    upstream: SocketAddr,
    roots: PathBuf,
    folder: PathBuf,
    host: String,
    port: u16,
    secrets: Vec<String>,
    #[serde(default)]
    budget: Budget,
    prices: Option<PathBuf>,
    #[serde(default)]
    llm: Vec<LlmHost>,
}

struct To(SocketAddr);

impl Dial for To {
    fn dial(&self) -> Pending<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async { Ok(Box::new(TcpStream::connect(self.0).await?) as Box<dyn Stream>) })
    }
}

type Failure = Box<dyn std::error::Error>;

fn gateway(config: &Config) -> Result<(Gateway, Vec<(String, String)>), Failure> {
    let mut secrets = Vec::new();
    for rule in &config.secrets {
        let rule: SecretRule = rule.parse()?;
        let value = SecretValue::resolve(&rule.source)?;
        let placeholder = placeholder(&rule).map_err(|_| "no randomness")?;
        secrets.push(Secret { rule, value, placeholder });
    }
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(&config.roots)? {
        roots.add(certificate?)?;
    }
    let authority = Authority::new()?;
    std::fs::write(config.folder.join("ca.pem"), authority.certificate_pem())?;
    let log = Mutex::new(File::create(config.folder.join("events.jsonl"))?);
    let prices = match &config.prices {
        Some(path) => Prices::load(path)?,
        None => Prices::built_in()?,
    };
    let gateway = Gateway::new(Setup {
        authority: Arc::new(authority),
        secrets,
        headers: Vec::new(),
        account: Accounts::new(None).open("sandbox", "", config.budget.clone()),
        prices: Arc::new(prices),
        roots: Arc::new(roots),
        llm_hosts: config.llm.clone(),
        events: Arc::new(move |event| {
            if let (Ok(line), Ok(mut log)) = (serde_json::to_string(&event), log.lock()) {
                let _ = writeln!(log, "{line}");
            }
        }),
    })?;
    let variables = gateway.placeholders();
    Ok((gateway, variables))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let path = std::env::args().nth(1).ok_or("give the path of a configuration")?;
    let config: Config = serde_json::from_slice(&std::fs::read(path)?)?;
    let (gateway, variables) = gateway(&config)?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("{}", listener.local_addr()?);
    println!("{}", serde_json::to_string(&variables)?);
    let dial: Arc<dyn Dial> = Arc::new(To(config.upstream));
    for connection in 0.. {
        let (client, _) = listener.accept().await?;
        let target = Target { name: config.host.clone(), port: config.port, tls: true, connection };
        tokio::spawn(gateway.serve(Box::new(client), target, dial.clone()));
    }
    Ok(())
}
