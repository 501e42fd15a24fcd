//! `sloplet rm`

use super::ls::sandboxes;
use crate::api::{Refused, Server, encode};
use crate::terminal;

pub async fn run(server: &Server, names: &[String], all: bool) -> anyhow::Result<u8> {
    if all {
        for sandbox in sandboxes(server, "limit=1000").await? {
            let id = sandbox["id"].as_str().unwrap_or_default();
            match server.delete(&format!("/sandboxes/{}", encode(id))).await {
                // Its time was over in the meantime.
                Err(error) if error.downcast_ref::<Refused>().is_some_and(|refused| refused.status == 404) => {}
                done => done?,
            }
        }
        return Ok(0);
    }
    let mut code = 0;
    for name in names {
        // The others are to go all the same.
        if let Err(error) = server.delete(&format!("/sandboxes/{}", encode(name))).await {
            complain!("sloplet: {}", terminal::harmless(&format!("{error:#}")));
            code = crate::FAILURE;
        }
    }
    Ok(code)
}
