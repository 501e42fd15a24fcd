//! What becomes of packets inside: nf_tables rules, encoded by hand, so that no program has to be started for them.
//!
//! Every packet comes in over loopback. In the words of `nft`, for IPv4 (and the same for IPv6):
//!
//! ```text
//! chain way { type filter hook prerouting priority mangle; policy drop;
//!   ip daddr != 127.0.0.0/8 meta l4proto tcp tproxy to <resolver>:1 accept
//!   ip daddr != 127.0.0.0/8 tcp flags & (syn | ack) == syn reject with tcp reset
//!   tcp dport 1 reject with tcp reset
//!   meta l4proto tcp accept
//!   ip saddr <resolver> udp sport 1 udp sport set 53 accept
//!   ip daddr <resolver> udp dport 53 udp dport set 1 accept
//!   ip daddr 127.0.0.0/8 accept
//!   icmp type destination-unreachable accept
//!   reject with icmp port-unreachable
//! }
//! ```
//!
//! - TPROXY gives a connection to the listener whatever its address and port are, and however programs inside are bound;
//!   a packet of a connection that exists goes where it belongs, and those of programs inside do so by the fourth rule.
//! - The second rule is for when the listener is gone: nobody inside may stand in for it.
//! - The third rule is for loopback: the listener has all addresses, and must not hear what is meant for the sandbox itself.
//! - No connections are tracked. Questions to the resolver change their port on the way, so that programs inside can have
//!   port 53; only the resolver's own answers pass.

use std::io;
use std::net::IpAddr;

use rustix::net::netlink;

use sloplet_policy::addresses::OUTLET_PORT;

use super::netlink::{APPEND, Attributes, Batch, CREATE};

/// Message types of nfnetlink: a batch's begin and end, and those of its subsystem for tables.
const BEGIN: u16 = 16;
const END: u16 = 17;
const TABLES: u16 = 10;
const NEW_TABLE: u16 = TABLES << 8;
const NEW_CHAIN: u16 = TABLES << 8 | 3;
const NEW_RULE: u16 = TABLES << 8 | 6;

const TABLE: &str = "sloplet";
const CHAIN: &str = "way";

/// `NF_INET_PRE_ROUTING`, and where mangling usually happens.
const PREROUTING: u32 = 0;
const MANGLE: i32 = -150;

/// Verdicts.
const DROP: u32 = 0;
const ACCEPT: u32 = 1;

/// Registers: the verdict's, and two for data.
const VERDICT: u32 = 0;
const FIRST: u32 = 1;
const SECOND: u32 = 2;

/// Headers that payload is counted from.
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;

/// Comparisons.
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;

const TCP: u8 = 6;
const UDP: u8 = 17;
const DNS: u16 = 53;

/// Where the ports are in the headers of TCP and UDP, the flags in that of TCP, and the checksum in that of UDP.
const SOURCE_PORT: u32 = 0;
const TARGET_PORT: u32 = 2;
const TCP_FLAGS: u32 = 13;
const UDP_CHECKSUM: u32 = 6;

/// SYN, and SYN with ACK.
const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;

/// What differs between the families.
struct Family {
    number: u8,
    resolver: Vec<u8>,
    /// Where the addresses are in the header.
    source: u32,
    target: u32,
    /// How a loopback address begins.
    loopback: &'static [u8],
    /// Protocol of control messages, and in it: a target cannot be reached, and its port.
    control: u8,
    unreachable: u8,
    port_unreachable: u8,
}

impl Family {
    fn of(resolver: IpAddr) -> Self {
        match resolver {
            IpAddr::V4(address) => Self {
                number: 2,
                resolver: address.octets().to_vec(),
                source: 12,
                target: 16,
                loopback: &[127],
                control: 1,
                unreachable: 3,
                port_unreachable: 3,
            },
            IpAddr::V6(address) => Self {
                number: 10,
                resolver: address.octets().to_vec(),
                source: 8,
                target: 24,
                loopback: &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
                control: 58,
                unreachable: 1,
                port_unreachable: 4,
            },
        }
    }
}

/// Sets the rules for the families of these resolvers in this process's network namespace.
pub fn send(resolvers: &[IpAddr]) -> io::Result<()> {
    batch(resolvers).send(Some(netlink::NETFILTER))
}

fn batch(resolvers: &[IpAddr]) -> Batch {
    let mut batch = Batch::default();
    // The header of nfnetlink: family, version, and here the subsystem.
    batch.message(BEGIN, 0, &[0, 0, 0, TABLES as u8], |_| {});
    for resolver in resolvers {
        add_table(&mut batch, &Family::of(*resolver));
    }
    batch.ask();
    batch.message(END, 0, &[0, 0, 0, TABLES as u8], |_| {});
    batch
}

fn add_table(batch: &mut Batch, family: &Family) {
    let header = [family.number, 0, 0, 0];
    batch.message(NEW_TABLE, CREATE, &header, |table| {
        table.text(1, TABLE);
    });
    batch.message(NEW_CHAIN, CREATE, &header, |chain| {
        chain.text(1, TABLE).text(3, CHAIN).text(7, "filter").number(5, DROP).nest(4, |hook| {
            hook.number(1, PREROUTING).add(2, &MANGLE.to_be_bytes());
        });
    });
    let rule = |batch: &mut Batch, expressions: &dyn Fn(&mut Rule<'_, '_>)| {
        batch.message(NEW_RULE, APPEND, &header, |rule| {
            rule.text(1, TABLE).text(2, CHAIN).nest(4, |list| expressions(&mut Rule(list)));
        });
    };
    rule(batch, &|rule| {
        rule.protocol(TCP).payload(NETWORK, family.target, NOT_EQUAL, family.loopback);
        rule.tproxy(family, OUTLET_PORT).verdict(ACCEPT);
    });
    rule(batch, &|rule| {
        rule.protocol(TCP).payload(NETWORK, family.target, NOT_EQUAL, family.loopback);
        rule.masked(TRANSPORT, TCP_FLAGS, SYN_ACK, SYN).reject_with_reset();
    });
    rule(batch, &|rule| {
        rule.protocol(TCP).payload(TRANSPORT, TARGET_PORT, EQUAL, &OUTLET_PORT.to_be_bytes()).reject_with_reset();
    });
    rule(batch, &|rule| {
        rule.protocol(TCP).verdict(ACCEPT);
    });
    rule(batch, &|rule| {
        rule.protocol(UDP).payload(NETWORK, family.source, EQUAL, &family.resolver);
        rule.payload(TRANSPORT, SOURCE_PORT, EQUAL, &OUTLET_PORT.to_be_bytes());
        rule.change_port(SOURCE_PORT, DNS).verdict(ACCEPT);
    });
    rule(batch, &|rule| {
        rule.protocol(UDP).payload(NETWORK, family.target, EQUAL, &family.resolver);
        rule.payload(TRANSPORT, TARGET_PORT, EQUAL, &DNS.to_be_bytes());
        rule.change_port(TARGET_PORT, OUTLET_PORT).verdict(ACCEPT);
    });
    rule(batch, &|rule| {
        rule.payload(NETWORK, family.target, EQUAL, family.loopback).verdict(ACCEPT);
    });
    rule(batch, &|rule| {
        rule.protocol(family.control).payload(TRANSPORT, 0, EQUAL, &[family.unreachable]).verdict(ACCEPT);
    });
    rule(batch, &|rule| {
        rule.reject_with_control(family.port_unreachable);
    });
}

/// The expressions of one rule.
struct Rule<'a, 'b>(&'a mut Attributes<'b>);

impl Rule<'_, '_> {
    fn expression(&mut self, name: &str, fill: impl FnOnce(&mut Attributes<'_>)) -> &mut Self {
        self.0.nest(1, |expression| {
            expression.text(1, name).nest(2, fill);
        });
        self
    }

    fn compare(&mut self, how: u32, value: &[u8]) -> &mut Self {
        self.expression("cmp", |it| {
            it.number(1, FIRST).number(2, how).nest(3, |data| {
                data.add(1, value);
            });
        })
    }

    /// Goes on only for this transport protocol.
    fn protocol(&mut self, protocol: u8) -> &mut Self {
        const L4PROTO: u32 = 16;
        self.expression("meta", |it| {
            it.number(2, L4PROTO).number(1, FIRST);
        });
        self.compare(EQUAL, &[protocol])
    }

    fn load(&mut self, header: u32, at: u32, length: usize) -> &mut Self {
        self.expression("payload", |it| {
            it.number(1, FIRST).number(2, header).number(3, at).number(4, length as u32);
        })
    }

    /// Goes on only if what is there compares so.
    fn payload(&mut self, header: u32, at: u32, how: u32, value: &[u8]) -> &mut Self {
        self.load(header, at, value.len()).compare(how, value)
    }

    /// Goes on only if these bits of a byte are so.
    fn masked(&mut self, header: u32, at: u32, mask: u8, value: u8) -> &mut Self {
        self.load(header, at, 1).expression("bitwise", |it| {
            it.number(1, FIRST).number(2, FIRST).number(3, 1).nest(4, |data| {
                data.add(1, &[mask]);
            });
            it.nest(5, |data| {
                data.add(1, &[0]);
            });
        });
        self.compare(EQUAL, &[value])
    }

    fn immediate(&mut self, register: u32, value: &[u8]) -> &mut Self {
        self.expression("immediate", |it| {
            it.number(1, register).nest(2, |data| {
                data.add(1, value);
            });
        })
    }

    /// Writes a port of UDP.
    fn change_port(&mut self, at: u32, port: u16) -> &mut Self {
        const INTERNET_CHECKSUM: u32 = 1;
        self.immediate(FIRST, &port.to_be_bytes()).expression("payload", |it| {
            it.number(5, FIRST).number(2, TRANSPORT).number(3, at).number(4, 2);
            it.number(6, INTERNET_CHECKSUM).number(7, UDP_CHECKSUM);
        })
    }

    /// Gives it to a socket; goes on only if there is one, and it is transparent.
    fn tproxy(&mut self, family: &Family, port: u16) -> &mut Self {
        self.immediate(FIRST, &family.resolver).immediate(SECOND, &port.to_be_bytes());
        self.expression("tproxy", |it| {
            it.number(1, family.number.into()).number(2, FIRST).number(3, SECOND);
        })
    }

    fn verdict(&mut self, code: u32) -> &mut Self {
        self.expression("immediate", |it| {
            it.number(1, VERDICT).nest(2, |data| {
                data.nest(2, |verdict| {
                    verdict.number(1, code);
                });
            });
        })
    }

    fn reject_with_reset(&mut self) -> &mut Self {
        const RESET: u32 = 1;
        self.expression("reject", |it| {
            it.number(1, RESET);
        })
    }

    fn reject_with_control(&mut self, code: u8) -> &mut Self {
        const CONTROL: u32 = 0;
        self.expression("reject", |it| {
            it.number(1, CONTROL).add(2, &[code]);
        })
    }
}
