//! Handing connections over to where keys are put in and money is counted.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

/// A future in a box.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Takes over connections to hosts where keys are put in and money is counted.
pub trait Intercept: Send + Sync + 'static {
    /// Whether connections to this name and port are taken over.
    fn wants(&self, name: &str, port: u16) -> bool;

    /// Serves a connection to its end. `client` is the sandbox's end, nothing of it consumed.
    fn serve(&self, client: Box<dyn Stream>, target: Target, dial: Arc<dyn Dial>) -> Pending<'static, ()>;
}

/// Where an intercepted connection was going.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The name that was allowed.
    pub name: String,
    /// The port that was allowed.
    pub port: u16,
    /// Whether it begins with a ClientHello.
    pub tls: bool,
    /// Its number in events.
    pub connection: u64,
}

/// Opens connections to the target that was allowed: resolves, vets and dials anew each time; bytes are counted.
pub trait Dial: Send + Sync {
    /// Opens one.
    fn dial(&self) -> Pending<'_, io::Result<Box<dyn Stream>>>;
}

/// Both directions of a connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}
