//! The network, as long as there is no way out: nothing may answer.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use sloplet_policy::addresses::SYNTHETIC_V4;

use crate::calls::await_answer;
use crate::part::{Parts, Tried, contains, nothing, shown};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

/// How long to wait for an answer that is not to come.
const PATIENCE: Duration = Duration::from_millis(700);

/// ECONNREFUSED, ENETUNREACH, EHOSTUNREACH, EADDRNOTAVAIL, EAGAIN, ETIMEDOUT, EINPROGRESS
const REFUSALS: &[i32] = &[111, 101, 113, 99, 11, 110, 115];

pub const DIRECT: Probe = Probe {
    name: "network-direct",
    ids: &[48],
    tries: "TCP to the host's loopback and own address, UDP, interfaces and routes around any proxy",
    why: "an agent that reaches a network can send what it has read to anybody",
    needs: &[],
    kind: Kind::Attempts { parts: direct, refusals: REFUSALS },
};

pub const METADATA: Probe = Probe {
    name: "network-metadata",
    ids: &[49],
    tries: "the cloud's metadata address in every spelling",
    why: "the classic way to a cloud account's keys",
    needs: &[],
    kind: Kind::Attempts { parts: metadata, refusals: REFUSALS },
};

pub const NAMES: Probe = Probe {
    name: "network-names",
    ids: &[57],
    tries: "look up names by the resolver and directly, on ports 53 and 853",
    why: "names that are looked up carry data out, whatever else is closed",
    needs: &[],
    kind: Kind::Attempts { parts: names, refusals: REFUSALS },
};

pub const NEIGHBOURS: Probe = Probe {
    name: "network-neighbours",
    ids: &[58],
    tries: "link-local addresses, multicast, mDNS, a scan of the usual private gateways",
    why: "other sandboxes and internal services are neighbours that trust each other",
    needs: &[],
    kind: Kind::Attempts { parts: neighbours, refusals: REFUSALS },
};

fn direct(settings: &Settings, parts: &mut Parts) {
    let port = settings.port;
    for address in ["127.0.0.1", "2130706433", "0177.0.0.1", "0x7f.1", "0.0.0.0"] {
        let connecting = move |settings: &Settings| connect(settings, address, port);
        if address == "127.0.0.1" {
            parts.add("the host's loopback", connecting)
        } else {
            parts.optional(address, connecting)
        }
    }
    if let Some(own) = settings.address_outside.clone() {
        parts.add("the host's own address", move |settings| connect(settings, &own, port));
    }
    parts.add("UDP to the host's loopback", move |settings| {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(("127.0.0.1", settings.udp_port))?;
        socket.send(b"hello")?;
        // Nobody there is told by an error at the next use.
        let mut buffer = [0u8; 16];
        match await_answer(&socket, Duration::from_millis(100)).and_then(|()| socket.recv(&mut buffer)) {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Err(error.into()),
            _ => Ok("sent, and not refused".into()),
        }
    });
    parts.optional("interfaces but lo", |_| {
        let table = std::fs::read_to_string("/proc/net/dev")?;
        let names = table.lines().skip(2).filter_map(|line| line.split(':').next()).map(str::trim);
        let others: Vec<&str> = names.filter(|name| *name != "lo").collect();
        if others.is_empty() { nothing("only lo") } else { Ok(others.join(", ")) }
    });
    parts.optional("a route out", |settings| {
        if settings.inside && settings.way_out {
            return nothing("it leads to the host's own egress");
        }
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect("192.0.2.1:9")?;
        Ok("there is one".into())
    });
    parts.optional("interfaces in /sys but lo", |_| {
        let names = std::fs::read_dir("/sys/class/net")?.flatten().map(|entry| entry.file_name());
        let others: Vec<String> =
            names.filter(|name| name != "lo").map(|name| name.to_string_lossy().into_owned()).collect();
        if others.is_empty() { nothing("only lo") } else { Ok(others.join(", ")) }
    });
}

fn metadata(settings: &Settings, parts: &mut Parts) {
    // Shows that connecting as such works.
    let port = settings.port;
    parts.add("control: a listener of the host", move |settings| connect(settings, "127.0.0.1", port));
    for address in [
        "169.254.169.254",
        "2852039166",
        "0xA9FEA9FE",
        "0251.0376.0251.0376",
        "169.254.43518",
        "::ffff:169.254.169.254",
        "fd00:ec2::254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "metadata.google.internal",
        "100.100.100.200",
        "168.63.129.16",
    ] {
        parts.optional(address, move |settings| connect(settings, address, 80));
    }
}

fn names(settings: &Settings, parts: &mut Parts) {
    let port = settings.port;
    parts.add("control: a listener of the host", move |settings| connect(settings, "127.0.0.1", port));
    parts.optional("by the resolver", |settings| match ("example.com", 80u16).to_socket_addrs() {
        Ok(mut found) => match found.next().map(|address| address.ip()) {
            None => nothing("no address"),
            // Of the host's own making: nobody outside was asked. What is, is the matter of `egress-questions`.
            Some(IpAddr::V4(own)) if settings.inside && own.octets()[..2] == SYNTHETIC_V4.octets()[..2] => {
                nothing("an address of the way out")
            }
            Some(address) => Ok(address.to_string()),
        },
        Err(error) => nothing(error.to_string()),
    });
    for server in ["1.1.1.1", "8.8.8.8", "127.0.0.53", "169.254.169.253"] {
        parts.optional(format!("{server}, UDP 53"), move |_| query(server));
        parts.optional(format!("{server}, TCP 53"), move |settings| connect(settings, server, 53));
        parts.optional(format!("{server}, TCP 853"), move |settings| connect(settings, server, 853));
    }
}

fn neighbours(settings: &Settings, parts: &mut Parts) {
    let port = settings.port;
    parts.add("control: a listener of the host", move |settings| connect(settings, "127.0.0.1", port));
    for address in ["10.0.0.1", "172.17.0.1", "192.168.0.1", "192.168.1.1", "198.18.0.1"] {
        parts.optional(address, move |settings| connect(settings, address, 80));
    }
    parts.optional("mDNS", |settings| sent(settings, "224.0.0.251:5353"));
    parts.optional("all nodes", |settings| sent(settings, "[ff02::1]:5353"));
    parts.optional("link-local", |settings| connect(settings, "fe80::1", 80));
}

pub fn connect(settings: &Settings, host: &str, port: u16) -> Tried {
    let named = || (host, port).to_socket_addrs().ok()?.next();
    let address = spelled(host).map(|address| SocketAddr::new(address, port)).or_else(named);
    let Some(address) = address else { return nothing("no such address") };
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    // Where there is a way out, the host takes every connection and decides then: what it refuses it cuts, or says so.
    match settings.inside && settings.way_out && !address.ip().is_loopback() {
        true => listen(stream),
        false => Ok(format!("connected to {address}")),
    }
}

/// Whether somebody else than the host's own egress answers.
fn listen(mut stream: TcpStream) -> Tried {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut answer = [0u8; 1024];
    await_answer(&stream, PATIENCE)?;
    match stream.read(&mut answer)? {
        0 => nothing("cut"),
        count if contains(&answer[..count], b"sloplet") => nothing("refused by the way out"),
        count => Ok(format!("answered: {}", shown(&answer[..count]))),
    }
}

/// As C libraries read addresses: also as one number, in octal and in hexadecimal digits.
pub fn spelled(host: &str) -> Option<IpAddr> {
    if let Ok(address) = host.parse() {
        return Some(address);
    }
    let parts: Vec<u64> = host.split('.').map(number).collect::<Option<_>>().unwrap_or_default();
    let address = match parts.as_slice() {
        [whole] => *whole,
        [a, rest] => (a << 24) | rest,
        [a, b, rest] => (a << 24) | (b << 16) | rest,
        [a, b, c, d] => (a << 24) | (b << 16) | (c << 8) | d,
        _ => return None,
    };
    Some(std::net::Ipv4Addr::from(u32::try_from(address).ok()?).into())
}

fn number(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    match lower.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if lower.len() > 1 && lower.starts_with('0') => u64::from_str_radix(&lower, 8).ok(),
        None => lower.parse().ok(),
    }
}

/// Asks for a name by hand.
fn query(server: &str) -> Tried {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    let question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01";
    socket.send_to(question, (server, 53))?;
    let mut answer = [0u8; 512];
    await_answer(&socket, PATIENCE)?;
    let (count, from) = socket.recv_from(&mut answer)?;
    Ok(format!("{count} bytes from {from}"))
}

fn sent(settings: &Settings, to: &str) -> Tried {
    let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any)?;
    socket.send_to(b"hello", to)?;
    if settings.inside && settings.way_out {
        // Everything can be sent there; whether it arrives anywhere shows by an answer.
        await_answer(&socket, PATIENCE)?;
        socket.recv(&mut [0u8; 16])?;
    }
    Ok("sent".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_c_libraries_do() {
        for text in ["169.254.169.254", "2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "169.254.43518"] {
            assert_eq!(spelled(text).unwrap().to_string(), "169.254.169.254", "{text}");
        }
    }
}
