//! Clients that want to do harm: thousands of broken handshakes and messages, crowds, and silence.
//!
//! A panic while a client is served would end a server that was built for release. The server of these tests survives one, so what
//! it says is searched for panics.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;

use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;

use crate::client::{Served, complained, until};
use crate::common::Host;
use crate::crafted::{Crafted, offer, public, text};

/// Connections. For a longer search: `SLOPLET_TEST_HOSTILE=100`, so many times as many.
const CONNECTIONS: u32 = 2400;

/// Clients at once: fewer than the strangers that a server bears.
const WORKERS: u32 = 48;

/// What the server calls the first channel of a connection. It is known, so nothing has to be read.
const CHANNEL: u32 = 2;

/// Numbers by chance, the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below.max(1)
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.roll(most)).map(|_| self.roll(256) as u8).collect()
    }

    /// Cut, lengthened, or changed in a few places; now and then left alone.
    fn spoil(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..self.roll(4) {
            let at = self.roll(bytes.len());
            match self.roll(6) {
                0 => bytes.truncate(at),
                1 => bytes.extend(self.bytes(64)),
                // Lengths are four bytes; the great ones are what is not expected.
                2 if at + 4 <= bytes.len() => bytes[at..at + 4].copy_from_slice(&[0xff; 4]),
                3 if at + 4 <= bytes.len() => bytes[at..at + 4].copy_from_slice(&(self.roll(300) as u32).to_be_bytes()),
                _ if at < bytes.len() => bytes[at] = self.roll(256) as u8,
                _ => {}
            }
        }
        bytes
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len())].clone()
    }
}

fn message(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// What a stranger could say once keys are agreed upon.
fn strangers_messages(key: &[u8]) -> Vec<Vec<u8>> {
    let login =
        |method: &str, rest: &[u8]| message(&[&[50], &text("my"), &text("ssh-connection"), &text(method), rest]);
    let (bad_key, signature) = (text([0xff; 51]), text([text("ssh-ed25519"), text([1; 64])].concat()));
    let rsa = [text("ssh-rsa"), text([1, 0, 1]), text([0x7f; 257])].concat();
    let ecdsa = [text("ecdsa-sha2-nistp256"), text("nistp256"), text([4; 65])].concat();
    let certificate = [text("ssh-ed25519-cert-v01@openssh.com"), text([1; 32]), text([2; 32]), vec![0; 90]].concat();
    let mut all = vec![
        message(&[&[5], &text("ssh-userauth")]),
        message(&[&[5], &text("ssh-connection")]),
        login("none", &[]),
        login("password", &[&[0][..], &text("secret")].concat()),
        login("password", &[&[1][..], &text("old"), &text("new")].concat()),
        login("keyboard-interactive", &[text(""), text("pam")].concat()),
        login("hostbased", &[text("ssh-ed25519"), text(key), text("host"), text("user"), text([0; 80])].concat()),
        message(&[&[61], &[0, 0, 0, 1], &text("answer")]),
        offer(),
        message(&[&[30], &text([9; 32])]),
        message(&[&[21]]),
        message(&[&[7], &[0, 0, 0, 1], &text("server-sig-algs"), &text("x")]),
        message(&[&[1], &[0, 0, 0, 2], &text("bye"), &text("")]),
        message(&[&[2], &text([0; 100])]),
        message(&[&[3], &[0, 0, 0, 9]]),
        message(&[&[4], &[1], &text("debug"), &text("")]),
        message(&[]),
    ];
    let (ed25519, ecdsa_name) = ("ssh-ed25519", "ecdsa-sha2-nistp256");
    let offers: [(&str, &[u8]); 6] = [
        (ed25519, key),
        (ed25519, &bad_key),
        ("rsa-sha2-256", &rsa),
        ("ssh-rsa", &rsa),
        (ecdsa_name, &ecdsa),
        ("ssh-ed25519-cert-v01@openssh.com", &certificate),
    ];
    for (name, blob) in offers {
        all.push(login("publickey", &[&[0][..], &text(name), &text(blob)].concat()));
        all.push(login("publickey", &[&[1][..], &text(name), &text(blob), &signature].concat()));
    }
    all.extend(members_messages());
    all
}

/// What those who are let in could say.
fn members_messages() -> Vec<Vec<u8>> {
    let number = |number: u32| number.to_be_bytes();
    let open =
        |kind: &str, rest: &[u8]| message(&[&[90], &text(kind), &number(0), &number(1 << 20), &number(1 << 15), rest]);
    let ask = |kind: &str, rest: &[u8]| message(&[&[98], &number(CHANNEL), &text(kind), &[1], rest]);
    let global = |kind: &str, rest: &[u8]| message(&[&[80], &text(kind), &[1], rest]);
    let size = [number(80), number(24), number(0), number(0)].concat();
    let port = [text("127.0.0.1"), number(9).to_vec()].concat();
    vec![
        open("session", &[]),
        open("direct-tcpip", &[port.clone(), port.clone()].concat()),
        open("direct-streamlocal@openssh.com", &[text("/tmp/none.sock"), text(""), number(0).to_vec()].concat()),
        open("forwarded-tcpip", &[port.clone(), port.clone()].concat()),
        open("x11", &port),
        open("nonsense", &[]),
        ask("pty-req", &[text("xterm"), size.clone(), text([53, 0, 0, 0, 1, 0])].concat()),
        ask("env", &[text("LC_ALL"), text("C")].concat()),
        ask("exec", &text("true")),
        ask("shell", &[]),
        ask("subsystem", &text("sftp")),
        ask("window-change", &size),
        ask("signal", &text("TERM")),
        ask("x11-req", &[&[0][..], &text("MIT"), &text("00"), &number(0)].concat()),
        ask("auth-agent-req@openssh.com", &[]),
        ask("eow@openssh.com", &[]),
        global("tcpip-forward", &port),
        global("cancel-tcpip-forward", &port),
        global("streamlocal-forward@openssh.com", &text("/tmp/hostile.sock")),
        global("cancel-streamlocal-forward@openssh.com", &text("/tmp/hostile.sock")),
        global("keepalive@openssh.com", &[]),
        global("no-more-sessions@openssh.com", &[]),
        message(&[&[81]]),
        message(&[&[82]]),
        message(&[&[91], &number(CHANNEL), &number(0), &number(1), &number(1)]),
        message(&[&[92], &number(CHANNEL), &number(1), &text("no"), &text("")]),
        message(&[&[93], &number(CHANNEL), &number(u32::MAX)]),
        message(&[&[94], &number(CHANNEL), &text([0xff; 300])]),
        message(&[&[95], &number(CHANNEL), &number(1), &text("error")]),
        message(&[&[96], &number(CHANNEL)]),
        message(&[&[97], &number(CHANNEL)]),
        message(&[&[99], &number(CHANNEL)]),
        message(&[&[100], &number(CHANNEL)]),
    ]
}

/// One connection that goes wrong somewhere.
fn harm(served: &Served, key: &Ed25519KeyPair, seed: u32) {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (u64::from(seed) << 20 | 1));
    for _ in 0..4 {
        dice.roll(2);
    }
    // Each from an address that has not failed yet.
    let from = Ipv4Addr::from(0x7f01_0000 + seed);
    let Ok(mut client) = Crafted::connect(&served.address, from) else { return };
    // What goes wrong on the way is what is wanted; whether the server is well is asked afterwards.
    let _ = match seed % 16 {
        0..=2 => client.stream.write_all(&dice.bytes(2000)),
        3..=5 => {
            let line = dice.spoil(b"SSH-2.0-crafted\r\n".to_vec());
            client.stream.write_all(&[line, dice.bytes(500)].concat())
        }
        6..=12 => client.greet().and_then(|_| {
            let spoiled = dice.spoil(offer());
            client.send(&spoiled)?;
            let first = dice.spoil([&[30][..], &text([9; 32])].concat());
            client.send(&first)?;
            client.stream.write_all(&dice.bytes(100))
        }),
        13 | 14 => client.agree().and_then(|()| {
            let messages = strangers_messages(&public(key));
            if dice.roll(4) > 0 {
                client.ask_for_login()?;
            }
            (0..1 + dice.roll(12)).try_for_each(|_| {
                let spoiled = dice.pick(&messages);
                let spoiled = dice.spoil(spoiled);
                client.send(&spoiled)
            })
        }),
        _ => client.agree().and_then(|()| {
            client.log_in("my", key)?;
            let messages = members_messages();
            client.send(&messages[0])?;
            (0..1 + dice.roll(20)).try_for_each(|_| {
                let spoiled = dice.pick(&messages);
                let spoiled = dice.spoil(spoiled);
                client.send(&spoiled)
            })
        }),
    };
    client.leave();
}

#[test]
fn thousands_of_broken_conversations_leave_the_server_well() {
    let host = Host::shared();
    let served = Served::start(&host.root(), &["--ssh-remote-forward"]);
    served.sandbox("my");
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let key = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
    let line = served.path("crafted.pub");
    fs::write(&line, format!("ssh-ed25519 {} crafted\n", base64(&public(&key)))).unwrap();
    served.server.command(&["key", "ssh", "add", line.to_str().unwrap()]).expect_code(0);

    // The client can speak, if it wants to: otherwise nothing below would be heard.
    let mut client = Crafted::connect(&served.address, Ipv4Addr::LOCALHOST).unwrap();
    client.agree().unwrap();
    client.log_in("my", &key).unwrap();
    let messages = members_messages();
    client.send(&messages[0]).unwrap();
    let exec = [&[98][..], &CHANNEL.to_be_bytes(), &text("exec"), &[1], &text("touch crafted")].concat();
    client.send(&exec).unwrap();
    until("what was asked", || served.ssh("my", &["test -e crafted"]).status().unwrap().success().then_some(()));
    client.leave();

    let more = std::env::var("SLOPLET_TEST_HOSTILE").map_or(1, |times| times.parse().unwrap());
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (served, key) = (&served, &key);
            scope.spawn(move || {
                (worker..CONNECTIONS * more).step_by(WORKERS as usize).for_each(|seed| harm(served, key, seed))
            });
        }
    });
    assert_eq!(served.say("my", "echo well"), "well\n");
    until("an end of all of them", || {
        (served.say("my", "ls /tmp/hostile.sock 2>/dev/null || echo none") == "none\n").then_some(())
    });
    let said = served.server.end_and_tell();
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_crowd_of_strangers_does_not_grow_and_who_fails_too_often_is_not_listened_to() {
    let host = Host::shared();
    let served = Served::start(&host.root(), &[]);
    served.sandbox("my");
    served.new_key("unknown");
    // So many may be strangers at once; one more is not greeted, and place is made when one leaves.
    let greeted = |from: u8| {
        let mut client = Crafted::connect(&served.address, Ipv4Addr::new(127, 0, 2, from)).unwrap();
        let mut first = [0];
        client.stream.read_exact(&mut first).ok().map(|()| client)
    };
    let mut crowd: Vec<Crafted> = (0..64).map(|number| greeted(number).expect("a place")).collect();
    assert!(greeted(200).is_none());
    assert!(complained(served.ssh("my", &["true"]), 255).contains("kex_exchange_identification"));
    crowd.truncate(60);
    until("a place", || greeted(201));
    assert_eq!(served.say("my", "echo in"), "in\n");
    drop(crowd);

    // Failures are counted for an address, and others do not wait for it.
    let fail = || {
        let mut command = served.ssh_as("unknown", "my", &["true"]);
        command.output().unwrap().status.code()
    };
    thread::scope(|scope| {
        (0..6).for_each(|_| drop(scope.spawn(move || (0..5).for_each(|_| assert_eq!(fail(), Some(255))))));
    });
    until("the end of patience", || {
        // One that found no place did not count.
        fail();
        let mut stream = TcpStream::connect(&served.address).unwrap();
        let _ = stream.write_all(b"SSH-2.0-x\r\n");
        (stream.read(&mut [0]).unwrap_or(0) == 0).then_some(())
    });
    let mut elsewhere = served.program("ssh", "id");
    elsewhere.args(["-b", "127.0.3.1", "my@sandbox", "echo from elsewhere"]);
    assert_eq!(crate::client::said(elsewhere, 0), "from elsewhere\n");
    let audit = served.server.command(&["audit"]).expect_code(0).out();
    assert!(audit.contains("SSH login refused with 503") && audit.contains("SSH login refused with 429"), "{audit}");
    served.server.end();
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for piece in bytes.chunks(3) {
        let bits = piece.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - piece.len()));
        let letters = (0..4).map(|place| LETTERS[(bits >> (18 - 6 * place)) as usize & 63] as char);
        out.extend(letters.take(piece.len() + 1));
        out.extend(std::iter::repeat_n('=', 3 - piece.len()));
    }
    out
}
