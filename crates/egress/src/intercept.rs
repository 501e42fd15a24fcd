//! Where connections are taken over: hosts for which keys are put in and money is counted.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

/// Something that is under way.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A connection's bytes.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}

/// Takes over connections to hosts where keys are put in and money is counted.
pub trait Intercept: Send + Sync + 'static {
    /// Whether connections to this host are for it.
    fn wants(&self, name: &str, port: u16) -> bool;

    /// Serves a connection to its end. `client` is the sandbox's end; nothing of it has been consumed.
    fn serve(&self, client: Box<dyn Stream>, target: Target, dial: Arc<dyn Dial>) -> Pending<'static, ()>;
}

/// What a connection was allowed to reach.
#[derive(Debug, Clone)]
pub struct Target {
    /// The name that was resolved.
    pub name: String,
    /// The port.
    pub port: u16,
    /// Whether what the client sends begins with a TLS ClientHello.
    pub tls: bool,
    /// Which connection this is, in events.
    pub connection: u64,
}

/// Opens connections to the target that was allowed: resolves, vets and dials anew each time; bytes are counted.
pub trait Dial: Send + Sync {
    /// A new connection.
    fn dial(&self) -> Pending<'_, io::Result<Box<dyn Stream>>>;
}
