//! `sloplet pause`, `sloplet stop` and `sloplet resume`

use hyper::Method;

use crate::api::{Server, encode};
use crate::progress::ProgressLine;

pub async fn run(server: &Server, what: &str, names: &[String]) -> anyhow::Result<u8> {
    for name in names {
        let _line = ProgressLine::of(&format!("{what} {name}"));
        server.ask(Method::POST, &format!("/sandboxes/{}/{what}", encode(name)), None).await?;
    }
    if what == "stop" {
        complain!("sloplet: stopped; 'sloplet ls --all' shows it, 'sloplet resume' starts it afresh");
    }
    Ok(0)
}
