//! The code interpreter inside the image `code-interpreter`: lines of JSON that tell what a piece of code does.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::Method;
use serde_json::{Value, json};
use sloplet_remote::{Refused, full};

use super::code::{Ran, RunCode};
use crate::answer::{TEXT, shortened};
use crate::call::Call;
use crate::failure::Failure;

/// Its port inside.
const PORT: u16 = 49999;

/// How long it may take to start.
const START: Duration = Duration::from_secs(60);

/// Bytes of all that a piece of code shows.
const MOST: usize = 16 * 1024 * 1024;

/// Most pictures in one answer, and bytes of one.
const PICTURES: usize = 8;
const PICTURE: usize = 2 * 1024 * 1024;

/// A picture: its kind, and its bytes in base64.
pub type Picture = (&'static str, String);

/// Runs code where earlier code has left its variables.
pub async fn execute(call: &Call, asked: &RunCode) -> Result<(String, Ran, Vec<Picture>), Failure> {
    let sandbox = call.sandbox().await?;
    let seconds = match asked.timeout_seconds.unwrap_or(120) {
        seconds @ 1..=3600 => seconds,
        _ => return Err(Failure::new("timeout_seconds: 1 to 3600")),
    };
    let body = json!({"code": asked.code, "language": asked.language.name()}).to_string();
    let started = Instant::now();
    let response = loop {
        let at = (sandbox.as_str(), PORT);
        match call.server().send_inside(at, Method::POST, "/execute", full(body.clone())).await {
            Ok(response) => break response,
            Err(error) if is_starting(&error) && started.elapsed() < START => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => return Err(error.into()),
        }
    };
    let mut told = Told::default();
    let reading = told.read(response.into_body());
    let late = match tokio::time::timeout(Duration::from_secs(seconds.into()), reading).await {
        Ok(read) => read.map(|()| false)?,
        // Whoever leaves stops the code.
        Err(_) => true,
    };
    if late {
        told.ran.error = Some(format!("stopped: it took longer than {seconds} s"));
    }
    Ok(told.finish())
}

fn is_starting(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| matches!(refused.status, 502 | 503))
}

#[derive(Default)]
struct Told {
    ran: Ran,
    results: Vec<String>,
    pictures: Vec<Picture>,
    left_out: usize,
}

impl Told {
    async fn read(&mut self, mut body: hyper::body::Incoming) -> Result<(), Failure> {
        let (mut rest, mut read) = (BytesMut::new(), 0);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Failure::new(format!("the interpreter broke off: {error}")))?;
            let Ok(bytes) = frame.into_data() else { continue };
            read += bytes.len();
            if read > MOST {
                let failure = Failure::new(format!("the code showed more than {MOST} bytes and was stopped"));
                return Err(failure.hint("Write what is large to a file."));
            }
            rest.extend_from_slice(&bytes);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = rest.split_to(end + 1);
                if let Ok(line) = serde_json::from_slice::<Value>(&line)
                    && self.add(&line)
                {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether this was the last line.
    fn add(&mut self, line: &Value) -> bool {
        let text = |name: &str| line[name].as_str().unwrap_or_default();
        match text("type") {
            "stdout" => self.ran.stdout.push_str(text("text")),
            "stderr" => self.ran.stderr.push_str(text("text")),
            "error" => {
                self.ran.error = Some(plain(&format!("{}: {}\n{}", text("name"), text("value"), text("traceback"))))
            }
            "result" => {
                for (field, kind) in [("png", "image/png"), ("jpeg", "image/jpeg")] {
                    let Some(data) = line[field].as_str() else { continue };
                    if self.pictures.len() < PICTURES && data.len() <= PICTURE && is_base64(data) {
                        self.pictures.push((kind, data.split_whitespace().collect()));
                    } else {
                        self.left_out += 1;
                    }
                }
                let shown = ["text", "markdown", "json", "html"].iter().find_map(|name| line[name].as_str());
                self.results.extend(shown.map(str::to_owned));
                if line["is_main_result"] == true {
                    self.ran.result = shown.map(str::to_owned);
                }
            }
            "end_of_execution" => return true,
            _ => {}
        }
        false
    }

    fn finish(mut self) -> (String, Ran, Vec<Picture>) {
        self.ran.ok = self.ran.error.is_none();
        self.ran.stateful = true;
        self.ran.pictures = self.pictures.len();
        let bounded = |text: &mut String| {
            if let Some(short) = shortened(text.as_bytes(), TEXT / 3) {
                *text = short;
            }
        };
        bounded(&mut self.ran.stdout);
        bounded(&mut self.ran.stderr);
        self.ran.result.as_mut().into_iter().for_each(bounded);
        self.ran.error.as_mut().into_iter().for_each(bounded);
        let mut results = self.results.join("\n");
        bounded(&mut results);
        let mut said = Vec::new();
        let parts = [("stdout", self.ran.stdout.as_str()), ("stderr", &self.ran.stderr), ("result", &results)];
        for (name, text) in parts.into_iter().chain([("error", self.ran.error.as_deref().unwrap_or_default())]) {
            if !text.is_empty() {
                said.push(format!("--- {name} ---\n{}", text.trim_end_matches('\n')));
            }
        }
        if self.left_out > 0 {
            said.push(format!("[{} pictures were too large or too many: save them to files]", self.left_out));
        }
        if said.is_empty() {
            said.push(if self.pictures.is_empty() { "it printed nothing".into() } else { String::new() });
        }
        (said.join("\n"), self.ran, self.pictures)
    }
}

fn is_base64(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=\n\r".contains(&byte))
}

/// Without colours: tracebacks are full of them.
fn plain(text: &str) -> String {
    let mut said = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("\x1b[") {
        said.push_str(&rest[..start]);
        let after = &rest[start + 2..];
        let end = after.find(|c: char| c.is_ascii_alphabetic()).map_or(after.len(), |end| end + 1);
        rest = &after[end..];
    }
    said.push_str(rest);
    said
}
