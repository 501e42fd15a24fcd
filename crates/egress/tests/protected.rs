//! Protected hosts are out of reach by their addresses, too.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::net::SocketAddr;

use common::Inside;
use sloplet_policy::Network;
use tokio::net::TcpListener;

#[tokio::test]
async fn a_protected_host_is_not_reached_by_address_nor_by_another_name() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = server.local_addr().unwrap();
    let port = address.port();
    let allow = [format!("127.0.0.1:{port}"), format!("alias.example:{port}")];
    let network = Network { allow: allow.iter().map(|rule| rule.parse().unwrap()).collect(), ..Network::default() };
    // Without the protection, the address can be reached.
    let inside = Inside::new(network.clone()).await;
    let _client = inside.connect(address).await;
    server.accept().await.unwrap();
    for by_name in [false, true] {
        let inside = Inside::with(network.clone(), |options| options.protected = vec!["db.internal".into()]).await;
        inside.knows("db.internal", &["127.0.0.1"]);
        inside.knows("alias.example", &["127.0.0.1"]);
        let _client = match by_name {
            true => inside.connect_name("alias.example", port).await,
            false => inside.connect(address).await,
        };
        let reason = inside.denial().await;
        assert!(reason.contains("protected host"), "{reason}");
    }
    // One that has no address keeps nobody from anything.
    let inside = Inside::with(network, |options| options.protected = vec!["gone.internal".into()]).await;
    let _client = inside.connect(address).await;
    server.accept().await.unwrap();
}
