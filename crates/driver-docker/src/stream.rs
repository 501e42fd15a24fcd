//! Bytes to and from an agent, through the engine.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bollard::query_parameters::AttachContainerOptions;
use bytes::Bytes;
use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{container, kit};

/// Bytes of what an agent complains about that are kept.
const COMPLAINT: usize = 2048;

type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;
type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// The standard input and output of a process in a container.
pub struct Attached {
    output: Output,
    input: Input,
    rest: Bytes,
    /// What the process said on its standard error.
    complaint: Vec<u8>,
}

impl Attached {
    fn new(output: Output, input: Input) -> Self {
        Self { output, input, rest: Bytes::new(), complaint: Vec::new() }
    }

    /// The first process of a container.
    pub async fn to_container(client: &bollard::Docker, container: &str) -> Result<Self, Error> {
        let options =
            AttachContainerOptions { stream: true, stdin: true, stdout: true, stderr: true, ..Default::default() };
        let attached = client.attach_container(container, Some(options)).await?;
        Ok(Self::new(attached.output, attached.input))
    }

    /// A relay to the agent, started for this.
    pub async fn by_relay(client: &bollard::Docker, name: &str) -> Result<Self, Error> {
        let (program, door) = (format!("{}/{}", kit::PLACE, kit::PROGRAM), container::door());
        let known = client.inspect_container(name, None).await?;
        let user = known.config.and_then(|config| container::messenger(&config.user?));
        let options = CreateExecOptions {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            user,
            cmd: Some(vec![program, sloplet_agent::program::SUBCOMMAND.to_owned(), "relay".to_owned(), door]),
            ..Default::default()
        };
        let made = client.create_exec(name, options).await?;
        let options = StartExecOptions { output_capacity: Some(64 * 1024), ..Default::default() };
        match client.start_exec(&made.id, Some(options)).await? {
            StartExecResults::Attached { output, input } => Ok(Self::new(output, input)),
            StartExecResults::Detached => Err(io::Error::other("the engine let go of the relay").into()),
        }
    }
}

impl AsyncRead for Attached {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match self.output.as_mut().poll_next(context) {
                Poll::Ready(Some(Ok(LogOutput::StdOut { message }))) => self.rest = message,
                Poll::Ready(Some(Ok(LogOutput::StdErr { message }))) => {
                    let room = COMPLAINT.saturating_sub(self.complaint.len());
                    self.complaint.extend_from_slice(&message[..message.len().min(room)]);
                }
                // Not of the process's output.
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(io::Error::other(error))),
                Poll::Ready(None) => {
                    let said = String::from_utf8_lossy(&self.complaint).trim().replace(char::is_control, " ");
                    let end = if said.is_empty() { Ok(()) } else { Err(io::Error::other(format!("it says: {said}"))) };
                    return Poll::Ready(end);
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        let length = self.rest.len().min(buffer.remaining());
        let part = self.rest.split_to(length);
        buffer.put_slice(&part);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Attached {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.input.as_mut().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_shutdown(context)
    }
}
