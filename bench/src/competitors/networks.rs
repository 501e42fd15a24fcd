//! Ways into a network, each in namespaces of the bench's own. Nothing leaves them.
//!
//! `far` is where a server is, at a made-up public address; `near`, where a host would be, has a route there. The others are
//! where a program would be: behind veth and NAT, slirp4netns or pasta.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::program;
use crate::traffic::{self, Measured};

/// Where the server is.
pub const SERVER: &str = "45.33.10.1:9000";

/// The namespaces, and what runs in them.
pub struct Networks {
    prefix: String,
    made: Vec<String>,
    running: Vec<Child>,
}

/// What a client is to measure.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    pub connections: usize,
    pub bytes: u64,
    pub at_once: usize,
}

impl Work {
    /// The words of the client's command line, behind its subcommand.
    pub fn words(self) -> [String; 4] {
        [SERVER.into(), self.connections.to_string(), self.bytes.to_string(), self.at_once.to_string()]
    }
}

impl Networks {
    /// Makes `far` with its server, and `near`.
    pub fn make() -> Result<Self> {
        let prefix = format!("sloplet-bench-{}", std::process::id());
        let mut networks = Self { prefix, made: Vec::new(), running: Vec::new() };
        networks.add("far")?;
        networks.add("near")?;
        networks.join("near", "10.99.7.2", "far", "10.99.7.1")?;
        networks.ip("far", "addr add 45.33.10.1/32 dev lo")?;
        networks.ip("near", "route add default via 10.99.7.1")?;
        let own = std::env::current_exe().context("finding this program")?;
        let mut server = networks.within("far")?;
        server.arg(own).args([traffic::SERVER, SERVER]).stdout(Stdio::piped());
        let mut server = server.spawn().context("starting the server")?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().context("no pipe")?).read_line(&mut line)?;
        networks.running.push(server);
        ensure!(line == "listening\n", "the server does not listen");
        Ok(networks)
    }

    fn name(&self, space: &str) -> String {
        format!("{}-{space}", self.prefix)
    }

    fn add(&mut self, space: &str) -> Result<()> {
        let name = self.name(space);
        program::output(Command::new(program::find("ip")?).args(["netns", "add", &name]))?;
        self.made.push(name);
        self.ip(space, "link set lo up")
    }

    fn ip(&self, space: &str, words: &str) -> Result<()> {
        program::output(Command::new(program::find("ip")?).args(["-n", &self.name(space)]).args(words.split(' ')))?;
        Ok(())
    }

    /// A cable between two.
    fn join(&self, one: &str, one_address: &str, two: &str, two_address: &str) -> Result<()> {
        let (link, peer) = (format!("to-{two}"), format!("to-{one}"));
        let words = format!("link add {link} type veth peer name {peer} netns {}", self.name(two));
        self.ip(one, &words)?;
        for (space, link, address) in [(one, &link, one_address), (two, &peer, two_address)] {
            self.ip(space, &format!("addr add {address}/24 dev {link}"))?;
            self.ip(space, &format!("link set {link} up"))?;
        }
        Ok(())
    }

    /// A program there.
    fn within(&self, space: &str) -> Result<Command> {
        let mut command = Command::new(program::find("nsenter")?);
        command.arg(format!("--net=/run/netns/{}", self.name(space))).stdin(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }

    /// A namespace behind `near`, whose packets it masks.
    pub fn behind_nat(&mut self) -> Result<()> {
        let nft = program::find("nft")?;
        self.add("masked")?;
        self.join("masked", "10.98.7.2", "near", "10.98.7.1")?;
        self.ip("masked", "route add default via 10.98.7.1")?;
        program::output(self.within("near")?.args(["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]))?;
        let rules = "add table ip nat; add chain ip nat out { type nat hook postrouting priority 100; }; \
                     add rule ip nat out oifname \"to-far\" masquerade";
        program::output(self.within("near")?.arg(nft).arg(rules))?;
        Ok(())
    }

    /// A namespace whose packets slirp4netns carries.
    pub fn behind_slirp(&mut self) -> Result<()> {
        let slirp = program::find("slirp4netns")?;
        self.add("slirp")?;
        let path = format!("/run/netns/{}", self.name("slirp"));
        let mut command = self.within("near")?;
        command
            .arg(slirp)
            .args(["--configure", "--mtu=65520", "--netns-type=path", &path, "tap0"])
            .stdout(Stdio::null());
        self.running.push(command.spawn().context("starting slirp4netns")?);
        self.until_routed("slirp")
    }

    /// A namespace whose packets pasta carries: a copy of it in `dir`, for some of its builds for AVX2, which it looks for
    /// beside itself, crash after a while.
    pub fn behind_pasta(&mut self, dir: &Path) -> Result<()> {
        let alone = dir.join("pasta");
        std::fs::copy(program::find("pasta")?, &alone).context("copying pasta")?;
        self.add("pasta")?;
        let path = format!("/run/netns/{}", self.name("pasta"));
        let mut command = self.within("near")?;
        command.arg(alone).args(["--foreground", "--config-net", "--runas=0", "--netns", &path]).stdout(Stdio::null());
        self.running.push(command.spawn().context("starting pasta")?);
        self.until_routed("pasta")
    }

    /// Waits until there is a way to the server.
    fn until_routed(&self, space: &str) -> Result<()> {
        let mut last = Ok(());
        for _ in 0..200 {
            match self.measure(space, Work { connections: 1, bytes: 0, at_once: 0 }) {
                Ok(_) => return Ok(()),
                Err(error) => last = Err(error),
            }
            thread::sleep(Duration::from_millis(25));
        }
        last.context("it makes no way to the server")
    }

    /// What a client there measures.
    pub fn measure(&self, space: &str, work: Work) -> Result<Measured> {
        let own = std::env::current_exe().context("finding this program")?;
        let said = program::output(self.within(space)?.arg(own).arg(traffic::CLIENT).args(work.words()))?;
        serde_json::from_str(&said).context("reading what the client measured")
    }

    /// Moves this thread, and what it starts, to one of them.
    pub fn enter(&self, space: &str) -> Result<()> {
        let file = std::fs::File::open(format!("/run/netns/{}", self.name(space)))?;
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network))?;
        Ok(())
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        for name in &self.made {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}
