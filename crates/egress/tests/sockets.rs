//! The doorway of real sockets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy sees only #[test] functions as tests"
)]

use std::sync::Arc;

use sloplet_egress::{Doorway, Egress, Options, Sockets};
use sloplet_policy::Network;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

#[tokio::test]
async fn connections_and_questions_come_through_sockets() {
    let listeners = ["127.0.0.1:0", "127.0.0.3:0"].map(|text| std::net::TcpListener::bind(text).unwrap());
    let resolver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let at = resolver.local_addr().unwrap();
    let sockets = Sockets::new(listeners.map(Into::into).into(), vec![resolver.into()]).unwrap();
    for address in addresses {
        let _client = TcpStream::connect(address).await.unwrap();
        assert_eq!(sockets.connection().await.unwrap().wanted, address);
    }
    let network = Network { allow: vec!["ok.test".parse().unwrap()], ..Network::default() };
    let egress = Egress::start(Arc::new(sockets), network, Options::default());
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.send_to(b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x02ok\x04test\0\0\x01\0\x01", at).await.unwrap();
    let mut answer = [0; 512];
    let (length, from) = client.recv_from(&mut answer).await.unwrap();
    assert_eq!((from, &answer[length - 4..length - 2]), (at, &[198, 19][..]));
    let mut stream = TcpStream::connect(addresses[0]).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 403 "), "{text}");
    drop(egress);
    let closed = async {
        while TcpStream::connect(addresses[0]).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), closed).await.unwrap();
}
