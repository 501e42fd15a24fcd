//! `sloplet snapshot export` and `import`

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use serde_json::{Value, json};
use sloplet_image::{Checked, Draft, SealCheck};

use super::cp::{Counter, read, received};
use crate::api::{Server, encode, full};
use crate::relay::input;
use crate::relay::output::{Sink, Stream};
use crate::table::size;

pub async fn export(
    server: &Server,
    name: &str,
    to: Option<&str>,
    thin: bool,
    files_only: bool,
    json: bool,
) -> anyhow::Result<()> {
    if let Some(object) = to.filter(|to| to.starts_with("s3://")) {
        let wish = json!({"object": object, "thin": thin, "files_only": files_only});
        let done = server.post(&format!("/snapshots/{}/export", encode(name)), &wish).await?;
        match json {
            true => say!("{}", serde_json::to_string_pretty(&done)?),
            false => {
                let bytes = size(done["bytes"].as_u64().unwrap_or(0));
                say!("{object}: {bytes}, sha256:{}", done["sha256"].as_str().unwrap_or_default());
            }
        }
        return Ok(());
    }
    let path = format!("/snapshots/{}/export?thin={thin}&files_only={files_only}", encode(name));
    let default = format!("{name}.sloplet");
    let to = to.unwrap_or(&default);
    let answer = server.send(Method::GET, &path, "application/json", full("")).await?;
    if to == "-" {
        return print(answer.into_body()).await.map(drop);
    }
    let whole = save(answer.into_body(), Path::new(to)).await?;
    if json {
        let told = json!({"file": to, "bytes": whole.bytes, "sha256": whole.sha256});
        say!("{}", serde_json::to_string_pretty(&told)?);
    } else {
        say!("{to}: {}, sha256:{}", size(whole.bytes), whole.sha256);
    }
    Ok(())
}

/// Writes an archive, which is in its place once it is whole.
async fn save(mut body: Incoming, to: &Path) -> anyhow::Result<Checked> {
    let progress = Counter::default();
    let write = async {
        let (mut draft, mut check) = (Draft::of(to)?, SealCheck::default());
        while let Some(frame) = body.frame().await {
            if let Ok(bytes) = frame.context("the server broke off: see its log for the reason")?.into_data() {
                progress.add(bytes.len());
                check.add(&bytes);
                draft.file().write_all(&bytes)?;
            }
        }
        let whole = check.finish()?;
        draft.file().sync_all()?;
        draft.keep()?;
        anyhow::Ok(whole)
    };
    let written = write.await.with_context(|| format!("cannot write {}", to.display()));
    progress.line.clear();
    written
}

/// Passes an archive on to standard output. Whoever reads it sees at its end whether it is whole; so does this.
async fn print(mut body: Incoming) -> anyhow::Result<Checked> {
    let (mut sink, mut check) = (Sink::new(u64::MAX, false), SealCheck::default());
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame.context("the server broke off: see its log for the reason")?.into_data() {
            check.add(&bytes);
            sink.write(Stream::Out, bytes).await?;
        }
    }
    sink.flush().await;
    Ok(check.finish()?)
}

pub async fn import(server: &Server, from: &str, name: Option<&str>, json: bool) -> anyhow::Result<()> {
    let progress = Counter::default();
    let mut query = name.map_or_else(|| "?".to_owned(), |name| format!("?name={}&", encode(name)));
    let body = match from {
        object if object.starts_with("s3://") => {
            query.push_str(&format!("from={}", encode(object)));
            full("")
        }
        "-" => progress.count(received(input::read())),
        from => {
            let file = File::open(from).with_context(|| format!("cannot read {from}"))?;
            if file.metadata()?.is_dir() {
                bail!("{from} is a folder: give the file that 'sloplet snapshot export' wrote");
            }
            progress.count(read(file))
        }
    };
    let answer = server
        .send(
            Method::POST,
            &format!("/snapshots{}", query.trim_end_matches(['?', '&'])),
            "application/octet-stream",
            body,
        )
        .await;
    progress.line.clear();
    let answer = answer?.into_body().collect().await?.to_bytes();
    let made: Value = serde_json::from_slice(&answer).context("the server's answer is not JSON")?;
    if json {
        say!("{}", serde_json::to_string_pretty(&made)?);
    } else {
        say!("{}", made["name"].as_str().or(made["id"].as_str()).unwrap_or_default());
    }
    if let Some(count @ 1..) = made["left_out"].as_u64() {
        complain!(
            "sloplet: note: {count} programs have lost their file capabilities: only a server of root's can give them"
        );
    }
    Ok(())
}
