//! A client of SSH that says whatever it is told, in packets that are in order: also after keys are agreed upon, where
//! only what is encrypted well reaches those who parse it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use ring::aead::chacha20_poly1305_openssh::{SealingKey, TAG_LEN};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::digest::{Context, SHA256};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustix::net::{AddressFamily, SocketType};

const VERSION: &[u8] = b"SSH-2.0-crafted";

/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A string of the protocol.
pub fn text(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

/// A number of any length.
fn number(bytes: &[u8]) -> Vec<u8> {
    let bytes = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
    let sign: &[u8] = if bytes.first().is_some_and(|first| *first > 127) { &[0] } else { &[] };
    text([sign, bytes].concat())
}

fn sha256(parts: &[&[u8]]) -> Vec<u8> {
    let mut context = Context::new(&SHA256);
    parts.iter().for_each(|part| context.update(part));
    context.finish().as_ref().to_vec()
}

/// What it offers.
pub fn offer() -> Vec<u8> {
    let lists = [
        "curve25519-sha256",
        "ssh-ed25519",
        "chacha20-poly1305@openssh.com",
        "chacha20-poly1305@openssh.com",
        "hmac-sha2-256",
        "hmac-sha2-256",
        "none",
        "none",
        "",
        "",
    ];
    let lists: Vec<u8> = lists.iter().flat_map(text).collect();
    [&[20][..], &[7; 16], &lists, &[0; 5]].concat()
}

/// A connection.
pub struct Crafted {
    pub stream: TcpStream,
    sent: u32,
    sealing: Option<SealingKey>,
    session: Vec<u8>,
}

impl Crafted {
    /// Connects, as if from another machine: who fails too often is counted by address.
    pub fn connect(address: &str, from: Ipv4Addr) -> io::Result<Self> {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        rustix::net::bind(&socket, &SocketAddr::from((from, 0)))?;
        rustix::net::connect(&socket, &address.parse::<SocketAddr>().unwrap())?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, sent: 0, sealing: None, session: Vec::new() })
    }

    /// A packet in order, with this in it.
    pub fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        // Behind a cipher with its own length, that does not count for the blocks.
        let counted = if self.sealing.is_some() { 0 } else { 4 };
        let padding = 8 - (counted + 1 + payload.len()) % 8 + 8;
        let length = (1 + payload.len() + padding) as u32;
        let mut packet = [&length.to_be_bytes()[..], &[padding as u8], payload, &vec![0; padding]].concat();
        if let Some(key) = &mut self.sealing {
            let mut tag = [0; TAG_LEN];
            key.seal_in_place(self.sent, &mut packet, &mut tag);
            packet.extend_from_slice(&tag);
        }
        self.sent += 1;
        self.stream.write_all(&packet)
    }

    /// Says who it is; what the server says it is.
    pub fn greet(&mut self) -> io::Result<Vec<u8>> {
        self.stream.write_all(&[VERSION, b"\r\n"].concat())?;
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        Ok(line.trim_ascii_end().to_vec())
    }

    /// What is in the next packet, while they are in the clear.
    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes(head[..4].try_into().unwrap()) as usize;
        let mut rest = vec![0; length - 1];
        self.stream.read_exact(&mut rest)?;
        rest.truncate(rest.len() - usize::from(head[4]));
        Ok(rest)
    }

    /// Agrees upon keys; from then on, all that is sent is encrypted.
    pub fn agree(&mut self) -> io::Result<()> {
        let theirs = self.greet()?;
        let (offer, random) = (offer(), SystemRandom::new());
        self.send(&offer)?;
        let offered = self.receive()?;
        let private = EphemeralPrivateKey::generate(&X25519, &random).unwrap();
        let public = private.compute_public_key().unwrap();
        self.send(&[&[30][..], &text(&public)].concat())?;
        let reply = self.receive()?;
        assert_eq!(reply[0], 31);
        let mut rest = &reply[1..];
        let mut next = || {
            let (length, more) = rest.split_first_chunk().unwrap();
            let (field, more) = more.split_at(u32::from_be_bytes(*length) as usize);
            rest = more;
            field.to_vec()
        };
        let (host_key, point) = (next(), next());
        let shared = agree_ephemeral(private, &UnparsedPublicKey::new(&X25519, &point), <[u8]>::to_vec).unwrap();
        let shared = number(&shared);
        let transcript = [VERSION, &theirs, &offer, &offered, &host_key, public.as_ref(), &point].map(text).concat();
        self.session = sha256(&[&transcript, &shared]);
        let first = sha256(&[&shared, &self.session, b"C", &self.session]);
        let second = sha256(&[&shared, &self.session, &first]);
        assert_eq!(self.receive()?, [21]);
        self.send(&[21])?;
        self.sealing = Some(SealingKey::new(&[first, second].concat().try_into().unwrap()));
        Ok(())
    }

    /// Asks for the service of logins.
    pub fn ask_for_login(&mut self) -> io::Result<()> {
        self.send(&[&[5][..], &text("ssh-userauth")].concat())
    }

    /// Logs in. The answer is not waited for: what follows is read after it.
    pub fn log_in(&mut self, name: &str, key: &Ed25519KeyPair) -> io::Result<()> {
        self.ask_for_login()?;
        let request = [
            &[50][..],
            &text(name),
            &text("ssh-connection"),
            &text("publickey"),
            &[1],
            &text("ssh-ed25519"),
            &text(public(key)),
        ]
        .concat();
        let signed = [text(&self.session), request.clone()].concat();
        let signature = [text("ssh-ed25519"), text(key.sign(&signed))].concat();
        self.send(&[request, text(signature)].concat())
    }

    /// Sends no more, and reads to the end: how many bytes came.
    pub fn leave(mut self) -> usize {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
        rest.len()
    }
}

/// A public key as it is in a line of a file.
pub fn public(key: &Ed25519KeyPair) -> Vec<u8> {
    [text("ssh-ed25519"), text(key.public_key())].concat()
}
