//! A server that is found by the names of a domain, over TLS, as E2B's packages find E2B's own.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::clients::{node_test, pytest};
use crate::common::{Host, Server, built, fast};

const DOMAIN: &str = "sandbox.localtest";

/// An address of this machine that no other test uses, with a name server for all names of the domain on it. Everything
/// else has no address there: nobody looks for it elsewhere.
fn address() -> Ipv4Addr {
    let free = (1..=255).find_map(|last| {
        let address = Ipv4Addr::new(127, 53, std::process::id() as u8, last);
        Some((address, UdpSocket::bind((address, 53)).ok()?))
    });
    let (address, socket) = free.expect("a free address for a name server");
    thread::spawn(move || {
        let mut question = [0u8; 512];
        while let Ok((length, from)) = socket.recv_from(&mut question) {
            if let Some(answer) = answer(&question[..length], address) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    address
}

/// The answer to one question of the domain name system.
fn answer(question: &[u8], address: Ipv4Addr) -> Option<Vec<u8>> {
    let mut end = 12;
    let mut name = String::new();
    while let length @ 1.. = usize::from(*question.get(end)?) {
        name.push_str(std::str::from_utf8(question.get(end + 1..end + 1 + length)?).ok()?);
        name.push('.');
        end += 1 + length;
    }
    let kind = question.get(end + 1..end + 3)?;
    let known = name.to_ascii_lowercase().ends_with(&format!("{DOMAIN}."));
    let found = known && kind == [0, 1];
    // A response, authoritative, without an error or with "no such name".
    let status = if known { 0 } else { 3 };
    let mut reply = [&question[..2], &[0x85, 0x80 | status, 0, 1, 0, u8::from(found), 0, 0, 0, 0]].concat();
    reply.extend_from_slice(question.get(12..end + 5)?);
    if found {
        reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        reply.extend_from_slice(&address.octets());
    }
    Some(reply)
}

/// Files of a certificate authority and of a server that it vouches for.
struct Certificates {
    authority: PathBuf,
    chain: PathBuf,
    key: PathBuf,
}

impl Certificates {
    fn make(folder: &Path, address: Ipv4Addr) -> Self {
        let script = r#"
            set -eu
            cd "$1"
            openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test \
                -addext basicConstraints=critical,CA:TRUE -keyout authority.key -out authority.pem
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$2" -keyout key.pem -out request
            printf 'subjectAltName=DNS:%s,DNS:*.%s,IP:%s\nextendedKeyUsage=serverAuth\n' "$2" "$2" "$3" > extensions
            openssl x509 -req -in request -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 \
                -extfile extensions -out chain.pem"#;
        let made = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(folder)
            .args([DOMAIN, &address.to_string()])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let at = |name: &str| folder.join(name);
        Self { authority: at("authority.pem"), chain: at("chain.pem"), key: at("key.pem") }
    }
}

/// A server for the domain, and what its clients must know.
struct Served {
    server: Server,
    certificates: Certificates,
    address: Ipv4Addr,
    folder: PathBuf,
}

impl Served {
    fn start(host: &Host) -> Self {
        let sloplet = host.root();
        let (address, folder) = (address(), sloplet.folder("tls"));
        let certificates = Certificates::make(&folder, address);
        let [chain, key] = [&certificates.chain, &certificates.key].map(|path| path.to_str().unwrap());
        let options =
            ["--destroy-on-exit", "--domain", DOMAIN, "--tls-cert", chain, "--tls-key", key, "--public-previews"];
        let server = Server::start_at(&sloplet, &format!("{address}:443"), &options);
        Self { server, certificates, address, folder }
    }

    /// Runs a client's tests with the variables that E2B's users set, where the domain's names lead to this server.
    fn run(&self, client: Command) {
        let resolver = self.folder.join("resolv.conf");
        fs::write(&resolver, format!("nameserver {}\noptions timeout:2\n", self.address)).unwrap();
        let switch = self.folder.join("nsswitch.conf");
        fs::write(&switch, "passwd: files\ngroup: files\nhosts: files dns\n").unwrap();
        let script =
            "mount --bind \"$1\" /etc/resolv.conf && mount --bind \"$2\" /etc/nsswitch.conf && shift 2 && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).args([&resolver, &switch]);
        command.arg(client.get_program()).args(client.get_args());
        command.current_dir(client.get_current_dir().unwrap());
        for name in ["E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"] {
            command.env_remove(name);
        }
        command.env("E2B_DOMAIN", DOMAIN).env("E2B_API_KEY", &self.server.key).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("SSL_CERT_FILE", &self.certificates.authority);
        command.env("NODE_EXTRA_CA_CERTS", &self.certificates.authority);
        let output = command.output().unwrap();
        println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "the client's tests failed, see above");
    }
}

#[test]
fn the_packages_find_a_server_by_its_domain() {
    if fast() {
        return; // needs an image that takes minutes to build
    }
    let host = Host::shared();
    built::copy_to(&host.root(), "base");
    let served = Served::start(&host);
    served.run(pytest("domain-python"));
    served.run(node_test("domain-js"));
    served.server.end_with_its_sandboxes();
}

#[test]
fn commands_work_over_https_with_a_trusted_authority_only() {
    let host = Host::shared();
    let served = Served::start(&host);
    let url = format!("https://{}", served.address);
    let authority = served.certificates.authority.to_str().unwrap().to_owned();
    let command = |words: &[&str]| {
        let command = served.server.invoke(words).env("SLOPLET_URL", &url);
        command.env("SLOPLET_API_KEY", &served.server.key).env("SSL_CERT_FILE", &authority)
    };
    command(&["create", "--name", "my"]).finish().expect_code(0);
    let echo = command(&["exec", "my", "--", "sh", "-c", "cat; exit 3"]).input("through").finish().expect_code(3);
    assert_eq!(echo.out(), "through");
    let file = served.folder.join("file");
    fs::write(&file, vec![b'x'; 1 << 20]).unwrap();
    command(&["cp", file.to_str().unwrap(), "my:/tmp/"]).finish().expect_code(0);
    let back = served.folder.join("back");
    command(&["cp", "my:/tmp/file", back.to_str().unwrap()]).finish().expect_code(0);
    assert_eq!(fs::metadata(&back).unwrap().len(), 1 << 20);
    assert!(command(&["ls"]).finish().expect_code(0).out().contains("my"));
    let port = command(&["port", "my", "3000"]).finish();
    assert!(port.code == 0 && port.out().starts_with("https://3000-"), "{port}");
    // Nobody else's word is taken for it.
    let stranger = served.server.invoke(&["ls"]).env("SLOPLET_URL", &url).env("SLOPLET_API_KEY", &served.server.key);
    stranger.finish().expect_code(125).expect_said("certificate");
    command(&["rm", "my"]).finish().expect_code(0);
    served.server.end();
}
